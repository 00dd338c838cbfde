-- lone.lua: the ways of ring.lua and one.lua for one permit of a call that comes alone:
-- granted now, or refused. It does the same with the least that can be asked of Redis and
-- of Lua: a function, what a function takes from around it, a table, a number that becomes
-- text, each costs as much as a small command.
--
-- lone answers the call of a form that is a
-- text; nil when that takes a longer way.

local numbers = require("lib/numbers")
local timestamp = require("lib/timestamp")
local floor, max = math.floor, math.max
local COPY, life, live = numbers.COPY, numbers.life, numbers.live
local FITTED, STRETCH, timestamp_at, timestamp = timestamp.FITTED, timestamp.STRETCH, timestamp.timestamp_at, timestamp.timestamp

local function lone(keys, form, token, now, told)
  local call, key, tokens = redis.call, keys[1], keys[2]
  local a, b, c, d, e, f, g, h, i, j, k, l, m = string.byte(form, 10, 22)
  if k + l > 0 or m ~= 1 then return nil end -- several permits
  local W, version = (((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g, string.sub(form, 3, 9)

  local there = 0
  if string.byte(form) == 111 then
    there = call("EXISTS", key, tokens, keys[3])
    if there == 0 then -- as of most phones
      -- not SET: what a script sets takes the room that an argument of its calls before had
      call("SETRANGE", key, "0", "s" .. token .. version .. "\0\0\0" .. timestamp(now))
      local px = life(W)
      call("PEXPIRE", key, string.format(px < 2147483648 and "%d" or "%.0f", px)) -- the first costs half
      return -1
    end
  end

  local s = call("GETRANGE", key, "0", "26")
  local sole = there == 1 and s ~= "" -- there are no tokens, and nobody waits
  if not sole and call("EXISTS", keys[3]) > 0 then return nil end
  local n, head, count, newest, from, holder = (h * 256 + i) * 256 + j, -1, 0, 0, 0, nil
  if s ~= "" then
    if #s < 26 or string.byte(s) ~= 115 or string.sub(s, 10, 16) ~= version then return nil end
    a, b, c = string.byte(s, 17, 19)
    head, holder = (a * 256 + b) * 256 + c, string.sub(s, 2, 9)
    local oldest = s
    if #s == 26 then
      if head > 0 then return nil end
      count, newest = 1, timestamp_at(s, 20)
    else
      local two = call("GETRANGE", key, string.format("%d", 19 + head * 7), string.format("%d", 32 + head * 7))
      if #two < 7 then return nil end
      count, newest = head + 1, timestamp_at(two, 1)
      if #two > 7 then -- the ring has turned; else the newest is the last, and the first is the oldest
        count, oldest = (call("STRLEN", key) - 19) / 7, two
        if count < n then return nil end -- n was another
      end
    end
    if count > n then return nil end
    from = newest
    if count == n then from = max(newest, timestamp_at(oldest, oldest == s and 20 or 8) + W) end
    if token == holder or from > now and (string.byte(form, 2) ~= 48 or string.sub(form, 30, 36) ~= "\0\0\0\0\0\0\0") then return nil end
    if count == n - 1 and n <= FITTED then return nil end -- it grows no more
  end
  if not sole and call("ZSCORE", tokens, token) then return nil end
  if from > now then return { 0, 1, from, from } end

  local record, lives = timestamp(now), false
  head = (head + 1) % n
  if head > 0 then
    if head == count then
      lives = call("APPEND", key, record) == 26 + head * 7
    else
      lives = call("SETRANGE", key, string.format("%d", 19 + head * 7), record)
    end
    lives = lives and live(key, W)
    local low = head % 256
    if lives then call("SETRANGE", key, "0", "s" .. token .. version .. string.char(floor(head / 65536), (head - low) / 256 % 256, low)) end
  end
  while not lives do -- it begins, or what was there has gone meanwhile
    call("SETRANGE", key, "0", "s" .. token .. version .. "\0\0\0" .. record)
    lives = live(key, W)
  end

  -- as remember.lua; COPY is whole seconds
  local us, old_holder, new = #told[2] == 6 and told[2] or string.format("%06d", now % 1000000), nil, 0
  if holder and holder ~= "\0\0\0\0\0\0\0\0" and newest + COPY > now then old_holder = holder end
  if W < COPY then
    local score = told[1] .. us
    if old_holder then -- it is there as a rule, and so worth no look before
      new = call("ZADD", tokens, "NX", score, token, score, holder) - 1
    else
      call("ZADD", tokens, "NX", score, token)
    end
    if new > 0 then call("ZADD", tokens, "XX", string.format("%d%06d", floor(newest / 1000000), newest % 1000000), holder) end
  elseif old_holder then
    new = call("ZADD", tokens, "NX", string.format("%d%06d", floor(newest / 1000000), newest % 1000000), holder)
  end
  if W < COPY or new > 0 then
    local thick = floor(newest / STRETCH) == floor(now / STRETCH) -- the grant before is of this part of time
    if not thick or now % 8 == 0 then -- else one in eight clears for all of them
      local old = call("ZRANGEBYSCORE", tokens, "0", string.format("%d", told[1] - COPY / 1000000) .. us, "LIMIT", "0", "64")
      if #old > 0 then call("ZREM", tokens, unpack(old)) end
    end
    if W >= COPY then
      live(tokens, newest + COPY - now)
    elseif new > 0 or not old_holder or not thick then
      live(tokens, COPY)
    end
  end
  return newest > 0 and now - from or -1
end

return lone
