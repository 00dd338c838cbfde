-- run_now.lua: a task that waits goes to the front of pending with a mark, by which the worker that
-- fetches it runs it without asking its rules. One that is pending already keeps its place there.
-- The worker takes the mark away before it runs the task, so the mark counts for one attempt.
--
-- KEYS[1]  due        sorted set of tasks, see taskid.lua, score = instant in microseconds
-- KEYS[2]  retry      asynq's sorted set of tasks to try again
-- KEYS[3]  pending    asynq's list of tasks to run; asynq pops its right end
-- KEYS[4]  scheduled  asynq's sorted set of tasks that start later
-- KEYS[5]  task       asynq's hash of the task
-- ARGV[1]  task       the task's id, see taskid.lua
-- ARGV[2]  now_ns     pending since, as asynq writes it
-- returns  one integer: 1 it is pending with a mark, 2 active, 3 deleted, 4 it waits for others of its group, 6 ended: archived or completed

local taskid = require("lib/taskid")
local deferred = require("queue/deferred")
local entry, long = taskid.entry, taskid.long
local STATUS, read_hw, ended, woken_as = deferred.STATUS, deferred.read_hw, deferred.ended, deferred.woken_as
local PENDING, GROUPED = 1, 4 -- beside those of STATUS

return function(keys, args)
  local due, pending, task = keys[1], keys[3], keys[5]
  local set_of_state = { retry = keys[2], scheduled = keys[4] }
  local short, now_ns = args[1], args[2]

  local h = redis.call("HMGET", task, "state", "hw")
  local state, d = h[1], read_hw(h[2])
  if ended(state) then return { ended(state) } end
  if state == "active" then return { STATUS.still_active } end
  if state ~= "pending" and not set_of_state[state] then return { GROUPED } end
  if set_of_state[state] then
    redis.call("ZREM", due, entry(short, d.record))
    redis.call("ZREM", set_of_state[state], long(short))
    redis.call("RPUSH", pending, long(short))
    redis.call("HSET", task, "state", "pending", "pending_since", now_ns, "hw_woken", now_ns, "hw", woken_as(d))
  end
  redis.call("HSET", task, "hw_now", "1")
  return { PENDING }
end
