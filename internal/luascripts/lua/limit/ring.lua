-- ring.lua: a short way for calls by one rule, `sliding n/W`, on the same key, on
-- which nobody waits: with one look at the key and one write. The ledger is that of
-- sliding.lua, written under the same limit.

local MOST = 2000 -- permits that are written at once: a long text is slow to make
local WHOLE = 54 -- permits of a ring that is read and written whole: one that is larger is slow to read

-- place is where a record stands, as text: a number costs a call of Redis more
local function place(index, more)
  return string.format("%d", 19 + index * 7 + more)
end

-- look reads a ring; nil when that takes a longer way
local function look(key, F)
  local s = redis.call("GETRANGE", key, "0", F.n <= WHOLE and "397" or "18")
  if s == "" then return { key = key, s = s, count = 0, head = -1, newest = 0 } end
  if #s < 19 or string.byte(s) ~= 115 or string.sub(s, 10, 16) ~= F.version then return nil end
  local a, b, c = string.byte(s, 17, 19)
  local R = { key = key, s = s, count = 0, head = (a * 256 + b) * 256 + c, newest = 0, holder = string.sub(s, 2, 9) }
  if F.n <= WHOLE and #s < 398 then
    R.count = (#s - 19) / 7
    if R.head < R.count then R.newest = of_seven(s, 20 + R.head * 7) end
  else
    local two = redis.call("GETRANGE", key, place(R.head, 0), place(R.head, 13)) -- the newest is the last, or the ring has turned
    if #two < 7 then return nil end
    R.s, R.newest = "", of_seven(two, 1)
    if #two < 14 then
      R.count = R.head + 1
    else
      R.count, R.oldest = (redis.call("STRLEN", key) - 19) / 7, of_seven(two, 8)
    end
  end
  if R.count < 1 or R.head >= R.count or (R.count < F.n and R.head ~= R.count - 1) then return nil end -- n was raised after the ring had turned
  return R
end

-- nth is the j-th newest grant
local function nth(R, j)
  if j == R.count and R.oldest then return R.oldest end
  local index = (R.head - j + 1) % R.count
  if 26 + index * 7 <= #R.s then return of_seven(R.s, 20 + index * 7) end
  return of_seven(redis.call("GETRANGE", R.key, place(index, 0), place(index, 6)), 1)
end

-- slot is when so many permits go at once, or when all of the ring that they write over has gone
local function slot(R, F, permits, now)
  local at, j = max(now, R.newest), F.n - permits + 1
  return j > R.count and at or max(at, nth(R, j) + F.W)
end

-- write spends permits for a token
local function write(R, F, at, permits, token, now)
  local size, header, records = max(F.n, R.count), "s" .. token .. F.version, seven(at)
  repeat
    local from = (R.head + 1) % size
    local run, text = min(permits, size - from), permits > 1 and string.rep(records, permits) or records
    R.head = (R.head + permits) % size
    R.count = min(size, R.count + permits)
    local head = header .. string.char(floor(R.head / 65536) % 256, floor(R.head / 256) % 256, R.head % 256)
    -- not SET: what a script sets takes the room that an argument of its calls before had
    local second = false
    if from == 0 then
      redis.call("SETRANGE", R.key, "0", head .. text)
    elseif run == permits and R.s ~= "" then
      redis.call("SETRANGE", R.key, "0", head .. string.sub(R.s, 20, 19 + from * 7) .. text .. string.sub(R.s, 20 + (from + run) * 7))
    else
      second = true
      redis.call("SETRANGE", R.key, place(from, 0), run == permits and text or string.sub(text, 1, run * 7))
    end
    local lives = live(R.key, at + F.W - now) -- before a second write: what had gone would begin with that
    if lives and second then redis.call("SETRANGE", R.key, "0", run == permits and head or head .. string.sub(text, run * 7 + 1)) end
    if not lives then R.count, R.head, R.s = 0, -1, "" end -- nothing else counts any more: the key's life was over
  until lives
  R.s, R.oldest, R.newest, R.holder = "", nil, at, token
end

-- ring answers what it can of the calls i..last, whose form is F and whose keys stand
-- behind KEYS[k], and where the long way begins
local function ring(F, k, i, last, now, replies)
  if redis.call("EXISTS", KEYS[k + 3]) > 0 then return i end
  local key, tokens, n, W, want, first = KEYS[k + 1], KEYS[k + 2], F.n, F.W, F.want, i
  local R = look(key, F)
  if not R then return i end

  local mine, seen = {}, nil
  if i == last then
    mine[1] = string.sub(ARGV[1 + i], 2, 9)
    if mine[1] == R.holder then return i end
  else
    seen = { [R.holder or ""] = true }
    for m = i, last do
      local token = string.sub(ARGV[1 + m], 2, 9)
      if seen[token] then return i end
      seen[token], mine[m - i + 1] = true, token
    end
  end
  local known = #mine + 1
  mine[known] = R.holder or mine[1]
  local scores = redis.call("ZMSCORE", tokens, unpack(mine))
  known = R.holder and tonumber(scores[known] or "") == R.newest
  for m = 1, #mine - 1 do
    if scores[m] then return i end
  end

  while i <= last do
    local many = min(last - i + 1, floor(n / want), max(1, floor(MOST / want)))
    local at = slot(R, F, many * want, now)
    while many > 1 and at > now do
      many = floor(many / 2)
      at = slot(R, F, many * want, now)
    end
    if want > MOST then return i end
    if at > now then
      F.inline, F.most = F.inline or of_seven(F.text, 23), F.most or of_seven(F.text, 30) - 1
      if F.most >= 0 and at > now + F.most then return i end
      if F.mode == 0 or at > now + F.inline then break end
    end
    local newest, holder, grows, list = R.newest, R.holder, R.count > 0 and R.count < n, {}
    local since = newest > 0 and max(newest, n - want < R.count and nth(R, n - want + 1) + W or 0) or nil
    write(R, F, at, many * want, mine[i - first + many], now)
    if grows and R.count == n and n <= FITTED then -- it grows no more: half of it is room to grow
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
  if i > last or F.mode ~= 0 then return i end
  local at = slot(R, F, want, now)
  local refused = { 0, 1, at, R.newest > 0 and max(R.newest, n - want < R.count and nth(R, n - want + 1) + W or 0) or 0 }
  for m = i, last do replies[m] = refused end
  return last + 1
end
