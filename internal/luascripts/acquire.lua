-- acquire.lua: grant permits, or book a place in the line, or refuse.
--
-- KEYS[1]  ledger     string, see sliding.lua; expires when its newest grant leaves the window
-- KEYS[2]  tokens     sorted set, see tokens.lua
-- KEYS[3]  line       sorted set, see line.lua
-- KEYS[4]  promised   sorted set, see line.lua
-- ARGV[1]  n          permits per window, >= 1
-- ARGV[2]  window_us  length of the window, >= 1000
-- ARGV[3]  cost       permits wanted, 1 to n
-- ARGV[4]  token      8 bytes, the attempt; the same token gets the same grant
-- ARGV[5]  member     "cost:job", or "" for one who never waits
-- ARGV[6]  mode       0 try: now or not at all; 1 acquire: grant or book; 2 book: never grant
-- ARGV[7]  inline_us  how far in the future a grant may lie
-- ARGV[8]  max_us     longest wait that makes sense, -1 for any
-- returns  {status, at_us, from_us, now_us, promised_us, next_us, next_job}, six integers and a text, always
--          status 0 refused, 1 granted, 2 booked, 3 too late, 4 withdrawn, 5 newer schema
local ledger, tokens, line, promised = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local n, W, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local token, me, mode = ARGV[4], ARGV[5], tonumber(ARGV[6])
local inline, longest = tonumber(ARGV[7]), tonumber(ARGV[8])

local now = clock()
local L = open(ledger)
if not L then return { 5, 0, 0, now, 0, 0, "" } end
local held = holds(L, tokens, token)
if held and held < 0 then return { 4, 0, 0, now, 0, 0, "" } end
if held then return { 1, held, held, now, 0, 0, "" } end

local first, last, parked, late, head, ticket = look(line, promised, me, now)
if head ~= me then ticket = last > 0 and me ~= "" and tonumber(redis.call("ZSCORE", line, me) or "") end
local told = ticket and tonumber(redis.call("ZSCORE", promised, me) or "") or 0
local mine = last
if ticket then mine = head == me and first or place_of(line, parked, ticket) end
local before = permits_before(line, promised, first, mine)

local at = slot(L, n, W, now, before + cost)
local from = L.count > 0 and slot(L, n, W, 0, before + cost) or 0
local grant = (ticket or first == last) and mode < 2 and at <= now + (mode == 0 and 0 or inline)

if mode == 0 and not grant then
  park(line, late) -- or newcomers that only try would never get past more than 20
  return { 0, at, from, now, told, 0, "" }
end
if longest >= 0 and at > now + longest then
  if ticket then leave(line, promised, me) end
  park(line, late)
  local job, when = next_turn(L, n, W, line, promised, now)
  return { 3, at, from, now, told, when, job }
end
if grant then
  local before_token, before_at = L.token, L.newest
  spend(L, n, W, now, at, cost, token)
  remember(tokens, before_token, before_at, W, now)
  if W < COPY then remember(tokens, token, at, W, now) end
  park(line, late)
  if ticket then leave(line, promised, me) end
  local job, when = "", 0
  if last > 0 then job, when = next_turn(L, n, W, line, promised, now) end
  return { 1, at, from, now, told, when, job }
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
return { 2, at, from, now, told, 0, "" }
