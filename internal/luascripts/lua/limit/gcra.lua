-- gcra.lua: `gcra n/W burst b` and `bucket n/W burst b`, which admit the same:
-- a bucket that fills continuously is full at one instant, and that is all the
-- state there is.
--
-- more  "b"
-- own   the instant at which the bucket is full, see tat.lua

local counter = require("limit/counter")
local tat = require("limit/tat")
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

-- full is the instant from which nothing counts any more, but not before a: the
-- rest of a microsecond by which a grant had to be late is not lost
local function full(rule, a)
  if not rule.t or a > tat.up(rule.t, rule.r) then return a, 0 end
  return rule.t, rule.r
end

local function slot(rule, now, before, cost)
  local a = max(now, rule.newest)
  local t, r = full(rule, a)
  return max(a, tat.up(tat.plus(rule, t, r, before + cost - rule.burst)))
end

-- settle carries what is owed over to other numbers, in permits
local function settle(rule, old)
  local a = rule.newest
  local owed = max(0, tat.up(rule.t, rule.r) - a)
  local t, r = a + ceil(owed * (rule.W * old.n) / (rule.n * old.W)), 0
  local most, rest = tat.plus(rule, a, 0, rule.burst)
  if t > most then t, r = most, rest end
  tat.settled(rule, old, t, r)
end

return {
  numbers = function(rule) rule.burst = tonumber(rule.more) end,
  fresh = tat.fresh,
  read = function(rule, s) return tat.read(rule, s, settle) end,
  grants = counter.grants,
  slot = slot,
  charge = function(rule, at, cost)
    local t, r = full(rule, at)
    t, r = tat.plus(rule, t, r, cost)
    local most, rest = tat.plus(rule, at, 0, rule.burst)
    if t > most or (t == most and r > rest) then t, r = most, rest end -- in a replay
    rule.t, rule.r = t, r
    counter.spend(rule, at, cost, counter.over(rule, at) and at)
  end,
  save = tat.save,
  ends = function(rule) return max(rule.t and tat.up(rule.t, rule.r) or 0, rule.newest + rule.W) end,
  back = function(rule, at, cost, worth, a) return tat.back(rule, at, cost, worth, a, 0) end,
  free = function(rule, a)
    local t, r = full(rule, a)
    local k = floor(rule.burst - (t - a) * rule.n / rule.W) + 1 -- near it
    while k > 0 and tat.up(tat.plus(rule, t, r, k - rule.burst)) > a do k = k - 1 end
    return max(0, min(k, rule.burst))
  end,
  worth = function(rule) return rule.taken end,
}
