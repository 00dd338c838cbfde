-- batch.lua: what the scripts of a batch have in common: its end, and its rate. batch are
-- the keys record, unfinished, ahead, batches and ended, as feed.lua has them, and the id.

local numbers = require("lib/numbers")
local int, life = numbers.int, numbers.life

local KEEP = 86400000000 -- how long the record of a batch that ended is kept
local EVERY = 10000000 -- from one sample of the rate to the next
local SCHEMA, NEWER = "1", 5 -- the field v of a record, and the status when it is another

-- newer says that a newer version wrote the record: nothing of it is ours to change
local function newer(batch)
  local v = redis.call("HGET", batch.record, "v")
  return v and v ~= SCHEMA
end

-- sample keeps what has ended at two instants: the rate is what ended since the
-- earlier one, which is 10 to 20 s ago while anybody feeds or counts. When nobody did for
-- longer, or the clock went back, it begins anew
local function sample(batch, now)
  local h = redis.call("HMGET", batch.record, "t1", "n1", "done", "failed", "dropped")
  if not h[1] then return end
  local since, n = now - h[1], int(h[3] + h[4] + h[5])
  if since >= 0 and since < EVERY then return end
  local t0, n0 = h[1], h[2]
  if since < 0 or since > 2 * EVERY then t0, n0 = int(now), n end
  redis.call("HSET", batch.record, "t0", t0, "n0", n0, "t1", int(now), "n1", n)
end

local function delete_batch(batch)
  redis.call("UNLINK", batch.record, batch.unfinished, batch.ahead) -- of the largest window what is ahead takes long to free
  redis.call("ZREM", batch.batches, batch.id)
end

-- finish ends a batch of which nothing is left: its record is kept for a day, and that
-- of one that was cancelled not at all. It answers whether it did.
local function finish(batch, now)
  local h = redis.call("HMGET", batch.record, "state", "end")
  if not h[1] or h[1] == "ended" or redis.call("EXISTS", batch.unfinished) == 1 then return false end
  if h[1] == "cancelled" then
    delete_batch(batch)
    return true
  end
  if h[2] ~= "1" then return false end
  redis.call("UNLINK", batch.ahead)
  redis.call("HDEL", batch.record, "owner", "until")
  redis.call("HSET", batch.record, "state", "ended", "ended", int(now))
  redis.call("PEXPIRE", batch.record, int(life(KEEP)))
  redis.call("ZREM", batch.batches, batch.id)
  redis.call("ZREMRANGEBYSCORE", batch.ended, "-inf", int(now))
  redis.call("ZADD", batch.ended, int(now + KEEP), batch.id)
  redis.call("PEXPIRE", batch.ended, int(life(KEEP))) -- the newest is kept longest
  return true
end

-- answer_batch appends all fields of the record to a reply
local function answer_batch(batch, reply)
  for _, v in ipairs(redis.call("HGETALL", batch.record)) do reply[#reply + 1] = v end
  return reply
end

return {
  NEWER = NEWER, answer_batch = answer_batch, delete_batch = delete_batch, finish = finish, newer = newer, sample = sample,
}
