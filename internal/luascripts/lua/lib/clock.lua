-- clock.lua: the one reading of Redis' clock.

-- read once per script: the clock moves while a script runs on some servers. The
-- seconds and the microseconds stand in a second value, as text.
local function clock()
  local t = redis.call("TIME")
  return t[1] * 1000000 + t[2], t
end

return clock
