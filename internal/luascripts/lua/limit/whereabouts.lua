-- whereabouts.lua: in which line a booking stands, and the instant that follows from it.

-- find_place is the part in whose line I wait, or in which I have any place, nil when
-- in none; the instant, now when it has come; and the part that put that off last.
-- Asked is as far as where I stand: what I stand in no line for is not asked, or I
-- would be told later and later by those who join that line. A narrower rule that
-- admits me before my turn comes there puts nothing off: I keep my place
local function find_place(P, now)
  local place, waiting
  for i, L in ipairs(P) do
    look(L, now, false, L.top)
    find(L)
    rank(L)
    measure(L, now)
    local waits = L.ticket and not L.in_turns and not is_parked(L.ticket)
    if (L.ticket and not place) or (waits and not waiting) then place = i end
    waiting = waiting or waits
  end
  if not place then return nil end

  local at, by, i = now, place, 1
  while i <= place do
    local to = last_of_group(P, i)
    local due, last = joint(P, i, to, now, place, now)
    if due > now and due >= at then at, by = due, last end
    i = to + 1
  end
  return place, at, by
end
