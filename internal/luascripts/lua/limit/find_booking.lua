-- find_booking.lua: in which line a booking stands, and the instant that follows from it.

local tickets = require("limit/tickets")
local line = require("limit/line")
local rulecall = require("limit/rulecall")
local is_parked = tickets.is_parked
local find, look, rank = line.find, line.look, line.rank
local joint, last_of_group, measure = rulecall.joint, rulecall.last_of_group, rulecall.measure

-- find_place is the part in whose line I wait, or in which I have any place, nil when
-- in none; the instant, now when it has come; and the part that put that off last.
-- Asked is as far as where I stand: what I stand in no line for is not asked, or I
-- would be told later and later by those who join that line. A narrower rule that
-- admits me before my turn comes there puts nothing off: I keep my place
local function find_place(rules, now)
  local place, waiting
  for i, rule in ipairs(rules) do
    look(rule, now, false, rule.top)
    find(rule)
    rank(rule)
    measure(rule, now)
    local waits = rule.ticket and not rule.in_turns and not is_parked(rule.ticket)
    if (rule.ticket and not place) or (waits and not waiting) then place = i end
    waiting = waiting or waits
  end
  if not place then return nil end

  local at, by, i = now, place, 1
  while i <= place do
    local to = last_of_group(rules, i)
    local due, last = joint(rules, i, to, now, place, now)
    if due > now and due >= at then at, by = due, last end
    i = to + 1
  end
  return place, at, by
end

return find_place
