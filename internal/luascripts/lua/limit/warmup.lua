-- warmup.lua: `warmup n/W over D cold c`. Like smooth, but what is stored makes
-- it slow: an idle limiter is cold, its first permits take c times as long, and
-- it gets to its rate within D. Numbers that are no integers are doubles, in the
-- order of operations that the Go twin has too.
--
-- more  "D c", c in thousandths
-- own   "x t f": x permits stored; the next goes at t + f

local counter = require("limit/counter")
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

-- a rest so small comes from rounding a double: it would make the next grant seem
-- late by a microsecond, which it then need not wait
local DUST = 1e-6

-- wait is how long k permits take when x are stored
local function wait(rule, x, k)
  local taken = min(k, x)
  local w, rest, above = 0, taken, x - rule.warm_at
  if above > 0 and taken > 0 then
    local g = min(above, taken)
    w = g * ((rule.s + above * rule.slope) + (rule.s + (above - g) * rule.slope)) * 0.5
    rest = taken - g
  end
  w = w + rule.s * rest
  return w + rule.s * (k - taken)
end

-- idle is the limiter at a: what it stored meanwhile, and when the next goes
local function idle(rule, a)
  if not rule.t then return rule.most, a, 0 end
  if a <= rule.t + ceil(rule.f) then return rule.x, rule.t, rule.f end -- the rest of a microsecond by which a grant had to be late is not idle
  return min(rule.most, rule.x + (a - rule.t - rule.f) / rule.cool), a, 0
end

-- settle scales what is stored, as Guava's setRate does: what is owed stays
local function settle(rule, old)
  rule.x = rule.x * rule.most / old.most
end

return {
  numbers = function(rule)
    local D, milli = string.match(rule.more, "^(%d+) (%d+)$")
    rule.D, rule.milli = tonumber(D), tonumber(milli)
    rule.s = rule.W / rule.n
    local cold = rule.s * (rule.milli / 1000)
    rule.warm_at = 0.5 * rule.D / rule.s
    rule.most = rule.warm_at + 2 * rule.D / (rule.s + cold)
    rule.slope = (cold - rule.s) / (rule.most - rule.warm_at)
    rule.cool = rule.D / rule.most
  end,
  fresh = function(rule)
    counter.fresh(rule)
    rule.x, rule.t, rule.f = rule.most, nil, 0
  end,
  read = function(rule, s)
    local own, old = counter.read(rule, s)
    local x, t, f = string.match(own or "", "^(%S+) (%d+) (%S+)$")
    if not x then return false end
    rule.x, rule.t, rule.f = tonumber(x), tonumber(t), tonumber(f)
    if old then settle(rule, old) end
    return true
  end,
  grants = counter.grants,
  slot = function(rule, now, before)
    local a = max(now, rule.newest)
    local x, t, f = idle(rule, a)
    return max(a, t + ceil(f + wait(rule, x, before)))
  end,
  charge = function(rule, at, cost)
    local x, t, f = idle(rule, at)
    local w = f + wait(rule, x, cost)
    local rest = w - floor(w)
    if rest < DUST then rest = 0 end
    rule.x, rule.t, rule.f = max(0, x - cost), t + floor(w), rest
    counter.spend(rule, at, cost, counter.over(rule, at) and at)
  end,
  save = function(rule, now)
    counter.save(rule, now, string.format("%.17g %.0f %.17g", rule.x, rule.t, rule.f))
  end,
  ends = function(rule) return max((rule.t or 0) + 1 + rule.D, rule.newest + rule.W) end,
  back = function(rule, at, cost, worth, a)
    local c = floor(cost * rule.s)
    local ends, since = min(at + c, rule.t), counter.taken_since(rule, worth)
    if since then ends = rule.t - ceil(since * rule.s) end
    rule.t = rule.t - min(c, max(0, ends - a))
    counter.back(rule, at, cost, worth)
    return true
  end,
  free = function(rule, a)
    local _, t, f = idle(rule, a)
    return t + ceil(f) <= a and 1 or 0
  end,
  worth = function(rule) return rule.taken end,
}
