-- clock.lua: the one reading of Redis' clock, and numbers as text.

local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

local COPY = 60000000 -- a copy of a call is not expected later than this

-- read once per script: the clock moves while a script runs on some servers. The
-- seconds and the microseconds stand in a second value, as text.
local function clock()
  local t = redis.call("TIME")
  return t[1] * 1000000 + t[2], t
end

-- These take little from around them: all of them are made by each call of acquire.lua,
-- and what a function takes costs as much as the function.

-- tostring and .. cut a number to 14 digits; a time in microseconds has 16
local function int(n)
  return string.format("%.0f", n)
end

-- whole milliseconds of a key's life, with some to spare: miniredis counts it
-- from when it took the script on, which under load is well before our TIME
local function life(us)
  return ceil(us / 1000) + 250
end

-- asynq's whole-second score of a task that is due at an instant: 5 s later
-- asynq's own forwarder may take it, should every waker be gone
local function second_net(at)
  return string.format("%.0f", math.floor(at / 1000000) + 5)
end

-- live gives a key that must live at least so long its life; it never shortens what the
-- key has, nor lengthens it by what is not worth a command. False when there is no such
-- key: between two commands of a script miniredis may let a key go, and what was just
-- written. A life must not come before the first write: it would be one, and behind that
-- a full Redis refuses nothing.
local function live(key, us)
  local px = life(us)
  return redis.call("PTTL", key) >= px - 50 or redis.call("PEXPIRE", key, string.format("%.0f", px)) == 1
end
