-- tat.lua: what `gcra` and `smooth` have in common: beside the tally their
-- state is one instant, t + r/n microseconds with 0 <= r < n, so that a permit
-- may take W/n and nothing is ever rounded in a ledger. nil on a fresh key.
--
-- own  "t r"

local numbers = require("lib/numbers")
local counter = require("limit/counter")
local floor, max, min = math.floor, math.max, math.min
local int = numbers.int

-- plus is the time of k permits later; k may be negative
local function plus(rule, t, r, k)
  local q = floor(rule.W / rule.n)
  local s = r + k * (rule.W - q * rule.n)
  local whole = floor(s / rule.n)
  return t + k * q + whole, s - whole * rule.n
end

local function up(t, r)
  return r > 0 and t + 1 or t
end

local function later_of(t, r, t2, r2)
  if t2 > t or (t2 == t and r2 > r) then return t2, r2 end
  return t, r
end

local function fresh(rule)
  counter.fresh(rule)
  rule.t, rule.r = nil, nil
end

-- read reads a ledger; settle carries it over to other numbers
local function read(rule, s, settle)
  local own, old = counter.read(rule, s)
  local t, r = string.match(own or "", "^(%d+) (%d+)$")
  if not t then return false end
  rule.t, rule.r = tonumber(t), tonumber(r)
  if old then settle(rule, old) end
  return true
end

-- settled is not before what a stricter limit makes of all that is known
local function settled(rule, old, t, r)
  if counter.stricter(rule, old, rule.burst, old.burst) then
    local replayed = counter.replay(rule)
    if replayed.t then t, r = later_of(t, r, replayed.t, replayed.r) end
  end
  rule.t, rule.r = t, r
end

local function save(rule, now)
  counter.save(rule, now, int(rule.t) .. " " .. int(rule.r))
end

-- back takes the time of cost permits off again, as much of it as
-- is still to come at a: what time has paid, others may have spent since. `stored`
-- permits' time may lie in the past and still counts.
local function back(rule, at, cost, worth, a, stored)
  local c, rest = plus(rule, 0, 0, cost)
  local since = counter.taken_since(rule, worth)
  local ends = plus(rule, rule.t, rule.r, stored - (since or 0))
  if not since then ends = min(at + c, ends) end
  local left = max(0, ends - a)
  if left >= up(c, rest) then
    rule.t, rule.r = plus(rule, rule.t, rule.r, -cost)
  else
    rule.t = rule.t - left
  end
  counter.back(rule, at, cost, worth)
  return true
end

return {
  back = back, fresh = fresh, later_of = later_of, plus = plus, read = read, save = save, settled = settled, up = up,
}
