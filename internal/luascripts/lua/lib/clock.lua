-- clock.lua: the one reading of Redis' clock.

local is = require("lib/numbers").is

-- read once per script: the clock moves while a script runs on some servers
local function clock()
  local t = redis.call("TIME")
  local now = t[1] * 1000000 + t[2]
  if #t[2] == 6 then is(now, t[1] .. t[2]) end -- then int(now) need not print it
  return now
end

return clock
