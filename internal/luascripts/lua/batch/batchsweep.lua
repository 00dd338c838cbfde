-- batchsweep.lua: of some elements of a batch those are counted whose tasks have ended
-- without anybody having said so. One step looks and counts: a task is gone only when it
-- was there.
--
-- KEYS[1]  record     hash of the batch
-- KEYS[2]  unfinished sorted set of its elements that were enqueued and have not ended, score = position
-- KEYS[3]  ahead      sorted set of its elements that are settled and not before the cursor
-- KEYS[4]  batches    sorted set of the ids of batches that have not ended
-- KEYS[5]  ended      sorted set of the ids of those that have, score = until when their records are kept
-- KEYS[6+] tasks      asynq's hash of each task
-- ARGV[1]  id         of the batch
-- ARGV[2]  count      how many elements, 1 to 100
-- ARGV[3+] elements   their ids
-- returns  {how many were counted as done, how many as failed, 1 when the batch ended by this}

local clock = require("lib/clock")
local batch = require("batch/batch")
local finish, newer, sample = batch.finish, batch.newer, batch.sample

return function(keys, args)
  local batch = { record = keys[1], unfinished = keys[2], ahead = keys[3], batches = keys[4], ended = keys[5], id = args[1] }
  local count = tonumber(args[2])

  local now = clock()
  if newer(batch) then return { 0, 0, 0 } end
  local done, failed = {}, {}
  for i = 1, count do
    local state = redis.call("HGET", keys[5 + i], "state")
    if not state or state == "completed" then
      done[#done + 1] = args[2 + i]
    elseif state == "archived" then
      failed[#failed + 1] = args[2 + i]
    end
  end

  local n, m = 0, 0
  if #done > 0 then n = redis.call("ZREM", batch.unfinished, unpack(done)) end
  if #failed > 0 then m = redis.call("ZREM", batch.unfinished, unpack(failed)) end
  if n + m == 0 or redis.call("EXISTS", batch.record) == 0 then return { 0, 0, 0 } end
  sample(batch, now)
  if n > 0 then redis.call("HINCRBY", batch.record, "done", n) end
  if m > 0 then redis.call("HINCRBY", batch.record, "failed", m) end
  return { n, m, finish(batch, now) and 1 or 0 }
end
