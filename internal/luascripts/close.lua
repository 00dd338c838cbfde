-- close.lua: nothing goes on a key until an instant, or again.
--
-- KEYS[1+] parts      4 of each, then the turns of each when the policy has several, see parts.lua
-- ARGV[1]  count      how many parts, 1 to 16
-- ARGV[2]  job        who goes first once it is open, or ""
-- ARGV[3]  for_us     how long from now on; 0 opens it
-- ARGV[4]  rule       the part that is closed: those before are narrower or share its key, those behind share it
-- ARGV[5+] parts      9 of each, see parts.lua
-- returns  {status, part, now_us, until_us, version, turns, then per turn: part, at_us, job}, integers, but for job, which is text
--          status 1 done, 5 newer schema, 6 now is not covered, 7 an older limit than the ledger's, which is then in version; part
--          is the one that can't be read
local count, job, span, rule = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

local now = clock()
local P = read_parts(count, 5, job)
local failed, which, newer = open_parts(P, now)
if failed then return { failed, which, now, 0, newer, 0 } end
local shut, until_us, turns = P[rule], 0, {}

if span > 0 then
  until_us = max(told(shut, CLOSED) or 0, now + span)
  redis.call("ZADD", shut.promised, int(until_us), CLOSED)
  live(shut.promised, until_us - now + 1000000)
  for _, L in ipairs(P) do
    look(L, now)
    find(L)
  end
  if job ~= "" and not shut.ticket then
    for i, L in ipairs(P) do -- first in all of them: an order that differs between rules would never end
      if not L.ticket then join_head(L, i == rule and L.line or L.turns, until_us, now, false) end
    end
  end
else
  redis.call("ZREM", shut.promised, CLOSED)
  shut.closed = closed(shut, now)
  next_turns(shut, now, turns, true)
end
local reply = { 1, 0, now, until_us, 0, #turns / 3 }
for _, v in ipairs(turns) do reply[#reply + 1] = v end
return reply
