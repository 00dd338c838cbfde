-- numbers.lua: numbers as text, and lives of keys.
--
-- What is here takes little from around it, for a call of acquire.lua makes it several times:
-- what a function takes costs as much as the function.

local call, format = redis.call, string.format
local RESENT_WITHIN = 60000000 -- when the reply to a call is lost, the call comes again within this time, or never
local NO_TOKEN = "\0\0\0\0\0\0\0\0" -- in place of a grant's token

-- tostring and .. cut a number to 14 digits; a time in microseconds has 16
local last, last_text -- most numbers of a script are its time
local function int(n)
  if n == last then return last_text end
  if n < 1000000 or n >= 2147483648000000 then
    last, last_text = n, format("%.0f", n)
  else -- a time is printed in half the time as two small numbers
    local us = n % 1000000
    last, last_text = n, format("%d%06d", (n - us) / 1000000, us)
  end
  return last_text
end

-- is notes a number whose text is known
local function is(n, text) last, last_text = n, text end

-- life is a key's life in whole milliseconds, with some to spare: calls that come shortly after
-- another need not make it longer
local function life(us)
  return math.ceil(us / 1000) + 50
end

-- live gives a key that must live at least so long its life. It never shortens what the key has, nor lengthens it by
-- what is not worth a command. Never give a key its life before the first write: after any successful write Redis no
-- longer refuses the script for want of memory.
local function live(key, us)
  local px = math.ceil(us / 1000) + 50 -- as life
  if call("PTTL", key) < px - 50 then call("PEXPIRE", key, format("%.0f", px)) end
end

return {
  RESENT_WITHIN = RESENT_WITHIN, NO_TOKEN = NO_TOKEN, int = int, is = is, life = life, live = live,
}
