-- comeback.lua: who comes back into a line, before others: its grant was given back, or it was put off.

local tickets = require("limit/tickets")
local places = require("limit/places")
local floor, min = math.floor, math.min
local PARK, PARKED, ROOM, at_rank, normal = tickets.PARK, tickets.PARKED, tickets.ROOM, tickets.at_rank, tickets.normal
local enlist, keep_line, mix = places.enlist, places.keep_line, places.mix

-- stands is find without look
local function stands(rule)
  rule.ticket = tonumber(redis.call("ZSCORE", rule.line, rule.me) or rule.turns and redis.call("ZSCORE", rule.turns, rule.me) or "")
end

-- first_ticket is that of one before all
local function first_ticket(rule)
  local ticket
  for _, at in ipairs({ 0, redis.call("ZCOUNT", rule.line, "-inf", PARKED) }) do -- the first who is parked, and the first who is not
    local m, t = at_rank(rule.line, at)
    if m then ticket = min(ticket or normal(t), normal(t)) end
  end
  if rule.turns then
    local m, t = at_rank(rule.turns, 0)
    if m then ticket = min(ticket or t, t) end
  end
  return ticket and (floor(ticket / ROOM) - rule.want) * ROOM or 0
end

-- join_at gives me the place of a ticket in a set, among those who are parked when
-- aside; first_ticket is that of a grant that came back
local function join_at(rule, set, ticket, at, now, aside)
  if rule.turns and set ~= rule.turns then redis.call("ZREM", rule.turns, rule.me) end
  if not aside then mix(rule) end
  enlist(rule, set, aside and ticket - PARK or ticket, at)
  keep_line(rule, at, now)
end

return {
  first_ticket = first_ticket, join_at = join_at, stands = stands,
}
