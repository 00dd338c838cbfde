-- acquire.lua: grant permits, or book a place in the line, or refuse.
--
-- KEYS[1]  ledger     string, see ledger.lua; expires when nothing in it counts any more
-- KEYS[2]  tokens     sorted set, see tokens.lua
-- KEYS[3]  line       sorted set, see line.lua
-- KEYS[4]  promised   sorted set, see line.lua
-- ARGV[1]  kind       the limit's algorithm, see ledger.lua
-- ARGV[2]  n          permits per window, >= 1
-- ARGV[3]  window_us  length of the window, >= 1000
-- ARGV[4]  more       what only some algorithms have
-- ARGV[5]  version    of the limit, 0 when it is the one in code
-- ARGV[6]  cost       permits wanted, 1 to what the limit can ever grant
-- ARGV[7]  token      8 bytes, the attempt; the same token gets the same grant
-- ARGV[8]  member     "cost:job", or "" for one who never waits
-- ARGV[9]  mode       0 try: now or not at all; 1 acquire: grant or book; 2 book: never grant
-- ARGV[10] inline_us  how far in the future a grant may lie
-- ARGV[11] max_us     longest wait that makes sense, -1 for any
-- returns  {status, at_us, from_us, now_us, promised_us, worth, next_us, next_job}, seven integers and a text, always
--          status 0 refused, 1 granted, 2 booked, 3 too late, 4 withdrawn, 5 newer schema, 6 now is not covered, 7 an older limit than the ledger's
local ledger, tokens, line, promised = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local cost, token, me, mode = tonumber(ARGV[6]), ARGV[7], ARGV[8], tonumber(ARGV[9])
local inline, longest = tonumber(ARGV[10]), tonumber(ARGV[11])

local now = clock()
local L, status, newer = open(ledger, limit(ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]), now)
if not L then return { status, newer or 0, 0, now, 0, 0, 0, "" } end
local held = holds(L, tokens, token)
if held and held < 0 then return { 4, 0, 0, now, 0, 0, 0, "" } end
if held then return { 1, held, held, now, 0, L.token == token and L.kind.worth(L) or 0, 0, "" } end

local first, last, parked, late, head, ticket = look(line, promised, me, now)
if head ~= me then ticket = last > 0 and me ~= "" and tonumber(redis.call("ZSCORE", line, me) or "") end
local told = ticket and tonumber(redis.call("ZSCORE", promised, me) or "") or 0
local mine = last
if ticket then mine = head == me and first or place_of(line, parked, ticket) end
local before = permits_before(line, promised, first, mine)

local at = slot(L, now, before, cost)
local from = L.newest > 0 and slot(L, 0, before, cost) or 0
local grant = (ticket or first == last) and mode < 2 and at <= now + (mode == 0 and 0 or inline)

if mode == 0 and not grant then
  outlive(L, now)
  park(line, late) -- or newcomers that only try would never get past more than 20
  return { 0, at, from, now, told, 0, 0, "" }
end
if longest >= 0 and at > now + longest then
  if ticket then leave(line, promised, me) end
  outlive(L, now)
  park(line, late)
  local job, when = next_turn(L, line, promised, now)
  return { 3, at, from, now, told, 0, when, job }
end
if grant then
  local before_token, before_at = L.token, L.newest
  spend(L, now, at, cost, token)
  remember(tokens, before_token, before_at, L.W, now)
  if L.W < COPY then remember(tokens, token, at, L.W, now) end
  park(line, late)
  if ticket then leave(line, promised, me) end
  local job, when = "", 0
  if last > 0 then job, when = next_turn(L, line, promised, now) end
  return { 1, at, from, now, told, L.kind.worth(L), when, job }
end
if not ticket then
  join(line, promised, parked, me, cost, at, now)
elseif is_parked(ticket) then
  rejoin(line, promised, parked, me, cost, at)
else
  redis.call("ZADD", promised, int(at), me)
end
park(line, late)
keep_line(line, promised, at, now)
outlive(L, now)
return { 2, at, from, now, told, 0, 0, "" }
