-- batchpeek.lua: a batch as it is. A script, and no plain commands: those a client may
-- send to replicas, and the clock of another server is another's.
--
-- KEYS[1]  record     hash of the batch
-- KEYS[2]  open       sorted set of its elements that were enqueued and have not ended, score = position
-- returns  {status, now_us, open, then field, value ... of the record}; fields and values are text; status: 0 there is none; 1 there is
local B = { record = KEYS[1], open = KEYS[2] }

local now = clock()
local left = redis.call("ZCARD", B.open)
return answer_batch(B, { redis.call("EXISTS", B.record), now, left })
