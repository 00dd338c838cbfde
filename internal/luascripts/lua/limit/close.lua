-- close.lua: nothing goes on a key until an instant, or again.
--
-- KEYS[1+] parts      3 of each, then the turns of each when the policy has several, see parts.lua
-- ARGV[1]  count      how many parts, 1 to 16
-- ARGV[2]  job        who goes first once it is open, or ""
-- ARGV[3]  for_us     how long from now on; 0 opens it
-- ARGV[4]  rule       the part that is closed: those before are narrower or share its key, those behind share it
-- ARGV[5+] parts      9 of each, see parts.lua
-- returns  {status, part, now_us, until_us, version, turns, then per turn: part, at_us, job}, integers, but for job, which is text
--          status 1 done, 5 newer schema, 6 now is not covered, 7 an older limit than the ledger's, which is then in version; part
--          is the one that can't be read
--
-- Who is put off goes first once the key is open: behind those who were put off
-- before it in the same closing, and before all others. Their tickets count up by 1.
-- In `line`, TOLD and PARK higher than they are:
--
--   SINCE       from when on the key is closed
--   LAST, IN    the ticket of the one who was put off last, and since when that closing was
--   SQUEEZED    permits of those who stand between two whole ROOMs
local count, job, span, rule = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

local now = clock()
local P = read_parts(ARGV, count, 5, job)
local failed, which, newer = open_parts(P, now)
if failed then return { failed, which, now, 0, newer, 0 } end
local shut, until_us, turns = P[rule], 0, {}

-- put_off gives me the ticket behind the last who was put off since then; were they
-- so many that there is no room left, that of the last
local function put_off(L, since)
  local ticket = first_ticket(L)
  local v = redis.call("ZMSCORE", L.line, LAST, IN)
  local last = v[1] and v[1] - TOLD - PARK
  if last and v[2] and v[2] - TOLD == since and last >= ticket then
    ticket = min(last + 1, (floor(last / ROOM) + 1) * ROOM - 1)
    if is_squeezed(ticket) then squeeze(L, L.want) end
  end
  redis.call("ZADD", L.line, int(ticket + PARK + TOLD), LAST, int(since + TOLD), IN)
  return ticket
end

if span > 0 then
  local before = mark(shut, CLOSED) or 0
  local since = before > now and mark(shut, SINCE) or now + PARK
  until_us = max(before, now + span)
  redis.call("ZADD", shut.line, int(until_us + TOLD), CLOSED, int(since + TOLD), SINCE)
  live(shut.line, until_us - now + 1000000)
  for _, L in ipairs(P) do
    look(L, now)
    find(L)
  end
  if job ~= "" and not shut.ticket then
    for i, L in ipairs(P) do -- first in all of them: an order that differs between rules would never end
      if not L.ticket then join_at(L, i == rule and L.line or L.turns, put_off(L, since), until_us, now, false) end
    end
  end
else
  redis.call("ZREM", shut.line, CLOSED, SINCE)
  shut.closed = closed(shut, now)
  next_turns(shut, now, turns, true)
  missed(P, now, turns)
end
local reply = { 1, 0, now, until_us, 0, #turns / 3 }
for _, v in ipairs(turns) do reply[#reply + 1] = v end
return reply
