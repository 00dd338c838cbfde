-- numbers.lua: numbers as text, and lives of keys.
--
-- What is here takes little from around it, for a call of acquire.lua makes it several times:
-- what a function takes costs as much as the function.

local COPY = 60000000 -- a copy of a call is not expected later than this

-- tostring and .. cut a number to 14 digits; a time in microseconds has 16
local function int(n)
  return string.format("%.0f", n)
end

-- whole milliseconds of a key's life, with some to spare: miniredis counts it
-- from when it took the script on, which under load is well before our TIME
local function life(us)
  return math.ceil(us / 1000) + 250
end

-- live gives a key that must live at least so long its life; it never shortens what the
-- key has, nor lengthens it by what is not worth a command. False when there is no such
-- key: between two commands of a script miniredis may let a key go, and what was just
-- written. A life must not come before the first write: it would be one, and behind that
-- a full Redis refuses nothing.
local function live(key, us)
  local px = math.ceil(us / 1000) + 250 -- as life
  return redis.call("PTTL", key) >= px - 50 or redis.call("PEXPIRE", key, string.format("%.0f", px)) == 1
end

return {
  COPY = COPY, int = int, life = life, live = live,
}
