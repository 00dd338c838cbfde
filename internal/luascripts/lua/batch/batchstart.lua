-- batchstart.lua: a batch begins, unless there is one of its id.
--
-- KEYS[1]  record     hash of the batch, see docs/redis-keys.md; no life until it has ended, a day then
-- KEYS[2]  batches    sorted set of the ids of batches that have not ended, score = started in microseconds
-- KEYS[3]  ended      sorted set of the ids of those that have, score = until when their records are kept
-- ARGV[1]  id         of the batch
-- ARGV[2]  token      of this call, 8 bytes: a copy of it gets its answer
-- ARGV[3]  name       as people call it
-- ARGV[4]  type       of its tasks
-- ARGV[5]  source     names the source
-- ARGV[6]  args       of the source
-- ARGV[7]  total      how many elements it has, 0 when that is not known
-- ARGV[8]  window     how many of it may be enqueued and not have ended, 1 to 100000
-- ARGV[9]  weight     percent of the window, 1 to 100
-- ARGV[10] pace_n     at most so many elements ...
-- ARGV[11] pace_us    ... in this time; 0 and 0 for as the limits allow
-- returns  {1 began | 0 was there already, now_us, then field, value ... of the record}; fields and values are text

local clock = require("lib/clock")
local numbers = require("lib/numbers")
local batch = require("batch/batch")
local int = numbers.int
local answer_batch = batch.answer_batch

return function(keys, args)
  local record, batches, ended = keys[1], keys[2], keys[3]
  local id, token = args[1], args[2]

  local now = clock()
  local batch = { record = record }
  if redis.call("EXISTS", record) == 1 then
    return answer_batch(batch, { redis.call("HGET", record, "began") == token and 1 or 0, now })
  end

  redis.call("HSET", record, "v", "1", "began", token, "state", "running", "started", int(now), "name", args[3], "type", args[4],
    "source", args[5], "args", args[6], "total", args[7], "window", args[8], "weight", args[9], "pace_n", args[10], "pace_us", args[11],
    "pace_at", "0", "cursor", "0", "mark", "", "enqueued", "0", "done", "0", "failed", "0", "refused", "0", "dropped", "0",
    "t0", int(now), "n0", "0", "t1", int(now), "n1", "0")
  redis.call("ZADD", batches, int(now), id)
  redis.call("ZREM", ended, id)
  return answer_batch(batch, { 1, now })
end
