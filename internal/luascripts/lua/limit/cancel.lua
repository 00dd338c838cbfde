-- cancel.lua: give a grant back, or leave the line, or both.
--
-- KEYS[1+] rules      3 of each, then the turns of each when the policy has several, see rulecall.lua
-- ARGV[1]  token      8 bytes, or "" when there is only a booking; refuses from now on
-- ARGV[2]  job        "" when there is no booking
-- ARGV[3]  back       what the job gets for a grant that is given back: 0 nothing, and it leaves its lines; 1 the first place in the
--                     line, and it has no other; above 1 a turn, promised for this instant, because a later hash slot refuses; -1 a place in
--                     each line, where it is parked. Without a grant a place that it has is parked. See ticket_again in places.lua
-- ARGV[4]  text       of the rules, see rulecall.lua
-- ARGV[5+] stated     2 of each rule: the instant of the grant, and until when it may be found by that, see tokens.lua; zeros when that
--                     is not known
-- returns  {status, rule, now_us, version, promotions}, integers; see with_promotions in line.lua
--          status 0 no such grant, 1 given back, 5 to 8 see ledger.lua, the version is that of 7; rule is the one that can't
--          be read

local clock = require("lib/clock")
local ledger = require("limit/ledger")
local line = require("limit/line")
local tokens = require("limit/tokens")
local rulecall = require("limit/rulecall")
local places = require("limit/places")
local max = math.max
local outlive = ledger.outlive
local find_ticket, leave, promote, read_line, with_promotions = line.find_ticket, line.leave, line.promote, line.read_line, line.with_promotions
local granted, read_stated, unspend, withdraw = tokens.granted, tokens.read_stated, tokens.unspend, tokens.withdraw
local open_rules, rules_at = rulecall.open_rules, rulecall.rules_at
local find_ticket_alone, first_ticket, join_at, step_aside, ticket_again =
  places.find_ticket_alone, places.first_ticket, places.join_at, places.step_aside, places.ticket_again

return function(keys, args)
  local token, job, back = args[1], args[2], tonumber(args[3])

  local now = clock()
  local rules = rules_at(args[4], keys, 0, #keys, job, now)
  local failed, which, newer = open_rules(rules, now)
  if failed then return { failed, which, now, newer, 0 } end
  read_stated(rules, args, 5)

  -- each rule finds the grant, some by what the first one found; that one refuses until none of
  -- them can be found by its instant. Who knew the token alone may know the instant later: it must not
  -- come back twice
  local first, stated_until = nil, 0
  for _, rule in ipairs(rules) do
    rule.found = token ~= "" and granted(rule, token, first) or nil
    first = first or rule.found
    local held = rule.found and rule.found > 0
    if held and rule.stated_until == 0 and not rule.kind.lease then rule.stated_until = rule.found + rule.limit.counts end
    stated_until = max(stated_until, rule.stated_until)
  end

  -- with a place the job has come again since its grant, and this call knows less than that one
  local has_place = false
  for _, rule in ipairs(rules) do
    if rule.member ~= "" and back ~= 0 and back ~= 1 then
      read_line(rule, now)
      find_ticket(rule)
      has_place = has_place or rule.ticket ~= nil
    end
  end

  local given, at, promoted = 0, now, {}
  for i, rule in ipairs(rules) do
    local held = rule.found and rule.found > 0 and rule.found
    if i == 1 then redis.call("ZREM", rule.tokens, "") end -- nothing: a write that needs no memory comes first, so that a full Redis lets the others pass
    -- before anything comes back: a moving hash slot may end the script, and the same call must not give it back twice
    if token ~= "" and (i == 1 or rule.kind.lease) then withdraw(rule, token, rule.found, stated_until, now) end
    if rule.member ~= "" and back == 0 then
      find_ticket_alone(rule)
      leave(rule)
    elseif has_place and token == "" then
      step_aside(rule, now, now)
    end
    if held and not rule.kind.lease then unspend(rule, now, held, rule.want, token, rule.stated_worth) end
    if i == 1 and held then
      given, at = 1, max(held, now)
    end
    if held and given == 1 and job ~= "" then -- a copy of this call finds nothing given: it must not take the place away
      if back == 1 then
        join_at(rule, rule.line, first_ticket(rule), at, now, i > 1)
      elseif back ~= 0 and not has_place then
        join_at(rule, back > 1 and rule.turns or rule.line, ticket_again(rule), max(back, at), now, back < 0)
      end
    end
  end
  for _, rule in ipairs(rules) do
    outlive(rule, now)
    promote(rule, now, promoted, true)
  end
  return with_promotions({ given, 0, now, 0 }, rules, now, promoted)
end
