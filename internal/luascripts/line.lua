-- line.lua: who waits on a key, in which order, and what they were promised.
--
-- line      sorted set, member "cost:job", score = ticket; a ticket is the
--           number of permits that were ever booked before it in this line
-- promised  sorted set, the same members, score = the instant told last; it
--           also keeps those who came too late and left the line (their turn
--           stays), and the member MIXED while costs in the line differ

local MIXED = "mixed"
local GRACE = 100000 -- how long after its last promise a head keeps its place
local LATE = 3600000000 -- how long its turn stays

local function cost_of(member)
  return tonumber(string.match(member, "^%d+"))
end

-- late_heads are those at the head whose last promise is more than GRACE past,
-- 20 at most: they hold up nobody
local function late_heads(line, promised, me, now)
  local late = {}
  for i = 0, 19 do
    local v = redis.call("ZRANGE", line, i, i)
    if not v[1] or v[1] == me then break end
    local p = redis.call("ZSCORE", promised, v[1])
    if p and tonumber(p) + GRACE >= now then break end
    late[i + 1] = v[1]
  end
  return late
end

local function drop_late(line, late)
  if #late > 0 then redis.call("ZREM", line, unpack(late)) end
end

-- at_rank is the member at a rank and its ticket
local function at_rank(line, rank)
  local v = redis.call("ZRANGE", line, rank, rank, "WITHSCORES")
  return v[1], tonumber(v[2])
end

-- permits_before counts the permits of those between the first `skip` and
-- `rank`. Equal costs are counted exactly; with mixed costs tickets bound it
-- from above.
local function permits_before(line, promised, skip, rank)
  if rank <= skip then return 0 end
  local head, ticket = at_rank(line, skip)
  if not redis.call("ZSCORE", promised, MIXED) then return (rank - skip) * cost_of(head) end
  local before, last = at_rank(line, rank - 1)
  return last + cost_of(before) - ticket
end

-- join puts me at the line's end, with room for what is still promised
local function join(line, promised, me, cost, at, now)
  local last, ticket = at_rank(line, -1)
  redis.call("ZADD", line, int(last and ticket + cost_of(last) or 0), me)
  redis.call("ZADD", promised, int(at), me)
  if not last then
    redis.call("ZREM", promised, MIXED)
  elseif cost_of(last) ~= cost then
    redis.call("ZADD", promised, "+inf", MIXED)
  end
  local gone = redis.call("ZRANGEBYSCORE", promised, "-inf", int(now - LATE), "LIMIT", 0, 20)
  for _, m in ipairs(gone) do
    if not redis.call("ZSCORE", line, m) then redis.call("ZREM", promised, m) end
  end
end

-- join_head gives me the first place: somebody late, or a grant that came back
local function join_head(line, promised, me, cost, at)
  local head, ticket = at_rank(line, 0)
  redis.call("ZADD", line, int(head and ticket - cost or 0), me)
  redis.call("ZADD", promised, int(at), me)
  if head and cost_of(head) ~= cost then redis.call("ZADD", promised, "+inf", MIXED) end
end

-- both keys outlive the last promise by the time that a late turn stays
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
local function next_turn(L, n, W, line, promised, now)
  local late = late_heads(line, promised, "", now)
  local head = redis.call("ZRANGE", line, #late, #late)[1]
  if not head then return "", 0 end
  local at = slot(L, n, W, now, cost_of(head))
  local told = tonumber(redis.call("ZSCORE", promised, head) or "0")
  if told - at <= 1000 then return "", 0 end
  return string.match(head, ":(.*)$"), at
end
