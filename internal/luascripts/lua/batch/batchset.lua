-- batchset.lua: a batch is paused, goes on, is cancelled, or goes at another pace.
--
-- KEYS[1]  record     hash of the batch
-- KEYS[2]  open       sorted set of its elements that were enqueued and have not ended, score = position
-- KEYS[3]  ahead      sorted set of its elements that are settled and not before the cursor
-- KEYS[4]  batches    sorted set of the ids of batches that have not ended
-- ARGV[1]  id         of the batch
-- ARGV[2]  what       pause, resume, cancel, pace, weight or window
-- ARGV[3]  n          pace: so many elements; weight: percent; window: how many
-- ARGV[4]  per_us     pace: in this time
-- returns  {status, now_us, open, then field, value ... of the record}; fields and values are text; status: 0 there is none; 1 done, or
--          it was so already; 2 not in its state; 5 of a newer schema, nothing was done and nothing follows; of a cancelled batch that had nothing open the record is what it was: all is deleted
local B = { record = KEYS[1], open = KEYS[2], ahead = KEYS[3], batches = KEYS[4], id = ARGV[1] }
local what, n, per = ARGV[2], ARGV[3], ARGV[4]
local BECOMES = { pause = "paused", resume = "running", cancel = "cancelled" }

local now = clock()
local state = redis.call("HGET", B.record, "state")
if not state then return { 0, now, 0 } end
if newer(B) then return { NEWER, now, 0 } end
local status = 1
if state == "ended" or state == "cancelled" and what ~= "cancel" then status = 2 end

if status == 1 and BECOMES[what] and state ~= BECOMES[what] then
  redis.call("HDEL", B.record, "resumed", "rebooked") -- frees: a full Redis does not refuse what follows
  redis.call("HSET", B.record, "state", BECOMES[what])
  if what == "resume" then redis.call("HSET", B.record, "resumed", int(now)) end
elseif status == 1 and what == "pace" then
  redis.call("HSET", B.record, "pace_n", n, "pace_us", per, "pace_at", int(now))
elseif status == 1 and not BECOMES[what] then
  redis.call("HSET", B.record, what, n)
end
local left = redis.call("ZCARD", B.open)
local reply = answer_batch(B, { status, now, left })
if what == "cancel" and status == 1 and left == 0 then delete_batch(B) end
return reply
