-- wake.lua: deferred tasks go to the head of pending, in the order given, and
-- behind those that were woken before and still wait there. While workers are
-- scarce one other task goes between them, so that the rest does not starve.
--
-- KEYS[1]  due        sorted set of tasks, see taskid.lua, score = instant in microseconds
-- KEYS[2]  retry      asynq's sorted set of tasks to try again
-- KEYS[3]  pending    asynq's list of tasks to run; asynq pops its right end
-- KEYS[4]  places     hash, task -> what it waits for
-- KEYS[5]  scheduled  asynq's sorted set of tasks that start later: where those are that were booked when they were enqueued
-- KEYS[6+] tasks      asynq's hash of each task, ARGV[4] of them
-- ARGV[1]  now_ns     pending since, as asynq writes it; also the mark of a woken task
-- ARGV[2]  task       prefix of asynq's task hashes of this queue, which carry the same tag
-- ARGV[3]  fair       1: one other task goes before these
-- ARGV[4]  count      how many tasks, 1 to 1000
-- ARGV[5+] tasks      the first to run first, see taskid.lua
-- returns  count integers: 1 woken, 2 still active (ask again), 3 gone, 4 not ours any more, 5 not yet: 100 wait in front
local due, pending, places = KEYS[1], KEYS[3], KEYS[4]
local waits = { retry = KEYS[2], scheduled = KEYS[5] } -- by state
local now_ns, prefix, fair, count = ARGV[1], ARGV[2], ARGV[3] == "1", tonumber(ARGV[4])

-- a task that was woken, and only that, has been pending since its mark
local function woken(id)
  local h = redis.call("HMGET", prefix .. id, "hw_woken", "pending_since")
  return h[1] and h[1] == h[2]
end

-- front[first] and all behind it stay in front: who was woken before, with the
-- other tasks that took turns with them
local front = redis.call("LRANGE", pending, -101, -1)
local first = #front + 1
while first > 1 do
  if woken(front[first - 1]) then
    first = first - 1
  elseif first > 2 and woken(front[first - 2]) then
    first = first - 2
  else
    break
  end
end
local full = #front - first >= 99
if fair and first > 1 then first = first - 1 end
local ahead = #front - first + 1

local reply, aside = {}, 0
for i = count, 1, -1 do
  local task, short = KEYS[5 + i], ARGV[4 + i]
  local h = redis.call("HMGET", task, "state", "hw")
  local state = h[1]
  if state == "active" then
    reply[i] = 2
  elseif full and waits[state] then
    reply[i] = 5
  else
    local id = long(short)
    redis.call("ZREM", due, short)
    local ours = redis.call("HDEL", places, short) == 1 and scored(h[2])
    reply[i] = state and 4 or 3
    -- another score than ours is a user's own back-off, or later start: it is not ours to end
    if waits[state] and ours and tonumber(redis.call("ZSCORE", waits[state], id) or "") == ours then
      redis.call("ZREM", waits[state], id)
      while aside < ahead do
        redis.call("RPOP", pending)
        aside = aside + 1
      end
      redis.call("RPUSH", pending, id)
      redis.call("HSET", task, "state", "pending", "pending_since", now_ns, "hw_woken", now_ns)
      reply[i] = 1
    end
  end
end
for i = first, first + aside - 1 do redis.call("RPUSH", pending, front[i]) end
return reply
