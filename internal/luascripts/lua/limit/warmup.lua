-- warmup.lua: `warmup n/W over D cold c`. Like smooth, but what is stored makes
-- it slow: an idle limiter is cold, its first permits take c times as long, and
-- it gets to its rate within D. Numbers that are no integers are doubles, in the
-- order of operations that the Go twin has too.
--
-- more  "D c", c in thousandths
-- own   "x t f": x permits stored; the next goes at t + f

function kinds.w()
  -- a rest so small comes from rounding a double: it would make the next grant seem
  -- late by a microsecond, which it then need not wait
  local DUST = 1e-6

  -- wait is how long k permits take when x are stored
  local function wait(L, x, k)
    local taken = min(k, x)
    local w, rest, above = 0, taken, x - L.warm_at
    if above > 0 and taken > 0 then
      local g = min(above, taken)
      w = g * ((L.s + above * L.slope) + (L.s + (above - g) * L.slope)) * 0.5
      rest = taken - g
    end
    w = w + L.s * rest
    return w + L.s * (k - taken)
  end

  -- idle is the limiter at a: what it stored meanwhile, and when the next goes
  local function idle(L, a)
    if not L.t then return L.most, a, 0 end
    if a <= L.t + ceil(L.f) then return L.x, L.t, L.f end -- the rest of a microsecond by which a grant had to be late is not idle
    return min(L.most, L.x + (a - L.t - L.f) / L.cool), a, 0
  end

  -- settle scales what is stored, as Guava's setRate does: what is owed stays.
  -- Under a stricter limit all that is known counts besides.
  local function settle(L, old)
    L.x = L.x * L.most / old.most
    if stricter(L, old, -L.D, -old.D) or L.milli > old.milli then
      local R = replay(L)
      if not R.t then return end
      if R.t > L.t or (R.t == L.t and R.f > L.f) then L.t, L.f = R.t, R.f end
      L.x = max(L.x, R.x)
    end
  end

  return {
    numbers = function(L)
      local D, milli = string.match(L.more, "^(%d+) (%d+)$")
      L.D, L.milli = tonumber(D), tonumber(milli)
      L.s = L.W / L.n
      local cold = L.s * (L.milli / 1000)
      L.warm_at = 0.5 * L.D / L.s
      L.most = L.warm_at + 2 * L.D / (L.s + cold)
      L.slope = (cold - L.s) / (L.most - L.warm_at)
      L.cool = L.D / L.most
    end,
    fresh = function(L)
      tally_fresh(L)
      L.x, L.t, L.f = L.most, nil, 0
    end,
    read = function(L, s)
      local own, old = tally_read(L, s)
      local x, t, f = string.match(own or "", "^(%S+) (%d+) (%S+)$")
      if not x then return false end
      L.x, L.t, L.f = tonumber(x), tonumber(t), tonumber(f)
      if old then settle(L, old) end
      return true
    end,
    grants = tally_grants,
    slot = function(L, now, before)
      local a = max(now, L.newest)
      local x, t, f = idle(L, a)
      return max(a, t + ceil(f + wait(L, x, before)))
    end,
    charge = function(L, at, cost)
      local x, t, f = idle(L, at)
      local w = f + wait(L, x, cost)
      local rest = w - floor(w)
      if rest < DUST then rest = 0 end
      L.x, L.t, L.f = max(0, x - cost), t + floor(w), rest
      tally(L, at, cost, over(L, at) and at)
    end,
    save = function(L, now)
      tally_save(L, now, string.format("%.17g %.0f %.17g", L.x, L.t, L.f))
    end,
    ends = function(L) return max((L.t or 0) + 1 + L.D, L.newest + L.W) end,
    back = function(L, at, cost, worth, a)
      local c = floor(cost * L.s)
      local ends, since = min(at + c, L.t), taken_since(L, worth)
      if since then ends = L.t - ceil(since * L.s) end
      L.t = L.t - min(c, max(0, ends - a))
      tally_back(L, at, cost, worth)
      return true
    end,
    free = function(L, a)
      local _, t, f = idle(L, a)
      return t + ceil(f) <= a and 1 or 0
    end,
    worth = function(L) return L.taken end,
  }
end
