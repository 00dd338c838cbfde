-- cancel.lua: give a grant back, or leave the line, or both.
--
-- KEYS[1+] parts      3 of each, then the turns of each when the policy has several rules, see parts.lua
-- ARGV[1]  count      how many parts, 1 to 16
-- ARGV[2]  token      8 bytes, or "" when there is only a booking; refuses from now on
-- ARGV[3]  job        "" when there is no booking
-- ARGV[4]  back       1: a grant that is given back becomes the first place in the line again, and no place is left; above 1: the
--                     first turn, which is promised this instant, because a rule in another slot refuses
-- ARGV[5+] parts      9 of each, see parts.lua; behind them all 2 of each: the instant of the grant, and until when it may be found by
--                     that, see correct.lua; zeros when that is not known
-- returns  {status, part, now_us, version, turns, then per turn: part, at_us, job}, integers, but for job, which is text
--          status 0 no such grant, 1 given back, 5 newer schema, 6 now is not covered, 7 an older limit than the ledger's, which is
--          then in version; part is the one that can't be read
local count, token, job, back = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])

local now = clock()
local P = read_parts(ARGV, count, 5, job)
local failed, which, newer = open_parts(P, now)
if failed then return { failed, which, now, newer, 0 } end
read_told(P, ARGV, 5 + 9 * count)

local given, at, turns = 0, now, {}
for i, L in ipairs(P) do
  local known = token ~= "" and granted(L, token)
  local held = known and known > 0 and known
  -- the first write frees: a full Redis must not refuse to take anything back
  if token ~= "" then redis.call("ZREM", L.tokens, token) end
  if L.me ~= "" and back == 0 then
    stands(L)
    leave(L)
  end
  if held and not L.kind.lease then unspend(L, now, held, L.want, token, L.told_worth) end
  -- who knew the token alone may know the instant later: it must not come back twice
  if held and L.told_until == 0 and not L.kind.lease then L.told_until = held + L.W end
  if token ~= "" then withdraw(L, token, known, now) end
  if i == 1 and held then
    given, at = 1, max(held, now)
  end
  if held and back > 0 and given == 1 and job ~= "" then -- a copy of this call finds nothing given: it must not take the place away
    if back > 1 then join_at(L, L.turns, first_ticket(L), back, now, false) else join_at(L, L.line, first_ticket(L), at, now, i > 1) end
  end
end
for _, L in ipairs(P) do
  outlive(L, now)
  next_turns(L, now, turns, true)
end
missed(P, now, turns)
local reply = { given, 0, now, 0, #turns / 3 }
for _, v in ipairs(turns) do reply[#reply + 1] = v end
return reply
