-- one.lua: the shortest way: a permit of `sliding 1/W` on a key on which nobody
-- waits, as cheap as a GET and a SET.

local numbers = require("lib/numbers")
local timestamp = require("lib/timestamp")
local max = math.max
local life, live = numbers.life, numbers.live
local timestamp_at, timestamp = timestamp.timestamp_at, timestamp.timestamp

-- one answers a call of a form, see form.lua, whose keys stand behind
-- keys[k]; nil when it takes a longer way. The ledger is that of sliding.lua with
-- one record, written under the same limit; a window is not below COPY, so no token
-- but the newest matters.
local function one(keys, form, k, token, now)
  local key = keys[k + 1]
  local there, s, at, from = redis.call("EXISTS", key, keys[k + 2], keys[k + 3]), "", now, 0
  if there > 1 then return nil end
  if there > 0 then
    s = redis.call("GETRANGE", key, "0", "26")
    if #s ~= 26 or string.sub(s, 10, 16) ~= form.version or string.byte(s) ~= 115 or string.sub(s, 2, 9) == token then return nil end
    from = timestamp_at(s, 20) + form.W
    at = max(now, from)
    if at > now then return form.mode == 0 and { 0, 1, at, from } or nil end
  end
  form.now = form.now or timestamp(now)
  -- not SET: what a script sets takes the room that an argument of its calls before had
  local value = "s" .. token .. form.version .. "\0\0\0" .. form.now
  redis.call("SETRANGE", key, "0", value)
  if there == 0 or not live(key, form.W) then
    if there > 0 then redis.call("SETRANGE", key, "0", value) end
    local px = life(form.W)
    form.px = form.px or string.format(px < 2147483648 and "%d" or "%.0f", px) -- the first costs half
    redis.call("PEXPIRE", key, form.px)
  end
  return there > 0 and now - from or -1
end

return one
