-- peek.lua: what a key looks like, without changing it; who is late is not in the line.
--
-- KEYS[1]  ledger     string, see sliding.lua
-- KEYS[2]  line       sorted set, see line.lua
-- KEYS[3]  promised   sorted set, see line.lua
-- ARGV[1]  n          permits per window, >= 1
-- ARGV[2]  window_us  length of the window, >= 1000
-- ARGV[3]  most       how many of the line to list, 0 to 250
-- returns  {status, now_us, free, next_us, waiting, listed, then per booking: at_us, job, cost}
--          status 1 known, 5 newer schema; integers, but for job, which is text
local ledger, line, promised = KEYS[1], KEYS[2], KEYS[3]
local n, W, most = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

local now = clock()
local L = open(ledger)
if not L then return { 5, now, 0, 0, 0, 0 } end
local first, last = look(line, promised, "", now)
local waiting = last - first
local permits = permits_before(line, promised, first, last)
local reply = { 1, now, waiting > 0 and 0 or free(L, n, W, now), slot(L, n, W, now, permits + 1), waiting, 0 }

local members = most > 0 and redis.call("ZRANGE", line, first, first + most - 1) or {}
local before = 0
for _, m in ipairs(members) do
  before = before + cost_of(m)
  reply[#reply + 1] = slot(L, n, W, now, before)
  reply[#reply + 1] = string.match(m, ":(.*)$")
  reply[#reply + 1] = cost_of(m)
end
reply[6] = #members
return reply
