-- cancel.lua: give a grant back, or leave the line, or both.
--
-- KEYS[1+] parts      3 of each, then the turns of each when the policy has several rules, see rulecall.lua
-- ARGV[1]  count      how many parts, 1 to 16
-- ARGV[2]  token      8 bytes, or "" when there is only a booking; refuses from now on
-- ARGV[3]  job        "" when there is no booking
-- ARGV[4]  back       1: a grant that is given back becomes the first place in the line again, and no place is left; above 1: the
--                     first turn, which is promised this instant, because a rule in another slot refuses
-- ARGV[5+] parts      9 of each, see rulecall.lua; behind them all 2 of each: the instant of the grant, and until when it may be found by
--                     that, see correct.lua; zeros when that is not known
-- returns  {status, part, now_us, version, turns, then per turn: part, at_us, member}, integers, but for member, "cost:job", which is text
--          status 0 no such grant, 1 given back, 5 newer schema, 6 now is not covered, 7 an older limit than the ledger's, which is
--          then in version; part is the one that can't be read

local clock = require("lib/clock")
local ledger = require("limit/ledger")
local line = require("limit/line")
local correct = require("limit/correct")
local rulecall = require("limit/rulecall")
local arguments = require("limit/arguments")
local comeback = require("limit/comeback")
local max = math.max
local outlive = ledger.outlive
local leave, missed, next_turns = line.leave, line.missed, line.next_turns
local granted, read_told, unspend, withdraw = correct.granted, correct.read_told, correct.unspend, correct.withdraw
local open_parts = rulecall.open_parts
local read_parts = arguments.read_parts
local first_ticket, join_at, stands = comeback.first_ticket, comeback.join_at, comeback.stands

return function(keys, args)
  local count, token, job, back = tonumber(args[1]), args[2], args[3], tonumber(args[4])

  local now = clock()
  local rules = read_parts(keys, args, count, 5, job)
  local failed, which, newer = open_parts(rules, now)
  if failed then return { failed, which, now, newer, 0 } end
  read_told(rules, args, 5 + 9 * count)

  local given, at, turns = 0, now, {}
  for i, rule in ipairs(rules) do
    local known = token ~= "" and granted(rule, token)
    local held = known and known > 0 and known
    -- the first write frees: a full Redis must not refuse to take anything back
    if token ~= "" then redis.call("ZREM", rule.tokens, token) end
    if rule.me ~= "" and back == 0 then
      stands(rule)
      leave(rule)
    end
    if held and not rule.kind.lease then unspend(rule, now, held, rule.want, token, rule.told_worth) end
    -- who knew the token alone may know the instant later: it must not come back twice
    if held and rule.told_until == 0 and not rule.kind.lease then rule.told_until = held + rule.W end
    if token ~= "" then withdraw(rule, token, known, now) end
    if i == 1 and held then
      given, at = 1, max(held, now)
    end
    if held and back > 0 and given == 1 and job ~= "" then -- a copy of this call finds nothing given: it must not take the place away
      if back > 1 then join_at(rule, rule.turns, first_ticket(rule), back, now, false) else join_at(rule, rule.line, first_ticket(rule), at, now, i > 1) end
    end
  end
  for _, rule in ipairs(rules) do
    outlive(rule, now)
    next_turns(rule, now, turns, true)
  end
  missed(rules, now, turns)
  local reply = { given, 0, now, 0, #turns / 3 }
  for _, v in ipairs(turns) do reply[#reply + 1] = v end
  return reply
end
