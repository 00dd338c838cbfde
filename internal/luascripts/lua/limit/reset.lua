-- reset.lua: forget what was spent on a key; who waits keeps its place.
--
-- KEYS[1]  ledger     string, see ledger.lua
-- KEYS[2]  tokens     sorted set, see tokens.lua
-- KEYS[3]  line       sorted set, see line.lua
-- ARGV[1]  kind       the limit's algorithm, see ledger.lua
-- ARGV[2]  n          permits per window, >= 1
-- ARGV[3]  window_us  length of the window, >= 1000
-- ARGV[4]  more       what only some algorithms have
-- ARGV[5]  version    of the limit, 0 when it is the one in code
-- returns  {status, now_us, version, turns, then per turn: part, at_us, job}, integers, but for job, which is text
--          status 1 done, 5 newer schema, 6 now is not covered, 7 an older limit than the ledger's, which is then in version
local now = clock()
local L = limit(ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])
L.part, L.key, L.tokens, L.line, L.me, L.rule_closed = 1, KEYS[1], KEYS[2], KEYS[3], "", 0
local ok, status, newer = open(L.key, L, now)
if not ok then return { status, now, newer or 0, 0 } end

redis.call("UNLINK", L.key, L.tokens)
open(L.key, L, now)
L.closed = closed(L, now)
local turns = {}
next_turns(L, now, turns)
missed({ L }, now, turns)
local reply = { 1, now, 0, #turns / 3 }
for _, v in ipairs(turns) do reply[#reply + 1] = v end
return reply
