-- batchclaim.lua: one process alone feeds a batch: it takes the lease, renews it, or
-- gives it up.
--
-- KEYS[1]  record     hash of the batch
-- KEYS[2]  unfinished sorted set of its elements that were enqueued and have not ended, score = position
-- ARGV[1]  owner      who asks, 8 bytes
-- ARGV[2]  lease_us   how long the lease holds; 0 gives it up
-- ARGV[3]  rebooked   resumed of the record when who asks gave what was enqueued new places; 0 when it did not
-- ARGV[4]  renew      1: only a lease that is the owner's is renewed, and none is taken
-- returns  {status, now_us, unfinished, then field, value ... of the record}; fields and values are text; status: 0 there is none, or it has
--          ended; 1 ours, or given up; 2 another's; 5 of a newer schema, nothing was done and nothing follows

local clock = require("lib/clock")
local numbers = require("lib/numbers")
local batch = require("batch/batch")
local int = numbers.int
local NEWER, answer_batch, newer, sample = batch.NEWER, batch.answer_batch, batch.newer, batch.sample

return function(keys, args)
  local record, unfinished = keys[1], keys[2]
  local owner, lease, rebooked, renew = args[1], tonumber(args[2]), args[3], args[4] == "1"

  local now = clock()
  local batch = { record = record }
  if newer(batch) then return { NEWER, now, 0 } end
  local h = redis.call("HMGET", record, "state", "owner", "until", "resumed", "rebooked")
  if not h[1] or h[1] == "ended" then return { 0, now, 0 } end
  local mine = h[2] == owner
  local until_us = tonumber(h[3] or "0")
  local free = not renew and (not h[2] or until_us <= now or until_us > now + 2 * lease) -- the clock went back: who had it may be dead
  local status = (mine or lease == 0 or free) and 1 or 2

  if lease == 0 then
    if mine then redis.call("HDEL", record, "owner", "until") end
  elseif status == 1 then
    redis.call("HSET", record, "owner", owner, "until", int(now + lease))
    if rebooked == h[4] and rebooked ~= h[5] then redis.call("HSET", record, "rebooked", rebooked) end
    sample(batch, now)
  end
  return answer_batch(batch, { status, now, redis.call("ZCARD", unfinished) })
end
