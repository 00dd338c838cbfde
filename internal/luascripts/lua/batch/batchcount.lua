-- batchcount.lua: tasks of a batch have ended; each counts once, whoever says so.
--
-- KEYS[1]  record     hash of the batch
-- KEYS[2]  open       sorted set of its elements that were enqueued and have not ended, score = position
-- KEYS[3]  ahead      sorted set of its elements that are settled and not before the cursor
-- KEYS[4]  batches    sorted set of the ids of batches that have not ended
-- KEYS[5]  ended      sorted set of the ids of those that have, score = until when their records are kept
-- ARGV[1]  id         of the batch
-- ARGV[2]  outcome    done, failed or dropped
-- ARGV[3]  count      how many elements, 1 to 100
-- ARGV[4+] elements   their ids
-- returns  {how many were counted, 1 when the batch ended by this}
local B = { record = KEYS[1], open = KEYS[2], ahead = KEYS[3], batches = KEYS[4], ended = KEYS[5], id = ARGV[1] }
local outcome, count = ARGV[2], tonumber(ARGV[3])

local now = clock()
if newer(B) then return { 0, 0 } end -- its feeder finds it
local elements = {}
for i = 1, count do elements[i] = ARGV[3 + i] end
local counted = redis.call("ZREM", B.open, unpack(elements)) -- frees: a full Redis does not refuse what follows
if counted == 0 or redis.call("EXISTS", B.record) == 0 then return { 0, 0 } end

sample(B, now)
redis.call("HINCRBY", B.record, outcome, counted)
return { counted, finish(B, now) and 1 or 0 }
