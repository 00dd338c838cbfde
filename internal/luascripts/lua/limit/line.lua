-- line.lua: who waits on a key, in which order, and what they were promised.
--
-- line      sorted set, member "cost:job", score = ticket, which orders the line:
--           that of the one before plus ROOM for each permit of its cost. Who comes too late is parked: the same
--           ticket, PARK lower, so it holds up nobody and finds its turn again
-- turns     sorted set, the same, of the jobs of one policy that another of its
--           rules holds up: each keeps its turn among jobs of that policy, and does not exist for others
--
-- Behind the tickets (for the numbers see tickets.lua) stands in `line`, with scores TOLD higher than they are, what each
-- of both was told last: member "@cost:job", score = the instant; the member MIXED
-- while costs in the line differ; the member CLOSED until when the key is closed, and
-- those of close.lua with scores above all instants

-- line_ends is the rank behind the last who has a ticket in the line, counted once
local function line_ends(L)
  L.last = L.last or redis.call("ZCOUNT", L.line, "-inf", WAITING)
  return L.last
end

local NONE = {} -- stands for the late ones where nobody is, as of most calls; never written to

local function found_late(L, member, ticket)
  if L.late == NONE then L.late = {} end
  L.late[#L.late + 1] = int(ticket - PARK)
  L.late[#L.late + 1] = member
end

-- look finds who waits: the ranks from `first` to line_ends of the line, of which `front`
-- with its ticket is the first, and the ranks turn..turns_last-1 of the turns. Before
-- them are `parked` ones, and in `late`, as arguments of a ZADD that parks them,
-- those whose last promise is more than GRACE past, 20 of each at most. `leader` is the
-- first who is not parked yet, late or not; my place in the line and what I was told are
-- read with what the leader was. With only_line the turns are not read, and count as none.
-- The first of the line is v where that was read, and nothing written since.
local function look(L, now, only_line, v)
  L.parked, L.first, L.last, L.late, L.leader, L.front = 0, 0, 0, NONE, nil, nil
  L.turn, L.turns_last, L.turns_late, L.turn_front = 0, 0, NONE, nil
  L.turn_told, L.in_line, L.told_me = nil, nil, nil
  if L.nobody then return end
  v = v or redis.call("ZRANGE", L.line, "0", "0", "WITHSCORES")
  local m, ticket = first_of(v)
  if m then L.last = nil end
  if m and is_parked(ticket) then
    L.parked = redis.call("ZCOUNT", L.line, "-inf", PARKED)
    L.first = L.parked
    m, ticket = at_rank(L.line, L.first)
  end
  local p
  if L.me == "" or L.me == m then
    p = m and told(L, m)
    if L.me == m then L.in_line, L.told_me = ticket, p end
  else
    local u = redis.call("ZMSCORE", L.line, L.me, "@" .. L.me, "@" .. (m or L.me))
    L.in_line, L.told_me, p = tonumber(u[1] or ""), u[2] and u[2] - TOLD, u[3] and u[3] - TOLD
  end
  L.leader = m
  while m do
    if #L.late == 40 or in_time(L, m, p, now) then
      L.front, L.front_ticket, L.front_told = m, ticket, p
      break
    end
    found_late(L, m, ticket)
    L.first = L.first + 1
    m, ticket = at_rank(L.line, L.first)
    p = m and told(L, m)
  end
  if only_line or not L.turns or L.no_turns then return end
  v = redis.call("ZRANGE", L.turns, "0", "1", "WITHSCORES") -- where there is one at most, that is all
  L.turns_last = #v < 4 and #v / 2 or max(2, redis.call("ZCARD", L.turns)) -- miniredis may let them go meanwhile
  L.no_turns = L.turns_last == 0
  m, ticket = v[1], tonumber(v[2])
  while m do
    p = m ~= L.me and told(L, m) or nil
    if #L.turns_late == 20 or in_time(L, m, p, now) then
      L.turn_front, L.turn_ticket, L.turn_told = m, ticket, p
      break
    end
    found_late(L, m, ticket)
    if L.turns_late == NONE then L.turns_late = {} end
    L.turns_late[#L.turns_late + 1] = m
    L.turn = L.turn + 1
    m, ticket = at_rank(L.turns, L.turn)
  end
end

-- park writes what look found late. L.missed are those of them who wait for a lease
local function park(L)
  if #L.late == 0 then return end
  redis.call("ZADD", L.line, unpack(L.late))
  if L.kind.lease then
    L.missed = L.missed or {}
    for i = 2, #L.late, 2 do L.missed[#L.missed + 1] = L.late[i] end
  end
  if #L.turns_late > 0 then redis.call("ZREM", L.turns, unpack(L.turns_late)) end
  live(L.line, LATE) -- miniredis may have let it go since it was read
end

-- find is my ticket, and whether it is one in the turns
local function find(L)
  L.ticket, L.in_turns = L.in_line, false
  if L.ticket or L.me == "" or L.turns_last == 0 then return end
  L.ticket = L.turn_front == L.me and L.turn_ticket or tonumber(redis.call("ZSCORE", L.turns, L.me) or "")
  L.in_turns = L.ticket ~= nil
end

-- below counts the members of a set with a ticket under this one, who are not parked
local function below(set, ticket)
  return redis.call("ZCOUNT", set, LIVE, "(" .. int(ticket))
end

-- permits of so many who wait, and so many turns, from a ticket on. Equal costs are
-- counted exactly; with mixed costs tickets bound it from above, with the costs of
-- those who were squeezed in between.
local function permits(L, waiting, turns, from)
  if not L.mixed then return (waiting + turns) * cost_of(L.waiting > 0 and L.front or L.turn_front) end
  local ends = -PARK
  if L.waiting > 0 then
    local m, ticket = at_rank(L.line, L.first + L.waiting - 1)
    ends = ticket + cost_of(m) * ROOM
  end
  if L.turns_ahead > 0 then
    local m, ticket = at_rank(L.turns, L.turn + L.turns_ahead - 1)
    ends = max(ends, ticket + cost_of(m) * ROOM)
  end
  return ceil((ends - from) / ROOM) + (mark(L, SQUEEZED) or PARK) - PARK
end

-- rank finds how much is ahead of me, or of a newcomer: `ahead` permits; and
-- `behind`, {from when on, permits ...}: I come behind turns that have an instant of
-- their own, so many permits after it
local function rank(L)
  L.waiting, L.turns_ahead, L.ahead, L.behind = 0, L.turns_last - L.turn, 0, nil
  if L.ticket then
    local ticket = normal(L.ticket)
    if L.front and L.front ~= L.me then L.waiting = max(0, L.parked + below(L.line, ticket) - L.first) end
    if L.turns_ahead > 0 then L.turns_ahead = L.turn_front == L.me and 0 or max(0, below(L.turns, ticket) - L.turn) end
  elseif L.front then
    L.waiting = line_ends(L) - L.first
  end
  if L.waiting + L.turns_ahead == 0 then return end
  local first = L.waiting > 0 and L.front_ticket or L.turn_ticket
  if L.turns_ahead > 0 then first = min(first, L.turn_ticket) end
  L.ahead = permits(L, L.waiting, L.turns_ahead, first)
  if L.turns_ahead == 0 then return end
  L.behind = {}
  local m, ticket, p, left = L.turn_front, L.turn_ticket, L.turn_told, L.turns_ahead
  repeat
    local waiting = L.waiting > 0 and max(0, L.waiting - max(0, L.parked + below(L.line, ticket) - L.first)) or 0
    L.behind[#L.behind + 1] = p or 0
    L.behind[#L.behind + 1] = permits(L, waiting, left, ticket)
    local more = left > 1
    if more then
      left = 1
      m, ticket = at_rank(L.turns, L.turn + L.turns_ahead - 1)
      p = told(L, m)
    end
  until not more
end

-- squeeze adds to the permits of those who stand between two whole ROOMs, or takes
-- them off when one leaves who stood there by its ticket
local function squeeze(L, permits)
  local sum = (mark(L, SQUEEZED) or PARK) + permits
  if sum > PARK then redis.call("ZADD", L.line, int(sum + TOLD), SQUEEZED) else redis.call("ZREM", L.line, SQUEEZED) end
end

local function is_squeezed(ticket)
  return ticket and ticket % ROOM ~= 0
end

local function leave(L)
  if is_squeezed(L.ticket) then squeeze(L, -L.want) end
  redis.call("ZREM", L.line, L.me, "@" .. L.me)
  if L.turns and not L.no_turns then redis.call("ZREM", L.turns, L.me) end
  if not L.marked then return end
  L.last = nil
  if line_ends(L) == 0 and not (L.turns and redis.call("ZCARD", L.turns) > 0) then redis.call("ZREM", L.line, MIXED, SQUEEZED, LAST, IN) end
end

-- closed is until when nothing goes on a key: it is closed, or its rule is. It notes
-- whether costs differ, too, whether anything is noted of the line, and that nobody has
-- a place. The second answer is for look
local function closed(L, now)
  L.mixed, L.marked = nil, false
  local v, at = redis.call("ZRANGE", L.line, "0", "0", "WITHSCORES"), L.rule_closed
  L.nobody = not v[1] -- a turn has its promise there
  if not L.nobody and redis.call("ZCOUNT", L.line, NOTED, "+inf") > 0 then -- beside CLOSED there is SINCE
    L.marked = true
    local u = redis.call("ZMSCORE", L.line, CLOSED, MIXED)
    at, L.mixed = max(at, u[1] and u[1] - TOLD or 0), u[2]
  end
  return at > now and at or 0, v
end

-- anybody says that somebody waits, late or not
local function anybody(L)
  return redis.call("ZCOUNT", L.line, LIVE, WAITING) > 0
end

-- tell appends to a reply that a member may come at an instant: {part, at, job}.
-- Whoever reads it re-times that job
local function tell(L, at, member, reply)
  reply[#reply + 1] = L.part
  reply[#reply + 1] = at
  reply[#reply + 1] = string.match(member, ":(.*)$")
end

-- sooner tells a member who was told p, when it may come earlier than that
local function sooner(L, now, member, p, reply)
  local at = slot(L, max(now, L.closed), 0, cost_of(member))
  if (p or 0) - at > 1000 then tell(L, at, member, reply) end
end

-- missed tells those who were parked to come: their hint may have died with a process,
-- and what they know otherwise may be an instant far ahead
local function missed(P, now, reply)
  for _, L in ipairs(P) do
    for _, m in ipairs(L.missed or NONE) do tell(L, now, m, reply) end
  end
  return reply
end

-- next_turns tells who may come earlier than promised: the first who waits and, when
-- asked for, the first turn; of leases, see offer
local function next_turns(L, now, reply, turn_too)
  local me = L.me
  L.me = ""
  look(L, now, not (turn_too or L.kind.lease))
  if L.kind.lease and #L.late > 0 then -- or the next call would tell them again
    park(L)
    look(L, now)
  end
  L.me = me
  if L.front and L.kind.lease then L.kind.offer(L, now, reply) end
  if L.front and not L.kind.lease then sooner(L, now, L.front, L.front_told, reply) end
  if turn_too and L.turn_front then sooner(L, now, L.turn_front, L.turn_told, reply) end
end
