-- forget.lua: drop what a deferral left of a task that runs now: neither a
-- promotion nor its old instant may end the back-off of an error that it returns.
--
-- KEYS[1]  due        sorted set of tasks, see taskid.lua, score = instant in microseconds
-- KEYS[2]  task       asynq's hash of the task
-- ARGV[1]  task       the task's id, see taskid.lua
-- ARGV[2]  record     of which entry, by what the task waited for; empty for the one that it has. Of another, which was left of a
--                     deleted task of this id, nothing else is touched
-- returns  1 when it was active and nothing is left, 0 when it is not active: then it may have been deferred anew

local taskid = require("lib/taskid")
local deferred = require("queue/deferred")
local entry = taskid.entry
local NOT_OURS, NO_WAIT, read_hw, ended_as = deferred.NOT_OURS, deferred.NO_WAIT, deferred.read_hw, deferred.ended_as

return function(keys, args)
  local due, task, short, record = keys[1], keys[2], args[1], args[2]

  local h = redis.call("HMGET", task, "state", "hw")
  if h[1] ~= "active" then return 0 end
  local d = read_hw(h[2])

  if record ~= "" and record ~= d.record then
    redis.call("ZREM", due, entry(short, record))
    return 1
  end
  redis.call("ZREM", due, entry(short, d.record))
  if d.score ~= NOT_OURS or d.wait_bytes ~= NO_WAIT then redis.call("HSET", task, "hw", ended_as(d)) end
  return 1
end
