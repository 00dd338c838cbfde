-- line.lua: who waits on a key, in which order, and what they were promised.
--
-- line      sorted set, member "cost:job", score = ticket, which orders the line:
--           that of the one before plus its cost. Who comes too late is parked: the same ticket, PARK lower, so it
--           holds up nobody and finds its turn again
-- promised  sorted set, the same members, score = the instant told last, and
--           the member MIXED while costs in the line differ

local MIXED = "mixed"
local GRACE = 100000 -- how long after its last promise a head keeps its place
local LATE = 3600000000 -- how long it stays parked
local PARK = 4503599627370496
local PARKED, LIVE = "(-2251799813685248", "-2251799813685248" -- below and above

local function cost_of(member)
  return tonumber(string.match(member, "^%d+"))
end

local function is_parked(ticket)
  return ticket < -PARK / 2
end

-- at_rank is the member at a rank and its ticket
local function at_rank(line, rank)
  local v = redis.call("ZRANGE", line, rank, rank, "WITHSCORES")
  return v[1], tonumber(v[2])
end

-- look is who waits: the ranks first..last-1, of which `head` with its ticket is the first.
-- Before them are `parked` ones, and in `late`, as arguments of a ZADD that parks
-- them, those at the head whose last promise is more than GRACE past, 20 at most.
local function look(line, promised, me, now)
  local last = redis.call("ZCARD", line)
  if last == 0 then return 0, 0, 0, {} end
  local parked = redis.call("ZCOUNT", line, "-inf", PARKED)
  local first, late = parked, {}
  while first < last do
    local m, ticket = at_rank(line, first)
    if m == me or #late == 40 then return first, last, parked, late, m, ticket end
    local p = redis.call("ZSCORE", promised, m)
    if p and tonumber(p) + GRACE >= now then return first, last, parked, late, m, ticket end
    late[#late + 1] = int(ticket - PARK)
    late[#late + 1] = m
    first = first + 1
  end
  return first, last, parked, late
end

local function park(line, late)
  if #late > 0 then redis.call("ZADD", line, unpack(late)) end
end

-- permits_before counts the permits of those from rank `first` up to `rank`.
-- Equal costs are counted exactly; with mixed costs tickets bound it from above.
local function permits_before(line, promised, first, rank)
  if rank <= first then return 0 end
  local head, ticket = at_rank(line, first)
  if not redis.call("ZSCORE", promised, MIXED) then return (rank - first) * cost_of(head) end
  local before, last = at_rank(line, rank - 1)
  return last + cost_of(before) - ticket
end

-- place_of is where a ticket stands among those who are not parked, or would
local function place_of(line, parked, ticket)
  if is_parked(ticket) then ticket = ticket + PARK end
  return parked + redis.call("ZCOUNT", line, LIVE, "(" .. int(ticket))
end

-- mix notes that costs differ, when mine is not that of the first who waits
local function mix(line, promised, parked, cost)
  local head = at_rank(line, parked)
  if head and cost_of(head) ~= cost then redis.call("ZADD", promised, "+inf", MIXED) end
end

-- join puts me at the line's end, and clears away who was late for too long
local function join(line, promised, parked, me, cost, at, now)
  local ticket = 0
  for _, rank in ipairs({ parked - 1, -1 }) do -- the last who is parked, and the last of all
    local m, t = at_rank(line, rank)
    if m then ticket = max(ticket, (is_parked(t) and t + PARK or t) + cost_of(m)) end
  end
  redis.call("ZADD", line, int(ticket), me)
  redis.call("ZADD", promised, int(at), me)
  mix(line, promised, parked, cost)
  local gone = redis.call("ZRANGEBYSCORE", promised, "-inf", int(now - LATE), "LIMIT", 0, 20)
  for _, m in ipairs(gone) do
    local t = redis.call("ZSCORE", line, m)
    if not t or is_parked(tonumber(t)) then
      redis.call("ZREM", line, m)
      redis.call("ZREM", promised, m)
    end
  end
end

-- rejoin takes me, who was parked, back to my turn
local function rejoin(line, promised, parked, me, cost, at)
  redis.call("ZADD", promised, int(at), me)
  mix(line, promised, parked, cost)
  redis.call("ZINCRBY", line, int(PARK), me)
end

-- join_head gives me the first place: a grant that came back
local function join_head(line, promised, me, cost, at)
  local parked = redis.call("ZCOUNT", line, "-inf", PARKED)
  local ticket
  for _, rank in ipairs({ 0, parked }) do -- the first who is parked, and the first who is not
    local m, t = at_rank(line, rank)
    if m then ticket = min(ticket or t + PARK, is_parked(t) and t + PARK or t) end
  end
  redis.call("ZADD", promised, int(at), me)
  mix(line, promised, parked, cost)
  redis.call("ZADD", line, int(ticket and ticket - cost or 0), me)
end

-- both keys outlive the last promise by the time that somebody stays parked
local function keep_line(line, promised, at, now)
  live(line, at - now + LATE)
  live(promised, at - now + LATE)
end

local function leave(line, promised, me)
  redis.call("ZREM", line, me)
  redis.call("ZREM", promised, me)
  if redis.call("ZCARD", line) == 0 then redis.call("ZREM", promised, MIXED) end
end

-- next_turn is the first who is not late, and its instant, when that is earlier
-- than promised: whoever reads it re-times that job. "" and 0 when there is
-- nothing to do.
local function next_turn(L, line, promised, now)
  local _, _, _, _, head = look(line, promised, "", now)
  if not head then return "", 0 end
  local at = slot(L, now, 0, cost_of(head))
  local told = tonumber(redis.call("ZSCORE", promised, head) or "0")
  if told - at <= 1000 then return "", 0 end
  return string.match(head, ":(.*)$"), at
end
