-- gcra.lua: `gcra n/W burst b` and `bucket n/W burst b`, which admit the same:
-- a bucket that fills continuously is full at one instant, and that is all the
-- state there is.
--
-- more  "b"
-- own   the instant at which the bucket is full, see instant.lua

function kinds.g()
  -- full is the instant from which nothing counts any more, but not before a: the
  -- rest of a microsecond by which a grant had to be late is not lost
  local function full(L, a)
    if not L.t or a > up(L.t, L.r) then return a, 0 end
    return L.t, L.r
  end

  local function slot(L, now, before, cost)
    local a = max(now, L.newest)
    local t, r = full(L, a)
    return max(a, up(plus(L, t, r, before + cost - L.burst)))
  end

  -- settle carries what is owed over to other numbers, in permits
  local function settle(L, old)
    local a = L.newest
    local owed = max(0, up(L.t, L.r) - a)
    local t, r = a + ceil(owed * (L.W * old.n) / (L.n * old.W)), 0
    local most, rest = plus(L, a, 0, L.burst)
    if t > most then t, r = most, rest end
    instant_settled(L, old, t, r)
  end

  return {
    numbers = function(L) L.burst = tonumber(L.more) end,
    fresh = instant_fresh,
    read = function(L, s) return instant_read(L, s, settle) end,
    grants = tally_grants,
    slot = slot,
    charge = function(L, at, cost)
      local t, r = full(L, at)
      t, r = plus(L, t, r, cost)
      local most, rest = plus(L, at, 0, L.burst)
      if t > most or (t == most and r > rest) then t, r = most, rest end -- in a replay
      L.t, L.r = t, r
      tally(L, at, cost, over(L, at) and at)
    end,
    save = instant_save,
    ends = function(L) return max(L.t and up(L.t, L.r) or 0, L.newest + L.W) end,
    back = function(L, at, cost, worth, a) return instant_back(L, at, cost, worth, a, 0) end,
    free = function(L, a)
      local t, r = full(L, a)
      local k = floor(L.burst - (t - a) * L.n / L.W) + 1 -- near it
      while k > 0 and up(plus(L, t, r, k - L.burst)) > a do k = k - 1 end
      return max(0, min(k, L.burst))
    end,
    worth = function(L) return L.taken end,
  }
end
