-- batch.lua: what the scripts of a batch have in common: its end, and its rate. B are
-- the keys record, open, ahead, batches and ended, as feed.lua has them, and the id.

local KEEP = 86400000000 -- how long the record of a batch that ended is kept
local EVERY = 10000000 -- from one sample of the rate to the next

-- sample keeps what has ended at two instants: the rate is what ended since the
-- earlier one, which is 10 to 20 s ago while anybody feeds or counts
local function sample(B, now)
  local h = redis.call("HMGET", B.record, "t1", "n1", "done", "failed", "dropped")
  if not h[1] or now - tonumber(h[1]) < EVERY then return end
  redis.call("HSET", B.record, "t0", h[1], "n0", h[2], "t1", int(now), "n1", int(h[3] + h[4] + h[5]))
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
