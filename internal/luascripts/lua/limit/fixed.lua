-- fixed.lua: `fixed n/W`, at most n permits in a window that begins with the
-- first of them. The tally is all there is to know.

local counter = require("limit/counter")
local floor, max, min = math.floor, math.max, math.min

local function charge(rule, at, cost)
  counter.spend(rule, at, cost, counter.over(rule, at) and at)
end

return {
  fresh = counter.fresh,
  read = function(rule, s)
    local own, old = counter.read(rule, s)
    if old and rule.W > old.W and rule.before > 0 and rule.before_at + rule.W > rule.newest then counter.again(rule, charge) end -- one window may hold both now
    return own ~= nil
  end,
  grants = counter.grants,
  slot = function(rule, now, before, cost)
    local a, k = max(now, rule.newest), before + cost
    if counter.over(rule, a) then return a + rule.W * floor((k - 1) / rule.n) end
    local most = min(rule.used, rule.n) + k -- used is more than n after n fell; the next window owes nothing for that
    if most <= rule.n then return a end
    return rule.start + rule.W + rule.W * floor((most - rule.n - 1) / rule.n)
  end,
  charge = charge,
  save = function(rule, now) counter.save(rule, now, "") end,
  ends = function(rule) return rule.newest + rule.W end,
  back = function(rule, at, cost, worth)
    counter.back(rule, at, cost, worth)
    return true
  end,
  free = function(rule, a) return counter.over(rule, a) and rule.n or max(0, rule.n - rule.used) end,
  worth = function() return 0 end,
}
