-- smooth.lua: `smooth n/W burst s` and, with s = 0, `leaky n/W`: a job never
-- waits for its own permits, the one after it does. What is not used is stored,
-- s permits at most. It begins with none.
--
-- more  "s"
-- own   the instant at which the next one goes, see tat.lua; before now by what is stored

local counter = require("limit/counter")
local tat = require("limit/tat")
local floor, max = math.floor, math.max

local STORED = 3600000000 -- what is stored is kept so long

-- following is when the next goes, with what is stored at a
local function following(rule, a)
  if not rule.t then return a, 0 end
  if a > tat.up(tat.plus(rule, rule.t, rule.r, rule.burst)) then return tat.plus(rule, a, 0, -rule.burst) end
  return rule.t, rule.r -- with the rest of a microsecond by which a grant had to be late
end

-- settle leaves the instant until which is owed as it is, and scales the permits that are
-- stored, as Guava's setRate does
local function settle(rule, old)
  local t = tat.up(rule.t, rule.r)
  if t < rule.newest and old.burst > 0 then
    t = rule.newest - floor((rule.newest - t) * (rule.W * old.n) / (rule.n * old.W) * rule.burst / old.burst)
  end
  rule.t, rule.r = t, 0
end

return {
  numbers = function(rule) rule.burst = tonumber(rule.more) end,
  fresh = tat.fresh,
  read = function(rule, s) return tat.read(rule, s, settle) end,
  grants = counter.grants,
  slot = function(rule, now, before)
    local a = max(now, rule.newest)
    local t, r = following(rule, a)
    return max(a, tat.up(tat.plus(rule, t, r, before)))
  end,
  charge = function(rule, at, cost)
    local t, r = following(rule, at)
    rule.t, rule.r = tat.plus(rule, t, r, cost)
    counter.spend(rule, at, cost, counter.over(rule, at) and at)
  end,
  save = tat.save,
  ends = function(rule)
    local ends = rule.t and tat.up(tat.plus(rule, rule.t, rule.r, rule.burst)) or 0
    return max(rule.burst > 0 and ends + STORED or ends, rule.newest + rule.W)
  end,
  back = function(rule, at, cost, worth, a) return tat.back(rule, at, cost, worth, a, rule.burst) end,
  free = function(rule, a)
    local t, r = following(rule, a)
    if tat.up(t, r) > a then return 0 end
    local k = floor((a - t) * rule.n / rule.W) + 1 -- near it
    while k > 1 and tat.up(tat.plus(rule, t, r, k)) > a do k = k - 1 end
    return k
  end,
  worth = function(rule) return rule.taken end,
}
