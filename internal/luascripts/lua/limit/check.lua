-- check.lua: the current instants of some bookings, which become their last promises.
-- They are answered one after another, at one reading of the clock; an error of one is
-- none of the others.
--
-- KEYS[1+] parts      of each booking: 3 of each part, then the turns of each when the policy has several rules, see parts.lua
-- ARGV[1]  bookings   how many, 1 to 8
-- ARGV[2]  count      how many parts each has, 1 to 16
-- ARGV[3+] jobs       of each: who waits; behind them the parts, 9 of each, see parts.lua: those of all bookings, which differ in
--                     nothing but keys
-- returns  {now_us, then per booking: {status, part, at_us, before, turns, then per turn: part, at_us, job}}, integers, but for job,
--          which is text; before counts the permits ahead of it in the line of the part by which it waits; turns are of lines that
--          it left, and of leases
--          status 0 unknown, 2 booked, 5 newer schema, 6 now is not covered, 7 an older limit than the ledger's, which is in at_us,
--          -1 failed: ask alone
local bookings, count = tonumber(ARGV[1]), tonumber(ARGV[2])

local now = clock()
local width = #KEYS / bookings

-- an instant that is past is no new promise: how late it gets must show. Who is held
-- up by a narrower part than before stands there, and in nobody's way behind it.
local function check(i)
  local P = parts_of(ARGV, count, 3 + bookings, ARGV[2 + i], width * (i - 1), width == 4 * count)
  local failed, which, newer = open_parts(P, now)
  if failed then return { failed, which, newer, 0, 0 } end
  local place, at, by = find_place(P, now)
  if not place then return { 0, 0, 0, 0, 0 } end

  local turns = {}
  local moves = at > now and not is_parked(P[place].ticket)
  local keeps = moves and stand_for(P, by, at, now)
  for _, L in ipairs(P) do
    park(L)
    outlive(L, now)
  end
  if moves then turns = left_behind(P, keeps, now) end
  missed(P, now, turns)
  local reply = { 2, at > now and by or place, at, P[place].ahead, #turns / 3 }
  for _, v in ipairs(turns) do reply[#reply + 1] = v end
  return reply
end

if bookings == 1 then return { now, check(1) } end
local replies = { now }
for i = 1, bookings do
  local ok, reply = pcall(check, i)
  replies[1 + i] = ok and reply or { -1, 0, 0, 0, 0 }
end
return replies
