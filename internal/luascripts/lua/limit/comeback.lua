-- comeback.lua: who comes back into a line, before others: its grant was given back, or it was put off.

-- stands is find without look
local function stands(L)
  L.ticket = tonumber(redis.call("ZSCORE", L.line, L.me) or L.turns and redis.call("ZSCORE", L.turns, L.me) or "")
end

-- first_ticket is that of one before all
local function first_ticket(L)
  local ticket
  for _, at in ipairs({ 0, redis.call("ZCOUNT", L.line, "-inf", PARKED) }) do -- the first who is parked, and the first who is not
    local m, t = at_rank(L.line, at)
    if m then ticket = min(ticket or normal(t), normal(t)) end
  end
  if L.turns then
    local m, t = at_rank(L.turns, 0)
    if m then ticket = min(ticket or t, t) end
  end
  return ticket and (floor(ticket / ROOM) - L.want) * ROOM or 0
end

-- join_at gives me the place of a ticket in a set, among those who are parked when
-- aside; first_ticket is that of a grant that came back
local function join_at(L, set, ticket, at, now, aside)
  if L.turns and set ~= L.turns then redis.call("ZREM", L.turns, L.me) end
  if not aside then mix(L) end
  enlist(L, set, aside and ticket - PARK or ticket, at)
  keep_line(L, at, now)
end
