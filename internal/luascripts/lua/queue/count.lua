-- count.lua: how many tasks of a queue are where, and how many deferred ones come due until when.
--
-- KEYS[1]  due        sorted set of tasks, see taskid.lua, score = instant in microseconds
-- KEYS[2]  pending    asynq's list of tasks to run
-- KEYS[3]  active     asynq's list of running tasks
-- KEYS[4]  scheduled  asynq's sorted set of tasks that start later
-- KEYS[5]  retry      asynq's sorted set of tasks to try again
-- KEYS[6]  archived   asynq's sorted set of tasks that ended by failing
-- KEYS[7]  paused     asynq's mark of a paused queue
-- ARGV[1]  count      how many spans, 0 to 100
-- ARGV[2+] spans      microseconds from now
-- returns  {now_us, pending, active, scheduled, retry, archived, paused, due, first_us, spans, then per span how many come due within
--          it}; due counts the deferred and booked tasks, first_us is the first of their instants or 0; paused is 0 or 1

local clock = require("lib/clock")
local numbers = require("lib/numbers")
local int = numbers.int

return function(keys, args)
  local due, pending, active, scheduled, retry, archived, paused = keys[1], keys[2], keys[3], keys[4], keys[5], keys[6], keys[7]
  local count = tonumber(args[1])

  local now = clock()
  local first = redis.call("ZRANGE", due, 0, 0, "WITHSCORES")
  local reply = {
    now, redis.call("LLEN", pending), redis.call("LLEN", active), redis.call("ZCARD", scheduled), redis.call("ZCARD", retry),
    redis.call("ZCARD", archived), redis.call("EXISTS", paused), redis.call("ZCARD", due), tonumber(first[2] or "0"), count,
  }
  for i = 1, count do
    reply[10 + i] = redis.call("ZCOUNT", due, "-inf", int(now + tonumber(args[1 + i])))
  end
  return reply
end
