-- reset.lua: forget what was spent on a key; who waits keeps its place.
--
-- KEYS[1]  ledger     string, see ledger.lua
-- KEYS[2]  tokens     sorted set, see tokens.lua
-- KEYS[3]  line       sorted set, see line.lua
-- KEYS[4]  promised   sorted set, see line.lua
-- ARGV[1]  kind       the limit's algorithm, see ledger.lua
-- ARGV[2]  n          permits per window, >= 1
-- ARGV[3]  window_us  length of the window, >= 1000
-- ARGV[4]  more       what only some algorithms have
-- ARGV[5]  version    of the limit, 0 when it is the one in code
-- returns  {status, now_us, next_us, next_job}, three integers and a text, always
--          status 1 done, 5 newer schema, 6 now is not covered, 7 an older limit than the ledger's
local ledger, tokens, line, promised = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local now = clock()
local L, status, newer = open(ledger, limit(ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]), now)
if not L then return { status, now, newer or 0, "" } end

redis.call("UNLINK", ledger, tokens)
local job, when = next_turn(open(ledger, L, now), line, promised, now)
return { 1, now, when, job }
