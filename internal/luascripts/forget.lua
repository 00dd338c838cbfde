-- forget.lua: drop what a deferral left of a task that runs now: neither a
-- hint nor its old instant may end the back-off of an error that it returns.
--
-- KEYS[1]  due        sorted set of tasks, see taskid.lua, score = instant in microseconds
-- KEYS[2]  places     hash, task -> what it waits for
-- KEYS[3]  task       asynq's hash of the task
-- ARGV[1]  task       the task's id, see taskid.lua
-- returns  1 when it was active and nothing is left, 0 when it is not active: then it may have been deferred anew
local due, places, task, short = KEYS[1], KEYS[2], KEYS[3], ARGV[1]

if redis.call("HGET", task, "state") ~= "active" then return 0 end

redis.call("ZREM", due, short)
redis.call("HDEL", places, short)
return 1
