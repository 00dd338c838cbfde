-- get_task.lua: where a task is, and when it comes, without changing it.
--
-- KEYS[1]  task       asynq's hash of the task
-- KEYS[2]  due        sorted set of tasks, see taskid.lua, score = instant in microseconds
-- KEYS[3]  retry      asynq's sorted set of tasks to try again, score in whole seconds
-- KEYS[4]  scheduled  asynq's sorted set of tasks that start later, score in whole seconds
-- ARGV[1]  id         of the task, see taskid.lua
-- returns  {now_us, state, pools_wake, at_us, record, waits, run_now, woken}: asynq's state, empty when the task is gone; 1 when pools wake it,
--          and then the instant and what it waits for; otherwise asynq's score, 0 when it has none; 8 bytes about its waiting, see
--          deferred.lua; 1 when an operator lets it run now; when it was woken last, in nanoseconds since 1970, empty for never;
--          integers, but for state, record, waits and woken, which are text

local clock = require("lib/clock")
local taskid = require("lib/taskid")
local deferred = require("queue/deferred")
local entry, long = taskid.entry, taskid.long
local read_hw, score_is_ours = deferred.read_hw, deferred.score_is_ours

return function(keys, args)
  local task, due = keys[1], keys[2]
  local set_of_state = { retry = keys[3], scheduled = keys[4] }
  local short = args[1]

  local now = clock()
  local h = redis.call("HMGET", task, "state", "hw", "hw_now", "hw_woken")
  local state, d = h[1] or "", read_hw(h[2])
  local run_now, woken = h[3] and 1 or 0, h[4] or ""
  local score = set_of_state[state] and tonumber(redis.call("ZSCORE", set_of_state[state], long(short)) or "")
  if not score then return { now, state, 0, 0, "", d.wait_bytes, run_now, woken } end
  local at = score_is_ours(d, score) and tonumber(redis.call("ZSCORE", due, entry(short, d.record)) or "")
  if not at then return { now, state, 0, score * 1000000, "", d.wait_bytes, run_now, woken } end
  return { now, state, 1, at, d.record, d.wait_bytes, run_now, woken }
end
