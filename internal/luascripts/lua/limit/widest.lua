-- widest.lua: mode 3 of acquire.lua: a place with the widest rates, which share a key, or none.
--
-- in_widest(rules, widest, now, reach) answers the first of these rates,
-- of which the part `widest` is the last; the instant at which they admit me; and which of
-- them puts me off beyond reach. For one who has no place there yet: a later instant, which
-- of the other parts puts it off until then, and true. A lease does so only while it is
-- closed: who has one now will not then. Nil for one that waits elsewhere, or where there
-- are no rates.

local rulecall = require("limit/rulecall")
local joint = rulecall.joint

local function in_widest(rules, widest, now, reach)
  if rules[widest].kind.lease then return nil end
  local from, placed, elsewhere = widest, false, false
  while from > 1 and rules[from - 1].group == rules[widest].group do from = from - 1 end
  for i, rule in ipairs(rules) do
    if i >= from and i <= widest then placed = placed or rule.ticket else elsewhere = elsewhere or rule.ticket end
  end
  if elsewhere and not placed then return nil end

  local at, by = joint(rules, from, widest, now, nil, reach)
  local later, which = at, nil
  for i, rule in ipairs(rules) do
    local other = i < from and rule.by_turns or i > widest and rule.closed or 0
    if other > later then later, which = other, i end
  end
  if which and not placed then return from, later, which, true end
  return from, at, at > reach and by or nil, false
end

return in_widest
