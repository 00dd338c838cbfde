-- clock.lua: the one reading of Redis' clock, and numbers as text.

local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

local COPY = 60000000 -- a copy of a call is not expected later than this

-- read once per script: the clock moves while a script runs on some servers
local function clock()
  local t = redis.call("TIME")
  return t[1] * 1000000 + t[2]
end

-- tostring and .. cut a number to 14 digits; a time in microseconds has 16
local function int(n)
  return string.format("%.0f", n)
end

-- whole milliseconds of a key's life: rounded up, so that no key dies early
local function life(us)
  return ceil(us / 1000) + 1
end

-- asynq's whole-second score of a task that is due at an instant: 5 s later
-- asynq's own forwarder may take it, should every waker be gone
local function second_net(at)
  return int(floor(at / 1000000) + 5)
end

-- a key that must live at least so long; never shortens what it has
local function live(key, us)
  if redis.call("PTTL", key) < life(us) then redis.call("PEXPIRE", key, int(life(us))) end
end
