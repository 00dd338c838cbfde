-- widest.lua: mode 3 of acquire.lua: a place with the widest rates, which share a key, or none.
--
-- It is the body of in_widest(P, widest, now, reach) and answers the first of these rates,
-- of which the part `widest` is the last; the instant at which they admit me; and which of
-- them puts me off beyond reach. For one who has no place there yet: a later instant, which
-- of the other parts puts it off until then, and true. A lease does so only while it is
-- closed: who has one now will not then. Nil for one that waits elsewhere, or where there
-- are no rates.

if P[widest].kind.lease then return nil end
local from, placed, elsewhere = widest, false, false
while from > 1 and P[from - 1].group == P[widest].group do from = from - 1 end
for i, L in ipairs(P) do
  if i >= from and i <= widest then placed = placed or L.ticket else elsewhere = elsewhere or L.ticket end
end
if elsewhere and not placed then return nil end

local at, by = joint(P, from, widest, now, nil, reach)
local later, which = at, nil
for i, L in ipairs(P) do
  local other = i < from and L.by_turns or i > widest and L.closed or 0
  if other > later then later, which = other, i end
end
if which and not placed then return from, later, which, true end
return from, at, at > reach and by or nil, false
