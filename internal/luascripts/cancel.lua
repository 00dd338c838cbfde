-- cancel.lua: give a grant back, or leave the line, or both.
--
-- KEYS[1]  ledger     string, see sliding.lua
-- KEYS[2]  tokens     sorted set, see tokens.lua
-- KEYS[3]  line       sorted set, see line.lua
-- KEYS[4]  promised   sorted set, see line.lua
-- ARGV[1]  n          permits per window, >= 1
-- ARGV[2]  window_us  length of the window, >= 1000
-- ARGV[3]  cost       permits that the token holds, 1 to n
-- ARGV[4]  token      8 bytes, or "" when there is only a booking; refuses from now on
-- ARGV[5]  member     "cost:job", or "" when there is no booking
-- ARGV[6]  back       1: a grant that is given back becomes the first place in the line again, and no place is left
-- returns  {status, now_us, next_us, next_job}, three integers and a text, always
--          status 0 no such grant, 1 given back, 5 newer schema
local ledger, tokens, line, promised = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local n, W, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local token, me, back = ARGV[4], ARGV[5], ARGV[6] == "1"

local now = clock()
local L = open(ledger)
if not L then return { 5, now, 0, "" } end
local held = token ~= "" and holds(L, tokens, token)
local given = held and held > 0

-- the first write frees: a full Redis must not refuse to take anything back
if token ~= "" then redis.call("ZREM", tokens, token) end
if me ~= "" and not back then leave(line, promised, me) end
if given then unspend(L, W, held, cost, token) end
if token ~= "" then withdraw(tokens, token, now) end
if given and back then -- a copy of this call finds nothing given: it must not take the place away
  local at = max(held, now)
  join_head(line, promised, me, cost, at)
  keep_line(line, promised, at, now)
end
local job, when = next_turn(L, n, W, line, promised, now)
return { given and 1 or 0, now, when, job }
