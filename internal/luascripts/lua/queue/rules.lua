-- rules.lua: say which rules run with which limits, and hear what others say.
--
-- KEYS[1]  rules      sorted set, member "rule limit", score = last seen in microseconds; expires with its newest
-- ARGV[1]  ttl_us     how long a member counts
-- ARGV[2]  count      how many members we run, 0 to 1000
-- ARGV[3+] members    "rule limit"
-- returns  at most 1000 members that count, those seen last first, as text

local clock = require("lib/clock")
local numbers = require("lib/numbers")
local int, life = numbers.int, numbers.life

return function(keys, args)
  local rules, ttl, count = keys[1], tonumber(args[1]), tonumber(args[2])

  local now = clock()
  for i = 1, count do redis.call("ZADD", rules, int(now), args[2 + i]) end
  redis.call("ZREMRANGEBYSCORE", rules, "-inf", int(now - ttl))
  if count > 0 then redis.call("PEXPIRE", rules, int(life(ttl))) end
  return redis.call("ZRANGE", rules, 0, 999, "REV")
end
