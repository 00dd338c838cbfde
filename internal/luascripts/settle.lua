-- settle.lua: a grant turns out to have cost more, or less.
--
-- KEYS[1+] parts      3 of each, then the turns of each when the policy has several rules, see parts.lua; the cost of each is the difference:
--                     above 0 what is paid more, below 0 what comes back, 0 for nothing
-- ARGV[1]  count      how many parts, 1 to 16
-- ARGV[2]  token      8 bytes, the grant
-- ARGV[3]  bill       8 bytes, this settling; the same is done once
-- ARGV[4+] parts      9 of each, see parts.lua
-- returns  {status, part, now_us, version, turns, then per turn: part, at_us, job}, integers, but for job, which is text
--          status 0 was done before, 1 done, 5 newer schema, 6 now is not covered, 7 an older limit than the ledger's, which is
--          then in version; part is the one that can't be read
local count, token, bill = tonumber(ARGV[1]), ARGV[2], ARGV[3]

local now = clock()
local P = read_parts(ARGV, count, 4, "")
local failed, which, newer = open_parts(P, now)
if failed then return { failed, which, now, newer, 0 } end
if holds(P[1], bill) then return { 0, 0, now, 0, 0 } end

local turns = {}
for _, L in ipairs(P) do
  local held = holds(L, token)
  if L.want > 0 and not L.kind.lease then -- what was used is spent, whatever the limit says
    grant(L, now, max(now, L.newest), bill)
  elseif L.want < 0 and held and held > 0 and not L.kind.lease then
    give_back(L, now, held, -L.want, L.told_worth)
    next_turns(L, now, turns, true)
  end
end
remember(P[1].tokens, { int(now), bill }, now, P[1].W, now)
local reply = { 1, 0, now, 0, #turns / 3 }
for _, v in ipairs(turns) do reply[#reply + 1] = v end
return reply
