-- replan_claim.lua: one pool alone plans anew what a queue defers, when the limit of
-- a rule has changed.
--
-- KEYS[1]  claim      string, who does it; expires soon after its owner fell silent
-- KEYS[2]  planned    hash, rule -> version of its limit by which the queue is planned
-- ARGV[1]  owner      who asks
-- ARGV[2]  ttl_us     how long the claim holds
-- ARGV[3]  count      how many rules, 1 to 1000
-- ARGV[4+] per rule   rule, version
-- returns  {claimed 0|1, then count integers}: 1 for a rule whose change is not planned yet; nobody claims when there is none

local numbers = require("lib/numbers")
local int, life = numbers.int, numbers.life

return function(keys, args)
  local claim, planned = keys[1], keys[2]
  local owner, ttl, count = args[1], tonumber(args[2]), tonumber(args[3])

  local reply, open = { 0 }, 0
  for i = 1, count do
    local version = tonumber(args[3 + 2 * i])
    local by = tonumber(redis.call("HGET", planned, args[2 + 2 * i]) or "0")
    -- version 0: nothing is stored any more, which counts where another version was planned. A caller that knows a lower
    -- version than was planned has not heard of the change yet
    reply[1 + i] = (version > by or version == 0 and by > 0) and 1 or 0
    open = open + reply[1 + i]
  end
  local holder = redis.call("GET", claim)

  if open > 0 and (not holder or holder == owner) then
    redis.call("SET", claim, owner, "PX", int(life(ttl)))
    reply[1] = 1
  end
  return reply
end
