-- batchset.lua: a batch is paused, goes on, is cancelled, or goes at another pace.
--
-- KEYS[1]  record     hash of the batch
-- KEYS[2]  unfinished sorted set of its elements that were enqueued and have not ended, score = position
-- KEYS[3]  ahead      sorted set of its elements that are settled and not before the cursor
-- KEYS[4]  batches    sorted set of the ids of batches that have not ended
-- ARGV[1]  id         of the batch
-- ARGV[2]  change     pause, resume, cancel, pace, weight or window
-- ARGV[3]  n          pace: so many elements; weight: percent; window: how many
-- ARGV[4]  per_us     pace: in this time
-- returns  {status, now_us, unfinished, then field, value ... of the record}; fields and values are text; status: 0 there is none; 1 done, or
--          it was so already; 2 not in its state; 5 of a newer schema, nothing was done and nothing follows; of a cancelled batch that had
--          nothing unfinished the record is what it was: all is deleted

local clock = require("lib/clock")
local numbers = require("lib/numbers")
local batch = require("batch/batch")
local int = numbers.int
local NEWER, answer_batch, delete_batch, newer = batch.NEWER, batch.answer_batch, batch.delete_batch, batch.newer

return function(keys, args)
  local batch = { record = keys[1], unfinished = keys[2], ahead = keys[3], batches = keys[4], id = args[1] }
  local change, n, per = args[2], args[3], args[4]
  local BECOMES = { pause = "paused", resume = "running", cancel = "cancelled" }

  local now = clock()
  local state = redis.call("HGET", batch.record, "state")
  if not state then return { 0, now, 0 } end
  if newer(batch) then return { NEWER, now, 0 } end
  local status = 1
  if state == "ended" or state == "cancelled" and change ~= "cancel" then status = 2 end

  if status == 1 and BECOMES[change] and state ~= BECOMES[change] then
    redis.call("HDEL", batch.record, "resumed", "rebooked") -- frees: a full Redis does not refuse what follows
    redis.call("HSET", batch.record, "state", BECOMES[change])
    if change == "resume" then redis.call("HSET", batch.record, "resumed", int(now)) end
  elseif status == 1 and change == "pace" then
    redis.call("HSET", batch.record, "pace_n", n, "pace_us", per, "pace_at", int(now))
  elseif status == 1 and not BECOMES[change] then
    redis.call("HSET", batch.record, change, n)
  end
  local left = redis.call("ZCARD", batch.unfinished)
  local reply = answer_batch(batch, { status, now, left })
  if change == "cancel" and status == 1 and left == 0 then delete_batch(batch) end
  return reply
end
