-- replan_done.lua: a queue is planned by the limits that are in force; its claim
-- ends.
--
-- KEYS[1]  claim      string, who plans it
-- KEYS[2]  planned    hash, rule -> version of its limit; expires a week after it was written last
-- ARGV[1]  owner      who planned it
-- ARGV[2]  count      how many rules, 0 to 1000; none only gives the claim back
-- ARGV[3+] per rule   rule, version; 0 when none is stored
-- returns  1, or 0 when the claim was lost: then another does it again

local numbers = require("lib/numbers")
local live = numbers.live

return function(keys, args)
  local claim, planned = keys[1], keys[2]
  local owner, count = args[1], tonumber(args[2])

  if redis.call("GET", claim) ~= owner then return 0 end

  for i = 1, count do redis.call("HSET", planned, args[1 + 2 * i], args[2 + 2 * i]) end
  live(planned, 604800000000)
  redis.call("DEL", claim)
  return 1
end
