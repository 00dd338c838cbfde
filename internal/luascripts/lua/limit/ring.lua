-- ring.lua: a short way for calls by one rule, `sliding n/W`, on the same key, on
-- which nobody waits: with one look at the key and one write. The ledger is that of
-- sliding.lua, written under the same limit.

local numbers = require("lib/numbers")
local timestamp = require("lib/timestamp")
local remember = require("limit/remember")
local floor, max, min = math.floor, math.max, math.min
local COPY, int, live = numbers.COPY, numbers.int, numbers.live
local FITTED, STRETCH, timestamp_at, timestamp = timestamp.FITTED, timestamp.STRETCH, timestamp.timestamp_at, timestamp.timestamp
local NOBODY, forget_old, remember = remember.NOBODY, remember.forget_old, remember.remember

local MOST = 2000 -- permits that are written at once: a long text is slow to make
local WHOLE = 54 -- permits of a ring that is read and written whole: one that is larger is slow to read

-- place is where a record stands, as text: a number costs a call of Redis more
local function place(index, more)
  return string.format("%d", 19 + index * 7 + more)
end

-- look reads a ring; nil when that takes a longer way
local function look(key, form)
  local s = redis.call("GETRANGE", key, "0", form.n <= WHOLE and "397" or "18")
  if s == "" then return { key = key, s = s, count = 0, head = -1, newest = 0 } end
  if #s < 19 or string.byte(s) ~= 115 or string.sub(s, 10, 16) ~= form.version then return nil end
  local a, b, c = string.byte(s, 17, 19)
  local log = { key = key, s = s, count = 0, head = (a * 256 + b) * 256 + c, newest = 0, holder = string.sub(s, 2, 9) }
  if form.n <= WHOLE and #s < 398 then
    log.count = (#s - 19) / 7
    if log.head < log.count then log.newest = timestamp_at(s, 20 + log.head * 7) end
  else
    local two = redis.call("GETRANGE", key, place(log.head, 0), place(log.head, 13)) -- the newest is the last, or the ring has turned
    if #two < 7 then return nil end
    log.s, log.newest = "", timestamp_at(two, 1)
    if #two < 14 then
      log.count = log.head + 1
    else
      log.count, log.oldest = (redis.call("STRLEN", key) - 19) / 7, timestamp_at(two, 8)
    end
  end
  if log.count < 1 or log.head >= log.count or (log.count < form.n and log.head ~= log.count - 1) then return nil end -- n was raised after the ring had turned
  return log
end

-- nth is the j-th newest grant
local function nth(log, j)
  if j == log.count and log.oldest then return log.oldest end
  local index = (log.head - j + 1) % log.count
  if 26 + index * 7 <= #log.s then return timestamp_at(log.s, 20 + index * 7) end
  return timestamp_at(redis.call("GETRANGE", log.key, place(index, 0), place(index, 6)), 1)
end

-- slot is when so many permits go at once, or when all of the ring that they write over has gone
local function slot(log, form, permits, now)
  local at, j = max(now, log.newest), form.n - permits + 1
  return j > log.count and at or max(at, nth(log, j) + form.W)
end

-- write spends permits for a token
local function write(log, form, at, permits, token, now)
  local size, header, records = max(form.n, log.count), "s" .. token .. form.version, timestamp(at)
  repeat
    local from = (log.head + 1) % size
    local run, text = min(permits, size - from), permits > 1 and string.rep(records, permits) or records
    log.head = (log.head + permits) % size
    log.count = min(size, log.count + permits)
    local head = header .. string.char(floor(log.head / 65536) % 256, floor(log.head / 256) % 256, log.head % 256)
    -- not SET: what a script sets takes the room that an argument of its calls before had
    local second = false
    if from == 0 then
      redis.call("SETRANGE", log.key, "0", head .. text)
    elseif run == permits and log.s ~= "" then
      redis.call("SETRANGE", log.key, "0", head .. string.sub(log.s, 20, 19 + from * 7) .. text .. string.sub(log.s, 20 + (from + run) * 7))
    else
      second = true
      redis.call("SETRANGE", log.key, place(from, 0), run == permits and text or string.sub(text, 1, run * 7))
    end
    local lives = live(log.key, at + form.W - now) -- before a second write: what had gone would begin with that
    if lives and second then redis.call("SETRANGE", log.key, "0", run == permits and head or head .. string.sub(text, run * 7 + 1)) end
    if not lives then log.count, log.head, log.s = 0, -1, "" end -- nothing else counts any more: the key's life was over
  until lives
  log.s, log.oldest, log.newest, log.holder = "", nil, at, token
end

-- ring answers what it can of the calls i..last, of one form and whose keys stand
-- behind keys[k], and where the long way begins
local function ring(keys, args, form, k, i, last, now, replies)
  if redis.call("EXISTS", keys[k + 3]) > 0 then return i end
  local key, tokens, n, W, want, first = keys[k + 1], keys[k + 2], form.n, form.W, form.want, i
  local log = look(key, form)
  if not log then return i end

  local mine, seen = {}, nil
  if i == last then
    mine[1] = string.sub(args[1 + i], 2, 9)
    if mine[1] == log.holder then return i end
  else
    seen = { [log.holder or ""] = true }
    for m = i, last do
      local token = string.sub(args[1 + m], 2, 9)
      if seen[token] then return i end
      seen[token], mine[m - i + 1] = true, token
    end
  end
  local known = #mine + 1
  mine[known] = log.holder or mine[1]
  local scores = redis.call("ZMSCORE", tokens, unpack(mine))
  known = log.holder and tonumber(scores[known] or "") == log.newest
  for m = 1, #mine - 1 do
    if scores[m] then return i end
  end

  while i <= last do
    local many = min(last - i + 1, floor(n / want), max(1, floor(MOST / want)))
    local at = slot(log, form, many * want, now)
    while many > 1 and at > now do
      many = floor(many / 2)
      at = slot(log, form, many * want, now)
    end
    if want > MOST then return i end
    if at > now then
      form.inline, form.most = form.inline or timestamp_at(form.text, 23), form.most or timestamp_at(form.text, 30) - 1
      if form.most >= 0 and at > now + form.most then return i end
      if form.mode == 0 or at > now + form.inline then break end
    end
    local newest, holder, grows, list = log.newest, log.holder, log.count > 0 and log.count < n, {}
    local since = newest > 0 and max(newest, n - want < log.count and nth(log, n - want + 1) + W or 0) or nil
    write(log, form, at, many * want, mine[i - first + many], now)
    if grows and log.count == n and n <= FITTED then -- it grows no more: half of it is room to grow
      redis.call("SET", key, redis.call("GETRANGE", key, "0", "-1"), "KEEPTTL")
    end

    if holder and holder ~= NOBODY and newest + COPY > now then list = { int(newest), holder } end
    local text = int(at)
    for m = i - first + 1, i - first + many - (W < COPY and 0 or 1) do
      list[#list + 1] = text
      list[#list + 1] = mine[m]
    end
    if W >= COPY then
      if #list > 0 then remember(tokens, list, tonumber(list[#list - 1]), now) end
    else -- as remember, but that a life that is long enough is not looked at
      redis.call("ZADD", tokens, "NX", unpack(list))
      forget_old(tokens, "0", int(now - COPY), 20 + #list)
      if not known or floor(newest / STRETCH) ~= floor(at / STRETCH) then live(tokens, at + COPY - now) end
    end
    known = W < COPY
    if at > now then
      replies[i] = { 1, 0, at, since }
      for m = i + 1, i + many - 1 do replies[m] = { 1, 0, at, at } end
    else
      replies[i] = since and now - since or -1
      for m = i + 1, i + many - 1 do replies[m] = 0 end
    end
    i = i + many
  end
  if i > last or form.mode ~= 0 then return i end
  local at = slot(log, form, want, now)
  local refused = { 0, 1, at, log.newest > 0 and max(log.newest, n - want < log.count and nth(log, n - want + 1) + W or 0) or 0 }
  for m = i, last do replies[m] = refused end
  return last + 1
end

return ring
