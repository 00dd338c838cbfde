-- lookup.lua: where a booking stands, without changing it: refresh.lua makes what it answers the last promise, by which who
-- does not come is late.
--
-- KEYS[1+] rules      3 of each, then the turns of each when the policy has several rules, see rulecall.lua
-- ARGV[1]  text       of the rules, see rulecall.lua
-- ARGV[2]  job        who waits
-- ARGV[3]  hold       1: nothing goes while permits may count that this server has not heard of, see server.lua; else 0
-- returns  {status, rule, at_us, now_us, permits, jobs, parked, closed_us, held_us}, integers: by which rule it waits until when; how many
--          permits and jobs are ahead of it in the line where it stands; 1 when it came too late and is not counted in that line;
--          until when the key of that rule is closed, 0 when it is not; until when it is held, 0 when it is not, -1 when nobody knows it
--          status 0 unknown, 2 booked, 5 to 8 see ledger.lua, the version of 7 is in at_us

local clock = require("lib/clock")
local line = require("limit/line")
local rulecall = require("limit/rulecall")
local GRACE, is_parked, promised = line.GRACE, line.is_parked, line.promised
local find_place, hold_after_failover, open_rules, rules_at = rulecall.find_place, rulecall.hold_after_failover, rulecall.open_rules, rulecall.rules_at

return function(keys, args)
  local job = args[2]

  local now = clock()
  local rules = rules_at(args[1], keys, 0, #keys, job, now)
  local failed, which, newer = open_rules(rules, now)
  if failed then return { failed, which, newer, now, 0, 0, 0, 0, 0 } end
  local closed, held = {}, {}
  for i, rule in ipairs(rules) do closed[i], held[i] = rule.closed, 0 end
  if args[3] == "1" then held = hold_after_failover(rules, now) end
  local place, at, delayed_by = find_place(rules, now)
  if not place then return { 0, 0, 0, now, 0, 0, 0, 0, 0 } end

  local rule = rules[place]
  local parked = is_parked(rule.ticket) or (promised(rule, rule.member) or 0) + GRACE < now
  local binding = at > now and delayed_by or place
  return { 2, binding, at, now, rule.ahead, rule.waiting + rule.turns_ahead, parked and 1 or 0, closed[binding], held[binding] }
end
