-- reset.lua: forget what was spent on a key; who waits keeps its place.
--
-- KEYS[1]  ledger     string, see sliding.lua
-- KEYS[2]  tokens     sorted set, see tokens.lua
-- KEYS[3]  line       sorted set, see line.lua
-- KEYS[4]  promised   sorted set, see line.lua
-- ARGV[1]  n          permits per window, >= 1
-- ARGV[2]  window_us  length of the window, >= 1000
-- returns  {status, now_us, next_us, next_job}, three integers and a text, always
--          status 1 done, 5 newer schema
local ledger, tokens, line, promised = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local n, W = tonumber(ARGV[1]), tonumber(ARGV[2])

local now = clock()
if not open(ledger) then return { 5, now, 0, "" } end

redis.call("UNLINK", ledger, tokens)
local job, when = next_turn(open(ledger), n, W, line, promised, now)
return { 1, now, when, job }
