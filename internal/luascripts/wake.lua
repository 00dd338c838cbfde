-- wake.lua: deferred tasks go to the head of pending, in the order given.
--
-- KEYS[1]  due        sorted set, score = instant of a deferred task in microseconds
-- KEYS[2]  retry      asynq's sorted set of tasks to try again
-- KEYS[3]  pending    asynq's list of tasks to run; asynq pops its right end
-- KEYS[4]  places     hash, task id -> "retry_s for"
-- KEYS[5+] tasks      asynq's hash of each task, ARGV[2] of them
-- ARGV[1]  now_ns     pending since, as asynq writes it
-- ARGV[2]  count      how many tasks, 1 to 1000
-- ARGV[3+] ids        the tasks' ids, the first to run first
-- returns  count integers: 1 woken, 2 still active (ask again), 3 gone, 4 not ours any more
local due, retry, pending, places = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local now_ns, count = ARGV[1], tonumber(ARGV[2])

local reply = {}
for i = count, 1, -1 do
  local task, id = KEYS[4 + i], ARGV[2 + i]
  local state = redis.call("HGET", task, "state")
  if state == "active" then
    reply[i] = 2
  else
    local place = redis.call("HGET", places, id)
    local ours = place and string.match(place, "^%d+")
    redis.call("ZREM", due, id)
    redis.call("HDEL", places, id)
    reply[i] = state and 4 or 3
    -- another score than ours is a user's own back-off: it is not ours to end
    if state == "retry" and ours and redis.call("ZSCORE", retry, id) == ours then
      redis.call("ZREM", retry, id)
      redis.call("RPUSH", pending, id)
      redis.call("HSET", task, "state", "pending", "pending_since", now_ns)
      reply[i] = 1
    end
  end
end
return reply
