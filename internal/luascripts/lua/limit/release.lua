-- release.lua: a lease ends before its time, and who is next hears of it.
--
-- KEYS[1]  ledger     string, see leases.lua
-- KEYS[2]  tokens     sorted set, the leases, see leases.lua
-- KEYS[3]  line       sorted set, see line.lua
-- ARGV[1]  n          leases at once, >= 1
-- ARGV[2]  window_us  length of a lease
-- ARGV[3]  version    of the limit, 0 when it is the one in code
-- ARGV[4]  token      8 bytes
-- ARGV[5]  closed_us  until when the rule is closed on all keys, 0 when it is not
-- returns  {status, released, now_us, version, turns, then per turn: part, at_us, job}, integers, but for job, which is text
--          released 0: it had ended; status 1 known, 5 newer schema, 7 an older limit than the ledger's, which is then in version
local now = clock()
local L = limit("k", ARGV[1], ARGV[2], "", ARGV[3])
L.part, L.key, L.tokens, L.line, L.me, L.rule_closed = 1, KEYS[1], KEYS[2], KEYS[3], "", tonumber(ARGV[5])
local ends = tonumber(redis.call("ZSCORE", L.tokens, ARGV[4]) or "-1")
local released = ends > now and 1 or 0
if ends >= 0 then redis.call("ZREM", L.tokens, ARGV[4]) end -- whatever became of the limit; a token that was withdrawn refuses on
local ok, status, newer = open(L.key, L, now)
if not ok then return { status, released, now, newer or 0, 0 } end
L.closed = closed(L, now)
local turns = {}
next_turns(L, now, turns)
missed({ L }, now, turns)
local reply = { 1, released, now, 0, #turns / 3 }
for _, v in ipairs(turns) do reply[#reply + 1] = v end
return reply
