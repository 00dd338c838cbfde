-- check.lua: the current instant of a booking, which becomes its last promise.
--
-- KEYS[1]  ledger     string, see sliding.lua
-- KEYS[2]  line       sorted set, see line.lua
-- KEYS[3]  promised   sorted set, see line.lua
-- ARGV[1]  n          permits per window, >= 1
-- ARGV[2]  window_us  length of the window, >= 1000
-- ARGV[3]  member     "cost:job"
-- returns  {status, at_us, now_us, before}, four integers, always; before counts the permits ahead of it in the line
--          status 0 unknown, 2 booked, 5 newer schema
local ledger, line, promised = KEYS[1], KEYS[2], KEYS[3]
local n, W, me = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]

local now = clock()
local L = open(ledger)
if not L then return { 5, 0, now, 0 } end
local told = redis.call("ZSCORE", promised, me)
if not told then return { 0, 0, now, 0 } end
local rank = redis.call("ZRANK", line, me)
local late, before = {}, 0
if rank then
  late = late_heads(line, promised, me, now)
  before = permits_before(line, promised, #late, rank)
end
local at = slot(L, n, W, now, before + cost_of(me))

-- an instant that is past is no new promise: how late it gets must show
if rank and at ~= tonumber(told) and at > now then
  redis.call("ZADD", promised, int(at), me)
  keep_line(line, promised, at, now)
end
drop_late(line, late)
return { 2, at, now, before }
