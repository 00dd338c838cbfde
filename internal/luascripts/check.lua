-- check.lua: the current instant of a booking, which becomes its last promise.
--
-- KEYS[1+] parts      3 of each, then the turns of each when the policy has several rules, see parts.lua
-- ARGV[1]  count      how many parts, 1 to 16
-- ARGV[2]  job        who waits
-- ARGV[3+] parts      9 of each, see parts.lua
-- returns  {status, part, at_us, now_us, before, turns, then per turn: part, at_us, job}, integers, but for job, which is text;
--          before counts the permits ahead of it in the line of the part by which it waits; turns are of lines that it left, and of leases
--          status 0 unknown, 2 booked, 5 newer schema, 6 now is not covered, 7 an older limit than the ledger's, which is in at_us
local count, job = tonumber(ARGV[1]), ARGV[2]

local now = clock()
local P = read_parts(ARGV, count, 3, job)
local failed, which, newer = open_parts(P, now)
if failed then return { failed, which, newer, now, 0, 0 } end
local place, at, by = find_place(P, now)
if not place then return { 0, 0, 0, now, 0, 0 } end

-- an instant that is past is no new promise: how late it gets must show. Who is held
-- up by a narrower part than before stands there, and in nobody's way behind it.
local turns = {}
local moves = at > now and not is_parked(P[place].ticket)
local keeps = moves and stand_for(P, by, at, now)
for _, L in ipairs(P) do
  park(L)
  outlive(L, now)
end
if moves then turns = left_behind(P, keeps, now) end
missed(P, now, turns)
local reply = { 2, at > now and by or place, at, now, P[place].ahead, #turns / 3 }
for _, v in ipairs(turns) do reply[#reply + 1] = v end
return reply
