-- check.lua: the current instant of a booking, which becomes its last promise.
--
-- KEYS[1]  ledger     string, see ledger.lua
-- KEYS[2]  line       sorted set, see line.lua
-- KEYS[3]  promised   sorted set, see line.lua
-- ARGV[1]  kind       the limit's algorithm, see ledger.lua
-- ARGV[2]  n          permits per window, >= 1
-- ARGV[3]  window_us  length of the window, >= 1000
-- ARGV[4]  more       what only some algorithms have
-- ARGV[5]  version    of the limit, 0 when it is the one in code
-- ARGV[6]  member     "cost:job"
-- returns  {status, at_us, now_us, before}, four integers, always; before counts the permits ahead of it in the line
--          status 0 unknown, 2 booked, 5 newer schema, 6 now is not covered, 7 an older limit than the ledger's
local ledger, line, promised = KEYS[1], KEYS[2], KEYS[3]
local me = ARGV[6]

local now = clock()
local L, status, newer = open(ledger, limit(ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]), now)
if not L then return { status, newer or 0, now, 0 } end
local ticket = tonumber(redis.call("ZSCORE", line, me) or "")
if not ticket then return { 0, 0, now, 0 } end
local first, _, parked, late = look(line, promised, me, now)
local before = permits_before(line, promised, first, place_of(line, parked, ticket))
local at = slot(L, now, before, cost_of(me))

-- an instant that is past is no new promise: how late it gets must show
if at > now and not is_parked(ticket) then
  redis.call("ZADD", promised, int(at), me)
  keep_line(line, promised, at, now)
end
park(line, late)
outlive(L, now)
return { 2, at, now, before }
