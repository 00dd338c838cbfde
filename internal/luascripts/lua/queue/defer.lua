-- defer.lua: an active task goes back to asynq's retry set, to be woken at its
-- instant; nothing else about it changes.
--
-- KEYS[1]  task       asynq's hash of the task
-- KEYS[2]  active     asynq's list of running tasks
-- KEYS[3]  lease      asynq's sorted set of leases
-- KEYS[4]  retry      asynq's sorted set of tasks to try again, score in whole seconds
-- KEYS[5]  due        sorted set of tasks, see taskid.lua, score = instant in microseconds; expires an hour after the last
-- KEYS[6]  unique     asynq's lock of a unique task, or the task's hash again when it has none
-- ARGV[1]  task       the task's id, see taskid.lua
-- ARGV[2]  token      of the deferral, 8 bytes; the last 8 that were written are not written again
-- ARGV[3]  at_us      instant at which to wake it, see instant in deferred.lua
-- ARGV[4]  wait_us    from now to the instant: so much longer its unique lock lives
-- ARGV[5]  record     what it waits for, see WaitRecord.Text in internal/queuescripts/booking.go
-- ARGV[6]  postponed  1: its provider postponed it, which is counted in the task's hash
-- ARGV[7]  pool       4 bytes, who comes first to wake it; zeros for all at once
-- ARGV[8]  reason     2 bytes, see deferred.lua
-- returns  status OK, or the error NOT FOUND, as asynq's own scripts answer, when it is not active

local clock = require("lib/clock")
local numbers = require("lib/numbers")
local taskid = require("lib/taskid")
local deferred = require("queue/deferred")
local waiting = deferred.waiting
local ceil, max = math.ceil, math.max
local int, live = numbers.int, numbers.live
local entry, long = taskid.entry, taskid.long
local ANY, read_hw, deferred_as, instant, second_net = deferred.ANY, deferred.read_hw, deferred.deferred_as, deferred.instant, deferred.second_net

return function(keys, args)
  local task, active, lease, retry = keys[1], keys[2], keys[3], keys[4]
  local due, unique = keys[5], keys[6]
  local short, token, at, wait, record = args[1], args[2], tonumber(args[3]), tonumber(args[4]), args[5]
  local postponed, pool, reason, id = args[6] == "1", args[7], args[8], long(args[1])

  -- a copy of this call, whose first answer was lost, may come when the task
  -- runs again: that attempt is not its business
  local before = read_hw(redis.call("HGET", task, "hw"))
  if string.find(before.tokens, token, 1, true) then return redis.status_reply("OK") end
  if redis.call("LREM", active, 0, id) == 0 then return redis.error_reply("NOT FOUND") end
  redis.call("ZREM", lease, id) -- one that is missing must not cost the task

  local now = clock()
  at = instant(at, now)
  -- a promotion may have written an earlier due entry while the task was active, see retime.lua. It counts, and any pool may wake it
  local old_entry, new_entry = entry(short, before.record), entry(short, record)
  local promoted_at = tonumber(redis.call("ZSCORE", due, old_entry) or "")
  if promoted_at and promoted_at < at then at, pool = promoted_at, ANY end
  redis.call("ZADD", retry, second_net(at), id)
  redis.call("HSET", task, "state", "retry", "hw", deferred_as(second_net(at), pool, token, waiting(before.wait_bytes, now, reason), record, before))
  if postponed then redis.call("HINCRBY", task, "hw_postponed", 1) end
  redis.call("ZADD", due, int(at), new_entry)
  if promoted_at and old_entry ~= new_entry then redis.call("ZREM", due, old_entry) end -- now: it must not be empty in between, see wake.lua
  live(due, wait + 3600000000)
  if unique ~= task and redis.call("GET", unique) == id then
    redis.call("PEXPIRE", unique, int(max(0, redis.call("PTTL", unique)) + ceil(wait / 1000)))
  end
  return redis.status_reply("OK")
end
