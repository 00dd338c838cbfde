-- places.lua: how a job gets its places in the lines, and gives up those that it need not have.

-- mix notes that costs differ, when mine is not that of the first who waits, or
-- where nobody does, of the first turn
local function mix(L)
  if L.nobody then return end
  local m
  if L.late then m = L.leader else m = at_rank(L.line, redis.call("ZCOUNT", L.line, "-inf", PARKED)) end
  m = m or (L.turns and not L.no_turns and at_rank(L.turns, 0))
  if m and cost_of(m) ~= L.want then redis.call("ZADD", L.line, int(PARK + TOLD), MIXED) end
end

-- last_ticket is that of one behind all: a whole number of ROOMs, as first_ticket
local function last_ticket(L)
  local ticket = 0
  local function after(member, t)
    if member then ticket = max(ticket, (ceil(normal(t) / ROOM) + cost_of(member)) * ROOM) end
  end
  if L.parked > 0 then after(at_rank(L.line, L.parked - 1)) end -- the last who is parked
  if line_ends(L) > 0 then after(at_rank(L.line, L.last - 1)) end
  if L.turns_last > 0 then after(at_rank(L.turns, -1)) end
  return ticket
end

-- the line outlives the last promise by the time that somebody stays parked
local function keep_line(L, at, now)
  live(L.line, at - now + LATE)
  if L.turns and not L.no_turns then live(L.turns, at - now + LATE) end
end

-- promise tells me an instant
local function promise(L, at)
  L.nobody = false
  redis.call("ZADD", L.line, int(at + TOLD), "@" .. L.me)
end

-- enlist gives me a ticket in a set, and tells me an instant
local function enlist(L, set, ticket, at)
  L.nobody = false
  if set == L.line then
    redis.call("ZADD", set, int(ticket), L.me, int(at + TOLD), "@" .. L.me)
  else
    L.no_turns = false
    redis.call("ZADD", set, int(ticket), L.me)
    promise(L, at)
  end
end

-- clear takes out who was late for too long
local function clear(L, now)
  local gone = redis.call("ZRANGEBYSCORE", L.line, int(TOLD), int(TOLD + now - LATE), "LIMIT", 0, 20)
  for _, name in ipairs(gone) do
    local m = string.match(name, "^@(.*)$") or ""
    local t = redis.call("ZSCORE", L.line, m)
    if (not t or is_parked(tonumber(t))) and not (L.turns and redis.call("ZSCORE", L.turns, m)) then
      if is_squeezed(tonumber(t or "")) then squeeze(L, -cost_of(m)) end
      redis.call("ZREM", L.line, m, name)
    end
  end
end

-- join puts me into a set, the line or the turns: with my ticket, or behind all
local function join(L, set, at, now)
  local ticket = L.ticket and normal(L.ticket) or last_ticket(L)
  if L.turns_last > 0 and set ~= L.turns then redis.call("ZREM", L.turns, L.me) end
  if L.ticket and not L.in_turns and set ~= L.line then redis.call("ZREM", L.line, L.me) end
  local first = L.nobody
  mix(L)
  enlist(L, set, ticket, at)
  if not L.ticket and not first then clear(L, now) end
end

-- stand gives me a place that was promised an instant: in the line, or among the
-- turns while another rule holds me up
local function stand(L, among_turns, at, now)
  local set = among_turns and L.turns or L.line
  if L.ticket and not is_parked(L.ticket) and L.in_turns == among_turns then
    promise(L, at)
  else
    join(L, set, at, now)
  end
  keep_line(L, at, now)
end

-- step_aside parks me: my ticket stays good and holds up nobody
local function step_aside(L, at, now)
  if not L.ticket or is_parked(L.ticket) then return end
  if L.turns_last > 0 then redis.call("ZREM", L.turns, L.me) end
  redis.call("ZADD", L.line, int(L.ticket - PARK), L.me)
  keep_line(L, at, now)
end

-- follows says that only turns ahead of me put me off until an instant: then I do
-- not exist for jobs of other policies, as they do not
local function follows(L, at)
  return L.by_turns == at and L.by_ledger < at
end

-- stand_for gives me my places while a part puts me off until an instant, and
-- answers in whose line I wait, nil when I only follow turns. The groups before that
-- part admitted me: there I keep my turn. Who waits for a lease keeps none in the
-- rates of its key, nor of wider ones.
local function stand_for(P, binding, at, now)
  local bound, keeps = P[binding], nil
  for i, L in ipairs(P) do
    local admitted = L.group < bound.group or (L.group == bound.group and not bound.kind.lease)
    if i == binding and not follows(L, at) then keeps = i end
    if i == binding or (admitted and not L.kind.lease) then stand(L, i ~= keeps, at, now) else step_aside(L, at, now) end
  end
  return keeps
end
