-- settle.lua: a grant turns out to have cost more, or less.
--
-- KEYS[1+] parts      3 of each, then the turns of each when the policy has several rules, see parts.lua; the cost of each is the difference:
--                     above 0 what is paid more, below 0 what comes back, 0 for nothing
-- ARGV[1]  count      how many parts, 1 to 16
-- ARGV[2]  token      8 bytes, the grant
-- ARGV[3]  bill       8 bytes, this settling; the same is done once
-- ARGV[4+] parts      9 of each, see parts.lua; behind them all 2 of each: the instant of the grant, and until when it may be found by
--                     that, see correct.lua; zeros when that is not known
-- returns  {status, part, now_us, version, turns, then per turn: part, at_us, job}, integers, but for job, which is text
--          status 0 was done before, 1 done, 5 newer schema, 6 now is not covered, 7 an older limit than the ledger's, which is
--          then in version; part is the one that can't be read
local count, token, bill = tonumber(ARGV[1]), ARGV[2], ARGV[3]

local now = clock()
local P = read_parts(ARGV, count, 4, "")
local failed, which, newer = open_parts(P, now)
if failed then return { failed, which, now, newer, 0 } end
read_told(P, ARGV, 4 + 9 * count)
for _, L in ipairs(P) do -- each remembers it as long as what it corrects counts there
  if L.want ~= 0 and holds(L, bill) then return { 0, 0, now, 0, 0 } end
end

local turns = {}
for _, L in ipairs(P) do
  local held, at = granted(L, token), now
  if L.want > 0 and not L.kind.lease then -- what was used is spent, whatever the limit says
    at = max(now, L.newest)
    grant(L, now, at, bill)
  elseif L.want < 0 and held and held > 0 and not L.kind.lease then
    lessen(L, now, held, token)
    next_turns(L, now, turns, true)
  end
  outlive(L, now)
  if not L.kind.lease and L.want ~= 0 then bill_of(L, bill, at, now) end
end
local reply = { 1, 0, now, 0, #turns / 3 }
for _, v in ipairs(turns) do reply[#reply + 1] = v end
return reply
