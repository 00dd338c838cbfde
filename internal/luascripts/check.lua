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
local ticket = tonumber(redis.call("ZSCORE", line, me) or "")
if not ticket then return { 0, 0, now, 0 } end
local first, _, parked, late = look(line, promised, me, now)
local before = permits_before(line, promised, first, place_of(line, parked, ticket))
local at = slot(L, n, W, now, before + cost_of(me))

-- an instant that is past is no new promise: how late it gets must show
if at > now and not is_parked(ticket) then
  redis.call("ZADD", promised, int(at), me)
  keep_line(line, promised, at, now)
end
park(line, late)
return { 2, at, now, before }
