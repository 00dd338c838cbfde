-- batchcount.lua: tasks of a batch have ended; each counts once, whoever says so.
--
-- KEYS[1]  record     hash of the batch
-- KEYS[2]  unfinished sorted set of its elements that were enqueued and have not ended, score = position
-- KEYS[3]  ahead      sorted set of its elements that are settled and not before the cursor
-- KEYS[4]  batches    sorted set of the ids of batches that have not ended
-- KEYS[5]  ended      sorted set of the ids of those that have, score = until when their records are kept
-- ARGV[1]  id         of the batch
-- ARGV[2]  outcome    done, failed or dropped
-- ARGV[3]  count      how many elements, 1 to 100
-- ARGV[4+] elements   their ids
-- returns  {how many were counted, 1 when the batch ended by this}

local clock = require("lib/clock")
local batch = require("batch/batch")
local finish, newer, sample = batch.finish, batch.newer, batch.sample

return function(keys, args)
  local batch = { record = keys[1], unfinished = keys[2], ahead = keys[3], batches = keys[4], ended = keys[5], id = args[1] }
  local outcome, count = args[2], tonumber(args[3])

  local now = clock()
  if newer(batch) then return { 0, 0 } end -- its feeder finds it
  local elements = {}
  for i = 1, count do elements[i] = args[3 + i] end
  local counted = redis.call("ZREM", batch.unfinished, unpack(elements)) -- frees: a full Redis does not refuse what follows
  if counted == 0 or redis.call("EXISTS", batch.record) == 0 then return { 0, 0 } end

  sample(batch, now)
  redis.call("HINCRBY", batch.record, outcome, counted)
  return { counted, finish(batch, now) and 1 or 0 }
end
