-- batchdrop.lua: what waits of a cancelled batch is deleted, asynq's tasks and all; what
-- runs is left to its end; what has ended unseen is counted. What is pending behind many
-- tasks is left to the pools, which drop it when its turn comes: a list is searched from
-- its end, and a long one for as long as Redis may be held up.
--
-- KEYS[1]  pending    asynq's list of tasks to run
-- KEYS[2]  scheduled  asynq's sorted set of tasks that start later
-- KEYS[3]  retry      asynq's sorted set of tasks to try again
-- KEYS[4]  due        sorted set of tasks, see taskid.lua, score = instant in microseconds
-- KEYS[5]  record     hash of the batch
-- KEYS[6]  unfinished sorted set of its elements that were enqueued and have not ended, score = position
-- KEYS[7]  ahead      sorted set of its elements that are settled and not before the cursor
-- KEYS[8]  batches    sorted set of the ids of batches that have not ended
-- KEYS[9+] tasks      asynq's hash of each task
-- ARGV[1]  id         of the batch
-- ARGV[2]  count      how many elements, 1 to 100
-- ARGV[3+] elements   of each: its id, and its task, see taskid.lua
-- returns  {status, now_us, unfinished, 1 when all of it is gone by this, done, failed, dropped, then per element: code, record}; status: 0 there
--          is no such batch, or it is not cancelled; 5 it is of a newer schema; code: 0 it runs, or is pending far behind, 1 deleted, 2
--          was gone or done, 3 had failed, 4 is not among the unfinished; record:
--          what it waited for, text

local clock = require("lib/clock")
local numbers = require("lib/numbers")
local taskid = require("lib/taskid")
local deferred = require("queue/deferred")
local batch = require("batch/batch")
local floor, min = math.floor, math.min
local int = numbers.int
local entry, long = taskid.entry, taskid.long
local read_hw = deferred.read_hw
local NEWER, finish, newer = batch.NEWER, batch.finish, batch.newer

return function(keys, args)
  local pending, due = keys[1], keys[4]
  local waits = { scheduled = keys[2], retry = keys[3] } -- by state
  local batch = { record = keys[5], unfinished = keys[6], ahead = keys[7], batches = keys[8], id = args[1] }
  local count = tonumber(args[2])
  local COUNTED = { "dropped", "done", "failed" } -- by code
  local SCAN, SHORT = 20000, 2000 -- how many pending tasks one call scans, a third of a millisecond's; a list that is short

  local now = clock()
  if newer(batch) then return { NEWER, now, 0, 0, 0, 0, 0 } end
  if redis.call("HGET", batch.record, "state") ~= "cancelled" then return { 0, now, 0, 0, 0, 0, 0 } end

  -- unlist takes a task off the list of those that are pending, from its end, where the
  -- oldest stand. Of a long list each task has its share of SCAN, of a short one what is
  -- left of them
  local to_scan, listed = SCAN, nil
  local function unlist(id, others)
    listed = listed or redis.call("LLEN", pending)
    local most = listed <= SHORT and to_scan or floor(to_scan / (others + 1))
    if most < 1 then return 0 end
    local at = redis.call("LPOS", pending, id, "RANK", -1, "MAXLEN", int(most))
    to_scan = to_scan - (at and 2 * (listed - at) or min(most, listed))
    if not at then return 0 end
    listed = listed - 1
    return redis.call("LREM", pending, -1, id)
  end

  -- drop takes a task out of wherever it waits
  local function drop(task, short, others)
    local h, id = redis.call("HMGET", task, "state", "unique_key", "hw"), long(short)
    if not h[1] or h[1] == "completed" then return 2, "" end
    if h[1] == "archived" then return 3, "" end
    local record, found = read_hw(h[3]).record, 0
    if waits[h[1]] then
      -- first: a script that ends here, see wake.lua, leaves the task where the next call finds it
      redis.call("ZREM", due, entry(short, record))
      found = redis.call("ZREM", waits[h[1]], id)
    elseif h[1] == "pending" and unlist(id, others) > 0 then
      found = 1
      redis.call("ZREM", due, entry(short, record))
    end
    if found == 0 then return 0, "" end
    redis.call("DEL", task)
    if h[2] and redis.call("GET", h[2]) == id then redis.call("DEL", h[2]) end -- the lock carries the queue's tag
    return 1, record
  end

  local reply = { 1, now, 0, 0, 0, 0, 0 }
  for i = 1, count do
    local element, short = args[2 * i + 1], args[2 * i + 2]
    local code, record = 4, ""
    if redis.call("ZSCORE", batch.unfinished, element) then code, record = drop(keys[8 + i], short, count - i) end
    if COUNTED[code] then
      redis.call("ZREM", batch.unfinished, element)
      redis.call("HINCRBY", batch.record, COUNTED[code], 1)
    end
    reply[#reply + 1] = code
    reply[#reply + 1] = record
  end
  reply[3] = redis.call("ZCARD", batch.unfinished)
  local ended = redis.call("HMGET", batch.record, "done", "failed", "dropped")
  for i = 1, 3 do reply[4 + i] = tonumber(ended[i]) end
  if finish(batch, now) then reply[4] = 1 end
  return reply
end
