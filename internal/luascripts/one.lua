-- one.lua: instants as 7 bytes, and the shortest way: a permit of `sliding 1/W`
-- on a key on which nobody waits, as cheap as a GET and a SET.

local FITTED = 150000 -- the most records of a ring that are moved to where they just fit

local function seven(n)
  return string.char(floor(n / 281474976710656) % 256, floor(n / 1099511627776) % 256, floor(n / 4294967296) % 256,
    floor(n / 16777216) % 256, floor(n / 65536) % 256, floor(n / 256) % 256, n % 256)
end

-- of_seven is the number that stands from a byte of a text on
local function of_seven(s, from)
  local a, b, c, d, e, f, g = string.byte(s, from, from + 6)
  return (((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g
end

-- one answers a call of the form F, see acquire.lua, whose keys stand behind
-- KEYS[k]; nil when it takes a longer way. The ledger is that of sliding.lua with
-- one record, written under the same limit; a window is not below COPY, so no token
-- but the newest matters.
local function one(F, k, token, now)
  local key = KEYS[k + 1]
  if not F.px then
    F.W, F.version, F.now = tonumber(string.match(F.text, "^%d+", 10)), string.sub(F.text, 3, 9), seven(now)
    F.px = int(life(F.W))
  end
  local there, s, at, from = redis.call("EXISTS", key, KEYS[k + 2], KEYS[k + 3]), "", now, 0
  if there > 1 then return nil end
  if there > 0 then
    s = redis.call("GETRANGE", key, 0, 26)
    if #s ~= 26 or string.sub(s, 10, 16) ~= F.version or string.byte(s) ~= 115 or string.sub(s, 2, 9) == token then return nil end
    from = of_seven(s, 20) + F.W
    at = max(now, from)
    if at > now then return F.mode == 0 and { 0, 1, at, from } or nil end
  end
  -- not SET: what a script sets takes the room that an argument of its calls before had
  local value = "s" .. token .. F.version .. "\0\0\0" .. F.now
  redis.call("SETRANGE", key, 0, value)
  if there == 0 or not live(key, F.W) then
    if there > 0 then redis.call("SETRANGE", key, 0, value) end
    redis.call("PEXPIRE", key, F.px)
  end
  return there > 0 and now - from or -1
end
