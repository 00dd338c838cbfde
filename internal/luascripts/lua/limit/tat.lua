-- tat.lua: the kinds whose state is an instant (of gcra the theoretical arrival time, tat), beside the counter:
-- gcra, which bucket is too; smooth, which leaky is too; and warmup.
--
-- Of gcra and smooth it is t + r/n microseconds with 0 <= r < n, so that a permit
-- may take W/n and nothing is ever rounded in a ledger. nil on a fresh key.

local counter = require("limit/counter")
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local over, spend = counter.over, counter.spend

local EXACT = 9007199254740992 -- below it a double holds every whole number

-- share is how often n goes into k * m, and the rest; 0 <= m < n <= 2^40. The product may be too
-- large for a double: then it is made of the digits of k, 12 bits each, the highest first.
local function share(k, m, n)
  local often, rest, unit = 0, 0, 281474976710656
  while unit >= 1 do
    local digit = floor(k / unit)
    k = k - digit * unit
    rest = rest * 4096 + digit * m
    local more = floor(rest / n)
    often, rest, unit = often * 4096 + more, rest - more * n, unit / 4096
  end
  return often, rest
end

-- plus is the time of k permits later; k may be negative
local function plus(limit, t, r, k)
  local n, W = limit.n, limit.W
  local q = floor(W / n)
  local s = r + k * (W - q * n)
  if s < EXACT and s > -EXACT then
    local whole = floor(s / n)
    return t + k * q + whole, s - whole * n
  end
  local often, rest = share(k < 0 and -k or k, W - q * n, n)
  if k < 0 then often, rest = -often, -rest end
  rest = r + rest
  if rest >= n then often, rest = often + 1, rest - n elseif rest < 0 then often, rest = often - 1, rest + n end
  return t + k * q + often, rest
end

local function up(t, r)
  return r > 0 and t + 1 or t
end

local function keep(ledger, t, r) ledger.t, ledger.r = t, r end

local function own(ledger) return ledger.t, ledger.r end

local function burst(limit)
  limit.a = limit.a or tonumber(limit.more)
  limit.burst = limit.a
end

local function worth(ledger) return ledger.taken end

-- set_carried gives a ledger its instant under a new limit: under a stricter one not before what that makes of all that is known
local function set_carried(limit, old, ledger, t, r)
  counter.fit(limit, ledger)
  if counter.stricter(limit, old, limit.burst, old.burst) then
    local replayed = counter.replay(limit, ledger)
    if replayed.t and (replayed.t > t or (replayed.t == t and replayed.r > r)) then t, r = replayed.t, replayed.r end
  end
  ledger.t, ledger.r = t, r
end

-- back takes the time of cost permits off again, as much of it as
-- is still to come at a: what time has paid, others may have spent since. `stored`
-- permits' time may lie in the past and still counts.
local function back(limit, ledger, at, cost, worth, a, stored)
  local c, rest = plus(limit, 0, 0, cost)
  local since = counter.taken_since(ledger, worth)
  local ends = plus(limit, ledger.t, ledger.r, stored - (since or 0))
  if not since then ends = min(at + c, ends) end
  local left = max(0, ends - a)
  if left >= up(c, rest) then
    ledger.t, ledger.r = plus(limit, ledger.t, ledger.r, -cost)
  else
    ledger.t = ledger.t - left
  end
  counter.back(ledger, at, cost)
  return true
end

-- `gcra n/W burst b` and `bucket n/W burst b`, which admit the same:
-- a bucket that fills continuously is full at one instant, and that is all the
-- state there is.
--
-- more  "b"
-- own   the instant at which the bucket is full

-- full is the instant from which nothing counts any more, but not before a: the
-- rest of a microsecond by which a grant had to be late is not lost
local function full(ledger, a)
  local t, r = ledger.t, ledger.r
  if not t or a > up(t, r) then return a, 0 end
  return t, r
end

local gcra = {
  doubles = 3, no_debt = true,
  fresh = counter.fresh, grants = counter.grants, keep = keep, numbers = burst, own = own, read = counter.read, value = counter.value, worth = worth,
  -- what is owed is carried over, in permits
  carry_over = function(limit, old, ledger)
    local a = ledger.newest
    local owed = max(0, up(ledger.t, ledger.r) - a)
    local t, r = a + ceil(owed * (limit.W * old.n) / (limit.n * old.W)), 0
    local most, rest = plus(limit, a, 0, limit.burst)
    if t > most then t, r = most, rest end
    set_carried(limit, old, ledger, t, r)
  end,
  earliest = function(limit, ledger, now, before, cost)
    local a = max(now, ledger.newest)
    local t, r = full(ledger, a)
    return max(a, up(plus(limit, t, r, before + cost - limit.burst)))
  end,
  charge = function(limit, ledger, at, cost)
    local t, r = full(ledger, at)
    t, r = plus(limit, t, r, cost)
    local most, rest = plus(limit, at, 0, limit.burst)
    if t > most or (t == most and r > rest) then t, r = most, rest end -- in a replay
    ledger.t, ledger.r = t, r
    spend(ledger, at, cost, over(limit, ledger, at) and at)
  end,
  ends = function(limit, ledger) return max(ledger.t and up(ledger.t, ledger.r) or 0, ledger.newest + limit.W) end,
  back = function(limit, ledger, at, cost, worth, a) return back(limit, ledger, at, cost, worth, a, 0) end,
  free = function(limit, ledger, a)
    local t, r = full(ledger, a)
    local k = floor(limit.burst - ((t - a) * limit.n + r) / limit.W) + 1 -- near it
    while k > 0 and up(plus(limit, t, r, k - limit.burst)) > a do k = k - 1 end
    return max(0, min(k, limit.burst))
  end,
}

-- `smooth n/W burst s` and, with s = 0, `leaky n/W`: a job never
-- waits for its own permits, the one after it does. What is not used is stored,
-- s permits at most. It begins with none.
--
-- more  "s"
-- own   the instant at which the next one goes; before now by what is stored

local STORED = 3600000000 -- what is stored is kept so long

-- following is when the next goes, with what is stored at a
local function following(limit, ledger, a)
  local t, r = ledger.t, ledger.r
  if not t then return a, 0 end
  if a > up(plus(limit, t, r, limit.burst)) then return plus(limit, a, 0, -limit.burst) end
  return t, r -- with the rest of a microsecond by which a grant had to be late
end

local smooth = {
  doubles = 3,
  fresh = counter.fresh, grants = counter.grants, keep = keep, numbers = burst, own = own, read = counter.read, value = counter.value, worth = worth,
  -- the instant until which is owed stays as it is, and the permits that are stored are
  -- scaled, as Guava's setRate does
  carry_over = function(limit, old, ledger)
    counter.fit(limit, ledger)
    local t = up(ledger.t, ledger.r)
    if t < ledger.newest and old.burst > 0 then
      t = ledger.newest - floor((ledger.newest - t) * (limit.W * old.n) / (limit.n * old.W) * limit.burst / old.burst)
    end
    ledger.t, ledger.r = t, 0
  end,
  earliest = function(limit, ledger, now, before)
    local a = max(now, ledger.newest)
    local t, r = following(limit, ledger, a)
    return max(a, up(plus(limit, t, r, before)))
  end,
  charge = function(limit, ledger, at, cost)
    local t, r = following(limit, ledger, at)
    ledger.t, ledger.r = plus(limit, t, r, cost)
    spend(ledger, at, cost, over(limit, ledger, at) and at)
  end,
  ends = function(limit, ledger)
    local ends = ledger.t and up(plus(limit, ledger.t, ledger.r, limit.burst)) or 0
    return max(limit.burst > 0 and ends + STORED or ends, ledger.newest + limit.W)
  end,
  back = function(limit, ledger, at, cost, worth, a) return back(limit, ledger, at, cost, worth, a, limit.burst) end,
  owes = function() return 1 end,
  free = function(limit, ledger, a)
    local t, r = following(limit, ledger, a)
    if up(t, r) > a then return 0 end
    local k = floor(((a - t) * limit.n - r) / limit.W) + 1 -- near it
    while k > 1 and up(plus(limit, t, r, k)) > a do k = k - 1 end
    return k
  end,
}

-- `warmup n/W over D cold c`. Like smooth, but what is stored makes
-- it slow: an idle limiter is cold, its first permits take c times as long, and
-- it gets to its rate within D. Numbers that are no integers are doubles, in the
-- order of operations that the Go twin has too.
--
-- more  "D c", c in thousandths
-- own   stored, t, f: so many permits are stored; the next goes at t + f

-- a rest so small comes from rounding a double: it would make the next grant seem
-- late by a microsecond, which it then need not wait
local DUST = 1e-6

-- wait is how long k permits take when so many are stored
local function wait(limit, stored, k)
  local taken = min(k, stored)
  local w, rest, above = 0, taken, stored - limit.warm_at
  if above > 0 and taken > 0 then
    local g = min(above, taken)
    w = g * ((limit.s + above * limit.slope) + (limit.s + (above - g) * limit.slope)) * 0.5
    rest = taken - g
  end
  w = w + limit.s * rest
  return w + limit.s * (k - taken)
end

-- idle is the limiter at a: what it stored meanwhile, and when the next goes
local function idle(limit, ledger, a)
  local t, f = ledger.t, ledger.f
  if not t then return limit.most, a, 0 end
  if a <= t + ceil(f) then return ledger.stored, t, f end -- the rest of a microsecond by which a grant had to be late is not idle
  return min(limit.most, ledger.stored + (a - t - f) / limit.cool), a, 0
end

local warmup = {
  doubles = 5,
  grants = counter.grants, read = counter.read, value = counter.value, worth = worth,
  numbers = function(limit)
    if limit.more then
      local D, milli = string.match(limit.more, "^(%d+) (%d+)$")
      limit.a, limit.b = tonumber(D), tonumber(milli)
    end
    local D = limit.a
    limit.s = limit.W / limit.n
    local cold = limit.s * (limit.b / 1000)
    limit.warm_at = 0.5 * D / limit.s
    limit.most = limit.warm_at + 2 * D / (limit.s + cold)
    limit.slope = (cold - limit.s) / (limit.most - limit.warm_at)
    limit.cool = D / limit.most
  end,
  fresh = function(limit)
    local ledger = counter.fresh()
    ledger.stored, ledger.t, ledger.f = limit.most, nil, 0
    return ledger
  end,
  keep = function(ledger, t, f, stored) ledger.t, ledger.f, ledger.stored = t, f, stored end,
  own = function(ledger) return ledger.t, ledger.f, ledger.stored end,
  -- what is stored is scaled, as Guava's setRate does: what is owed stays
  carry_over = function(limit, old, ledger)
    counter.fit(limit, ledger)
    ledger.stored = ledger.stored * limit.most / old.most
  end,
  earliest = function(limit, ledger, now, before)
    local a = max(now, ledger.newest)
    local stored, t, f = idle(limit, ledger, a)
    return max(a, t + ceil(f + wait(limit, stored, before)))
  end,
  charge = function(limit, ledger, at, cost)
    local stored, t, f = idle(limit, ledger, at)
    local w = f + wait(limit, stored, cost)
    local rest = w - floor(w)
    if rest < DUST then rest = 0 end
    ledger.stored, ledger.t, ledger.f = max(0, stored - cost), t + floor(w), rest
    spend(ledger, at, cost, over(limit, ledger, at) and at)
  end,
  ends = function(limit, ledger) return max((ledger.t or 0) + 1 + limit.a, ledger.newest + limit.W) end,
  back = function(limit, ledger, at, cost, worth, a)
    local c = floor(cost * limit.s)
    local ends, since = min(at + c, ledger.t), counter.taken_since(ledger, worth)
    if since then ends = ledger.t - ceil(since * limit.s) end
    ledger.t = ledger.t - min(c, max(0, ends - a))
    counter.back(ledger, at, cost)
    return true
  end,
  owes = function(limit) return limit.b / 1000 end, -- each takes that much longer of a cold limiter
  free = function(limit, ledger, a)
    local _, t, f = idle(limit, ledger, a)
    return t + ceil(f) <= a and 1 or 0
  end,
}

return { gcra = gcra, smooth = smooth, warmup = warmup }
