-- forget.lua: drop what a deferral left of a task that runs now: neither a
-- hint nor its old instant may end the back-off of an error that it returns.
--
-- KEYS[1]  due        sorted set, score = instant of a deferred task in microseconds
-- KEYS[2]  places     hash, task id -> "retry_s for"
-- KEYS[3]  task       asynq's hash of the task
-- ARGV[1]  id         the task's id
-- returns  1 when it was active and nothing is left, 0 when it is not active: then it may have been deferred anew
local due, places, task, id = KEYS[1], KEYS[2], KEYS[3], ARGV[1]

if redis.call("HGET", task, "state") ~= "active" then return 0 end

redis.call("ZREM", due, id)
redis.call("HDEL", places, id)
return 1
