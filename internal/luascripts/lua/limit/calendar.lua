-- calendar.lua: `calendar n/unit zone`, at most n permits in a civil minute,
-- hour, day, week or month. The tally begins where the window does.
--
-- more  "short b0 b1 ...": where windows begin, as the caller's calendar has it;
--       beyond the last they are taken to be `short` long, which none falls below

local counter = require("limit/counter")
local floor, max, min = math.floor, math.max, math.min

-- begin is where window i begins
local function begin(rule, i)
  local last = #rule.bounds
  if i <= last then return rule.bounds[i] end
  return rule.bounds[last] + (i - last) * rule.short
end

-- index is the window in which an instant lies
local function index(rule, at)
  local last = #rule.bounds
  if at >= rule.bounds[last] then return last + floor((at - rule.bounds[last]) / rule.short) end
  local i = 1
  while i < last and rule.bounds[i + 1] <= at do i = i + 1 end
  return i
end

local function used(rule, i)
  return rule.newest >= begin(rule, i) and rule.used or 0
end

-- one that the calendar does not know is in none of its windows
local function charge(rule, at, cost)
  local from = at < rule.bounds[1] and at or begin(rule, index(rule, at))
  counter.spend(rule, at, cost, (rule.used == 0 or rule.newest < from) and from)
end

return {
  numbers = function(rule)
    rule.stored, rule.bounds = "", {} -- the bounds of another day are no other limit
    for b in string.gmatch(rule.more, "%d+") do
      if rule.short then rule.bounds[#rule.bounds + 1] = tonumber(b) else rule.short = tonumber(b) end
    end
  end,
  covered = function(rule, now) return rule.bounds[1] <= now and now < rule.bounds[#rule.bounds] end,
  fresh = counter.fresh,
  read = function(rule, s)
    local own, old = counter.read(rule, s)
    if old then counter.again(rule, charge) end
    return own ~= nil
  end,
  grants = counter.grants,
  slot = function(rule, now, before, cost)
    local a = max(now, rule.newest, rule.bounds[1])
    local i = index(rule, a)
    local most = min(used(rule, i), rule.n) + before + cost -- used is more than n after n fell
    if most <= rule.n then return a end
    return begin(rule, i + 1 + floor((most - rule.n - 1) / rule.n))
  end,
  charge = charge,
  save = function(rule, now) counter.save(rule, now, "") end,
  ends = function(rule) return max(begin(rule, index(rule, max(rule.newest, rule.bounds[1])) + 1), rule.newest + rule.W) end,
  back = function(rule, at, cost, worth)
    counter.back(rule, at, cost, worth)
    return true
  end,
  free = function(rule, a) return max(0, rule.n - used(rule, index(rule, a))) end,
  worth = function() return 0 end,
}
