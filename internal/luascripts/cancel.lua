-- cancel.lua: give a grant back, or leave the line, or both.
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
-- ARGV[6]  cost       permits that the token holds, >= 1
-- ARGV[7]  token      8 bytes, or "" when there is only a booking; refuses from now on
-- ARGV[8]  member     "cost:job", or "" when there is no booking
-- ARGV[9]  back       1: a grant that is given back becomes the first place in the line again, and no place is left
-- ARGV[10] worth      as acquire.lua answered it with the grant, 0 when that is not known
-- returns  {status, now_us, next_us, next_job}, three integers and a text, always
--          status 0 no such grant, 1 given back, 5 newer schema, 6 now is not covered, 7 an older limit than the ledger's
local ledger, tokens, line, promised = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local cost, token, me, back, worth = tonumber(ARGV[6]), ARGV[7], ARGV[8], ARGV[9] == "1", tonumber(ARGV[10])

local now = clock()
local L, status, newer = open(ledger, limit(ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]), now)
if not L then return { status, now, newer or 0, "" } end
local held = token ~= "" and holds(L, tokens, token)
local given = held and held > 0

-- the first write frees: a full Redis must not refuse to take anything back
if token ~= "" then redis.call("ZREM", tokens, token) end
if me ~= "" and not back then leave(line, promised, me) end
if given then unspend(L, now, held, cost, token, worth) end
if token ~= "" then withdraw(tokens, token, now) end
if given and back then -- a copy of this call finds nothing given: it must not take the place away
  local at = max(held, now)
  join_head(line, promised, me, cost, at)
  keep_line(line, promised, at, now)
end
local job, when = next_turn(L, line, promised, now)
return { given and 1 or 0, now, when, job }
