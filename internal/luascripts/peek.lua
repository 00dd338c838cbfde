-- peek.lua: what a key looks like, without changing it; who is late is not in the line.
--
-- KEYS[1]  ledger     string, see ledger.lua
-- KEYS[2]  line       sorted set, see line.lua
-- KEYS[3]  promised   sorted set, see line.lua
-- ARGV[1]  kind       the limit's algorithm, see ledger.lua
-- ARGV[2]  n          permits per window, >= 1
-- ARGV[3]  window_us  length of the window, >= 1000
-- ARGV[4]  more       what only some algorithms have
-- ARGV[5]  version    of the limit, 0 when it is the one in code
-- ARGV[6]  cost       permits of the newcomer whose instant is asked for, >= 1
-- ARGV[7]  most       how many of the line to list, 0 to 250
-- returns  {status, now_us, free, next_us, life_ms, waiting, listed, then per booking: at_us, job, cost}
--          status 1 known, 5 newer schema, 6 now is not covered, 7 an older limit than the ledger's; integers, but for job, which is text
local ledger, line, promised = KEYS[1], KEYS[2], KEYS[3]
local cost, most = tonumber(ARGV[6]), tonumber(ARGV[7])

local now = clock()
local L, status, newer = open(ledger, limit(ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]), now)
if not L then return { status, now, 0, newer or 0, 0, 0, 0 } end
local first, last = look(line, promised, "", now)
local waiting = last - first
local permits = permits_before(line, promised, first, last)
local known_ms = max(0, redis.call("PTTL", ledger))
local reply = { 1, now, waiting > 0 and 0 or free(L, now), slot(L, now, permits, cost), known_ms, waiting, 0 }

local members = most > 0 and redis.call("ZRANGE", line, first, first + most - 1) or {}
local before = 0
for _, m in ipairs(members) do
  reply[#reply + 1] = slot(L, now, before, cost_of(m))
  before = before + cost_of(m)
  reply[#reply + 1] = string.match(m, ":(.*)$")
  reply[#reply + 1] = cost_of(m)
end
reply[7] = #members
return reply
