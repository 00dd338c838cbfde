-- step.lua: `bucket n/W burst b step`, n tokens at once every W. The interval
-- begins with the first token that is taken from a full bucket.
--
-- more  "b"
-- own   "x z": x tokens at z, when the last were added

local numbers = require("lib/numbers")
local counter = require("limit/counter")
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local int = numbers.int

-- at is the bucket at an instant; when it is full, the interval begins there
local function at(rule, a)
  local ticks = max(0, floor((a - rule.z) / rule.W))
  local x = min(rule.burst, rule.x + ticks * rule.n)
  if x >= rule.burst then return x, a end
  return x, rule.z + ticks * rule.W
end

-- settle carries what is missing over to other numbers; under a stricter limit
-- all that is known counts besides
local function settle(rule, old)
  local full = rule.x >= old.burst
  rule.x, rule.z = max(0, rule.burst - max(0, old.burst - rule.x)), full and 0 or rule.z
  if rule.z + rule.W <= rule.newest then rule.z = rule.newest end -- the new interval is shorter: nothing comes for the past
  if counter.stricter(rule, old, rule.burst, old.burst) then
    local replayed = counter.replay(rule)
    if replayed.x < rule.x or (replayed.x == rule.x and replayed.z > rule.z) then rule.x, rule.z = replayed.x, replayed.z end
  end
end

return {
  numbers = function(rule) rule.burst = tonumber(rule.more) end,
  fresh = function(rule)
    counter.fresh(rule)
    rule.x, rule.z = rule.burst, 0
  end,
  read = function(rule, s)
    local own, old = counter.read(rule, s)
    local x, z = string.match(own or "", "^(%d+) (%d+)$")
    if not x then return false end
    rule.x, rule.z = tonumber(x), tonumber(z)
    if old then settle(rule, old) end
    return true
  end,
  grants = counter.grants,
  slot = function(rule, now, before, cost)
    local a, k = max(now, rule.newest), before + cost
    local x, z = at(rule, a)
    if k <= x then return a end
    return max(a, z + ceil((k - x) / rule.n) * rule.W)
  end,
  charge = function(rule, when, cost)
    local x, z = at(rule, when)
    rule.x, rule.z = max(0, x - cost), z
    counter.spend(rule, when, cost, counter.over(rule, when) and when)
  end,
  save = function(rule, now) counter.save(rule, now, int(rule.x) .. " " .. int(rule.z)) end,
  ends = function(rule) return max(rule.z + ceil((rule.burst - rule.x) / rule.n) * rule.W, rule.newest + rule.W) end,
  -- back does not advance the bucket: the clock may go backwards
  back = function(rule, when, cost, worth, a)
    local x, z = at(rule, a)
    local missing, since = rule.burst - x, counter.taken_since(rule, worth)
    local still = cost - rule.n * max(0, floor((z - when - 1) / rule.W) + 1) -- less what came since at the ends of intervals
    if since then still = max(0, missing - since) end
    rule.x = rule.x + max(0, min(cost, still, missing))
    counter.back(rule, when, cost, worth)
    return true
  end,
  free = function(rule, a) return (at(rule, a)) end,
  worth = function(rule) return rule.taken end,
}
