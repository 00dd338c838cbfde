-- adjust.lua: a grant turns out to have cost more, or less.
--
-- KEYS[1+] rules      3 of each, then the turns of each when the policy has several rules, see rulecall.lua; the cost of each is the difference:
--                     above 0 what is paid more, below 0 what comes back, 0 for nothing
-- ARGV[1]  token      8 bytes, the grant
-- ARGV[2]  adjustment 8 bytes, which name this adjustment; the same is done once
-- ARGV[3]  text       of the rules, see rulecall.lua
-- ARGV[4+] stated     2 of each rule: the instant of the grant, and until when it may be found by that, see tokens.lua; zeros when that
--                     is not known
-- returns  {status, rule, now_us, version, then when it is done what was spent of each rule, promotions}, integers; see with_promotions
--          in line.lua
--          status 0 was done before, 1 done, 5 to 8 see ledger.lua, the version is that of 7; rule is the one that can't
--          be read

local clock = require("lib/clock")
local ledger = require("limit/ledger")
local line = require("limit/line")
local tokens = require("limit/tokens")
local rulecall = require("limit/rulecall")
local max, min = math.max, math.min
local outlive = ledger.outlive
local promote, with_promotions = line.promote, line.with_promotions
local grant, granted, held_at, keep_adjustment, lessen, read_stated =
  tokens.grant, tokens.granted, tokens.held_at, tokens.keep_adjustment, tokens.lessen, tokens.read_stated
local open_rules, rules_at = rulecall.open_rules, rulecall.rules_at

return function(keys, args)
  local token, adjustment = args[1], args[2]

  local now = clock()
  local rules = rules_at(args[3], keys, 0, #keys, "", now)
  local failed, which, newer = open_rules(rules, now)
  if failed then return { failed, which, now, newer, 0 } end
  read_stated(rules, args, 4)
  for _, rule in ipairs(rules) do -- each remembers it as long as what it corrects counts there
    if rule.want ~= 0 and held_at(rule, adjustment) then return { 0, 0, now, 0, 0 } end
  end

  local promoted, first, reply = {}, nil, { 1, 0, now, 0 }
  for i, rule in ipairs(rules) do
    local held, at, want, spent = granted(rule, token, first), now, rule.want, 0
    first = first or held
    if want > 0 and not rule.kind.lease then -- charge what was used; a rule that can't owe is charged what is free at most
      at = max(now, rule.ledger.newest)
      spent = rule.kind.no_debt and min(want, rule.kind.free(rule.limit, rule.ledger, at)) or want
      rule.want = spent
      if spent > 0 then grant(rule, now, at, adjustment) end
      rule.want = want
    elseif rule.want < 0 and held and held > 0 and not rule.kind.lease then
      lessen(rule, now, held, token)
      promote(rule, now, promoted, true)
    end
    outlive(rule, now)
    if not rule.kind.lease and want ~= 0 then keep_adjustment(rule, adjustment, at, now) end
    reply[4 + i] = spent
  end
  return with_promotions(reply, rules, now, promoted)
end
