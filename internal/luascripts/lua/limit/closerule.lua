-- closerule.lua: nothing goes by a rule, on any key, until an instant, or again.
--
-- KEYS[1]  closing    string "version_us until_us"; lives until then, and for an hour when the rule was opened
-- KEYS[2]  stored     the channel on which changes of the rule are told
-- ARGV[1]  for_us     how long from now on; 0 opens it; below 0 only says that something has changed
-- returns  {version_us, until_us}, two integers, always; until_us 0 when it is open

local clock = require("lib/clock")
local numbers = require("lib/numbers")
local max = math.max
local int, life = numbers.int, numbers.life

return function(keys, args)
  local closing, stored, span = keys[1], keys[2], tonumber(args[1])
  local TRACE = 3600000000 -- so long everybody can see that it was opened

  local now = clock()
  local before, old = string.match(redis.call("GET", closing) or "", "^(%d+) (%d+)$")
  local version = max(now, tonumber(before or "0") + 1)
  local until_us = tonumber(old or "0")
  if span > 0 then until_us = max(now + span, until_us) elseif span == 0 or until_us <= now then until_us = 0 end

  redis.call("SET", closing, string.format("%.0f %.0f", version, until_us), "PX", int(life(until_us > 0 and until_us - now or TRACE)))
  redis.pcall("PUBLISH", stored, int(version)) -- as in setlimit.lua
  return { version, until_us }
end
