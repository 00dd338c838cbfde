-- lone.lua: the way of ring.lua for one permit of a call that comes alone: granted now,
-- or refused. It does the same with the least that can be asked of Redis and of Lua: a
-- function, a table, a number that becomes text, each costs as much as a small command.

-- lone answers the call of a form that is a text; nil when that takes a longer way
local function lone(form, token, now)
  local key, tokens = KEYS[1], KEYS[2]
  if redis.call("EXISTS", KEYS[3]) > 0 then return nil end
  local a, b, c, d, e, f, g, h, i, j, k, l, m = string.byte(form, 10, 22)
  if k + l > 0 or m ~= 1 then return nil end -- several permits
  local W = (((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g
  local n, version = (h * 256 + i) * 256 + j, string.sub(form, 3, 9)
  local head, count, newest, holder, from = -1, 0, 0, nil, 0
  local s = redis.call("GETRANGE", key, "0", "25")
  if s ~= "" then
    if #s < 26 or string.byte(s) ~= 115 or string.sub(s, 10, 16) ~= version then return nil end
    a, b, c = string.byte(s, 17, 19)
    head, holder = (a * 256 + b) * 256 + c, string.sub(s, 2, 9)
    local two = redis.call("GETRANGE", key, string.format("%d", 19 + head * 7), string.format("%d", 32 + head * 7))
    if #two < 7 then return nil end
    local turned = #two > 7 -- else the newest is the last, and the first is the oldest
    count, newest = turned and (redis.call("STRLEN", key) - 19) / 7 or head + 1, of_seven(two, 1)
    if count > n or turned and count < n then return nil end -- n was another
    from = count == n and max(newest, of_seven(turned and two or s, turned and 8 or 20) + W) or newest
    if token == holder or from > now and (string.byte(form, 2) ~= 48 or string.sub(form, 30, 36) ~= "\0\0\0\0\0\0\0") then return nil end
    if count == n - 1 and n <= FITTED then return nil end -- it grows no more
  end
  local scores = redis.call("ZMSCORE", tokens, token, holder or token)
  if scores[1] then return nil end
  if from > now then return { 0, 1, from, from } end

  local record, lives = seven(now), false
  head = (head + 1) % n
  if head > 0 then
    redis.call("SETRANGE", key, string.format("%d", 19 + head * 7), record)
    lives = live(key, W)
    if lives then redis.call("SETRANGE", key, "0", "s" .. token .. version .. string.char(floor(head / 65536), floor(head / 256) % 256, head % 256)) end
  end
  while not lives do -- it begins, or what was there has gone meanwhile
    redis.call("SETRANGE", key, "0", "s" .. token .. version .. "\0\0\0" .. record)
    lives = live(key, W)
  end

  local short, known = W < COPY, holder and tonumber(scores[2] or "") == newest
  local forget_old, remember = memory()
  if short then
    redis.call("ZADD", tokens, "NX", string.format("%d%06d", floor(now / 1000000), now % 1000000), token)
    forget_old(tokens, "0", string.format("%d%06d", floor((now - COPY) / 1000000), now % 1000000), 24) -- COPY is whole seconds
    if known and floor(newest / STRETCH) == floor(now / STRETCH) then return now - from end
  end
  if holder and not scores[2] and holder ~= "\0\0\0\0\0\0\0\0" and newest + COPY > now then
    remember(tokens, { int(newest), holder }, newest, now)
  end
  if short then live(tokens, COPY) end
  return newest > 0 and now - from or -1
end
