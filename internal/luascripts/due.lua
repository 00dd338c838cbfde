-- due.lua: what is due on a queue, and when the next one is.
--
-- KEYS[1]  due        sorted set of tasks, see taskid.lua, score = instant in microseconds
-- ARGV[1]  task       prefix of asynq's task hashes of this queue, which carry the same tag
-- ARGV[2]  lead_us    how long before its instant a task is due
-- ARGV[3]  most       how many to list, 1 to 1000
-- returns  {now_us, next_us, listed, then per task: at_us, task, state, for, pool}; next_us is the first
--          instant that is not listed, 0 when there is none; integers, but for task, state, for and pool, which are text
local due, prefix, lead, most = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local now = clock()
local v = redis.call("ZRANGEBYSCORE", due, "-inf", int(now + lead), "WITHSCORES", "LIMIT", 0, most)
local reply = { now, 0, #v / 2 }
for i = 1, #v, 2 do
  local short, what = parted(v[i])
  local h = redis.call("HMGET", prefix .. long(short), "state", "hw")
  reply[#reply + 1] = tonumber(v[i + 1])
  reply[#reply + 1] = short
  reply[#reply + 1] = h[1] or ""
  reply[#reply + 1] = what
  reply[#reply + 1] = pool_of(h[2])
end
local following = redis.call("ZRANGE", due, #v / 2, #v / 2, "WITHSCORES")
reply[2] = tonumber(following[2] or "0")
return reply
