-- batchpeek.lua: a batch as it is. A script, and no plain commands: those a client may
-- send to replicas, and the clock of another server is another's.
--
-- KEYS[1]  record     hash of the batch
-- KEYS[2]  unfinished sorted set of its elements that were enqueued and have not ended, score = position
-- returns  {status, now_us, unfinished, then field, value ... of the record}; fields and values are text; status: 0 there is none; 1 there is

local clock = require("lib/clock")
local batch = require("batch/batch")
local answer_batch = batch.answer_batch

return function(keys, args)
  local batch = { record = keys[1], unfinished = keys[2] }

  local now = clock()
  local left = redis.call("ZCARD", batch.unfinished)
  return answer_batch(batch, { redis.call("EXISTS", batch.record), now, left })
end
