-- one.lua: the shortest way: a permit of `sliding 1/W` on a key on which nobody
-- waits, as cheap as a GET and a SET.

-- one answers a call of the form F, see form.lua, whose keys stand behind
-- KEYS[k]; nil when it takes a longer way. The ledger is that of sliding.lua with
-- one record, written under the same limit; a window is not below COPY, so no token
-- but the newest matters.
local function one(F, k, token, now)
  local key = KEYS[k + 1]
  local there, s, at, from = redis.call("EXISTS", key, KEYS[k + 2], KEYS[k + 3]), "", now, 0
  if there > 1 then return nil end
  if there > 0 then
    s = redis.call("GETRANGE", key, "0", "26")
    if #s ~= 26 or string.sub(s, 10, 16) ~= F.version or string.byte(s) ~= 115 or string.sub(s, 2, 9) == token then return nil end
    from = of_seven(s, 20) + F.W
    at = max(now, from)
    if at > now then return F.mode == 0 and { 0, 1, at, from } or nil end
  end
  F.now = F.now or seven(now)
  -- not SET: what a script sets takes the room that an argument of its calls before had
  local value = "s" .. token .. F.version .. "\0\0\0" .. F.now
  redis.call("SETRANGE", key, "0", value)
  if there == 0 or not live(key, F.W) then
    if there > 0 then redis.call("SETRANGE", key, "0", value) end
    local px = life(F.W)
    F.px = F.px or string.format(px < 2147483648 and "%d" or "%.0f", px) -- the first costs half
    redis.call("PEXPIRE", key, F.px)
  end
  return there > 0 and now - from or -1
end
