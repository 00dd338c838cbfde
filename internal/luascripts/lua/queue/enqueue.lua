-- enqueue.lua: put new tasks into a queue as asynq's own scripts do: pending, or
-- scheduled; or booked: scheduled and due at the instant of a place in a line. A
-- copy of a call changes nothing and gets the same answer.
--
-- KEYS[1]  pending    asynq's list of tasks to run
-- KEYS[2]  scheduled  asynq's sorted set of tasks that start later, score in whole seconds
-- KEYS[3]  due        sorted set of tasks, see taskid.lua, score = instant in microseconds; expires an hour after the last; also the
--                     channel on which a new instant is told, as microseconds from now, when pools may not look for it by themselves
-- KEYS[4]  sent       string, what this call answered, a letter a task; lives for a minute
-- KEYS[5+] tasks      of each: asynq's hash of the task, and its lock, or the hash again when it is not unique
-- ARGV[1]  count      how many tasks, 1 to 100
-- ARGV[2+] per task   its id, see taskid.lua; the token of this enqueueing, 8 bytes; asynq's message; how it is put: "pending",
--                     "scheduled" or "booked"; when: nanoseconds since when it is pending, asynq's score, or the instant in
--                     microseconds, see instant in deferred.lua; what it waits for, when booked; life of the lock in seconds, 0 for none;
--                     and 2 bytes, the reason why a booked one waits,
--                     see deferred.lua
-- returns  count integers, asynq's own: 1 enqueued, 0 the task exists, -1 the lock is another's

local clock = require("lib/clock")
local numbers = require("lib/numbers")
local insert_task = require("queue/insert_task")
local RESENT_WITHIN, int, life = numbers.RESENT_WITHIN, numbers.int, numbers.life
local put, put_and_publish = insert_task.put, insert_task.put_and_publish

return function(keys, args)
  local queue, sent = { pending = keys[1], scheduled = keys[2], due = keys[3] }, keys[4]
  local count, FIELDS = tonumber(args[1]), 8

  local now = clock()
  local reply = {}
  -- a copy may come when the task has run, and is gone
  local answered = redis.call("GET", sent) or ""
  for i = 1, #answered do reply[i] = string.byte(answered, i) - 98 end
  if #reply == count then return reply end

  local letters = {}
  for i = 1, count do
    reply[i] = put(args, queue, now, keys[3 + 2 * i], keys[4 + 2 * i], FIELDS * (i - 1) + 2)
    letters[i] = string.char(reply[i] + 98)
  end
  redis.call("SET", sent, table.concat(letters), "PX", int(life(RESENT_WITHIN)))
  put_and_publish(queue, now)
  return reply
end
