-- batch.lua: what the scripts of a batch have in common: its end, and its rate. B are
-- the keys record, open, ahead, batches and ended, as feed.lua has them, and the id.

local KEEP = 86400000000 -- how long the record of a batch that ended is kept
local EVERY = 10000000 -- from one sample of the rate to the next
local SCHEMA, NEWER = "1", 5 -- the field v of a record, and the status when it is another

-- newer says that a newer version wrote the record: nothing of it is ours to change
local function newer(B)
  local v = redis.call("HGET", B.record, "v")
  return v and v ~= SCHEMA
end

-- sample keeps what has ended at two instants: the rate is what ended since the
-- earlier one, which is 10 to 20 s ago while anybody feeds or counts. When nobody did for
-- longer, or the clock went back, it begins anew
local function sample(B, now)
  local h = redis.call("HMGET", B.record, "t1", "n1", "done", "failed", "dropped")
  if not h[1] then return end
  local since, n = now - h[1], int(h[3] + h[4] + h[5])
  if since >= 0 and since < EVERY then return end
  local t0, n0 = h[1], h[2]
  if since < 0 or since > 2 * EVERY then t0, n0 = int(now), n end
  redis.call("HSET", B.record, "t0", t0, "n0", n0, "t1", int(now), "n1", n)
end

local function delete_batch(B)
  redis.call("UNLINK", B.record, B.open, B.ahead) -- of the largest window what is ahead takes long to free
  redis.call("ZREM", B.batches, B.id)
end

-- finish ends a batch of which nothing is left: its record is kept for a day, and that
-- of one that was cancelled not at all. It answers whether it did.
local function finish(B, now)
  local h = redis.call("HMGET", B.record, "state", "end")
  if not h[1] or h[1] == "ended" or redis.call("EXISTS", B.open) == 1 then return false end
  if h[1] == "cancelled" then
    delete_batch(B)
    return true
  end
  if h[2] ~= "1" then return false end
  redis.call("UNLINK", B.ahead)
  redis.call("HDEL", B.record, "owner", "until")
  redis.call("HSET", B.record, "state", "ended", "ended", int(now))
  redis.call("PEXPIRE", B.record, int(life(KEEP)))
  redis.call("ZREM", B.batches, B.id)
  redis.call("ZREMRANGEBYSCORE", B.ended, "-inf", int(now))
  redis.call("ZADD", B.ended, int(now + KEEP), B.id)
  redis.call("PEXPIRE", B.ended, int(life(KEEP))) -- the newest is kept longest
  return true
end

-- answer_batch appends all fields of the record to a reply
local function answer_batch(B, reply)
  for _, v in ipairs(redis.call("HGETALL", B.record)) do reply[#reply + 1] = v end
  return reply
end
