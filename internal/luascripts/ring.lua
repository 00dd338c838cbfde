-- ring.lua: a short way for calls by one rule, `sliding n/W`, on the same key, on
-- which nobody waits: with one look at the key and one write. The ledger is that of
-- sliding.lua, written under the same limit.

local MOST = 2000 -- permits that are written at once: a long text is slow to make

-- ring answers what it can of the calls i..last, whose form is F and whose keys stand
-- behind KEYS[k], and where the long way begins
local function ring(F, k, i, last, now, replies)
  local key, tokens = KEYS[k + 1], KEYS[k + 2]
  if not F.n then
    local W, inline, longest, n, want = string.match(F.text, "^(%d+)|1|%d|(%d+)|(%-?%d+)||0|0|s|(%d+)|%d+||%d+|(%d+)|", 10)
    F.W, F.n, F.want, F.longest, F.version = tonumber(W), tonumber(n), tonumber(want), tonumber(longest), string.sub(F.text, 3, 9)
    F.reach = now + (F.mode == 0 and 0 or tonumber(inline))
  end
  if redis.call("EXISTS", KEYS[k + 3]) > 0 then return i end
  local n, W, want, first = F.n, F.W, F.want, i
  local s = redis.call("GETRANGE", key, 0, 399) -- all of a ring that is small
  local count, head, newest, holder = 0, -1, 0, nil

  -- nth is the k-th newest grant
  local function nth(j)
    local at = 19 + (head - j + 1) % count * 7
    if at + 7 <= #s then return of_seven(s, at + 1) end
    return of_seven(redis.call("GETRANGE", key, at, at + 6), 1)
  end

  if s ~= "" then
    if #s < 19 or string.byte(s) ~= 115 or string.sub(s, 10, 16) ~= F.version then return i end
    local a, b, c = string.byte(s, 17, 19)
    head, holder = (a * 256 + b) * 256 + c, string.sub(s, 2, 9)
    if #s < 400 then
      count = (#s - 19) / 7
      newest = count >= 1 and nth(1) or 0
    else
      local two = redis.call("GETRANGE", key, 19 + head * 7, 32 + head * 7) -- the newest is the last, or the ring has turned
      if #two < 7 then return i end
      count, newest = #two < 14 and head + 1 or (redis.call("STRLEN", key) - 19) / 7, of_seven(two, 1)
    end
    if count < 1 or head >= count or (count < n and head ~= count - 1) then return i end -- n was raised after the ring had turned
  end

  local mine, held = {}, nil
  if i == last then
    mine[1] = string.sub(ARGV[1 + i], 2, 9)
    held = mine[1] == holder or redis.call("ZSCORE", tokens, mine[1])
  else
    local seen = { [holder or ""] = true }
    for m = i, last do
      local token = string.sub(ARGV[1 + m], 2, 9)
      held = held or seen[token]
      seen[token], mine[m - i + 1] = true, token
    end
    for _, at in ipairs(held and {} or redis.call("ZMSCORE", tokens, unpack(mine))) do held = held or at end
  end
  if held then return i end

  -- slot is when so many permits go at once
  local function slot(permits)
    local at, j = max(now, newest), n - permits + 1
    if j > count then return at end
    return max(at, nth(j) + W)
  end

  while i <= last do
    local many = min(last - i + 1, floor(n / want), max(1, floor(MOST / want)))
    local at = slot(many * want)
    while many > 1 and at > now do
      many = floor(many / 2)
      at = slot(many * want)
    end
    if want > MOST or (F.longest >= 0 and at > now + F.longest) then return i end
    if at > F.reach then break end
    local since = newest > 0 and max(newest, n - want < count and nth(n - want + 1) + W or 0) or nil
    local permits, size, token = many * want, max(n, count), mine[i - first + many]
    local grows, list = count > 0 and count < n, {}
    repeat
      local from = (head + 1) % size
      local run = min(permits, size - from)
      local records = string.rep(seven(at), permits)
      head = (head + permits) % size
      count = min(size, count + permits)
      local header = "s" .. token .. F.version .. string.char(floor(head / 65536) % 256, floor(head / 256) % 256, head % 256)
      -- not SET: what a script sets takes the room that an argument of its calls before had
      local second = from > 0 and not (run == permits and #s == 19 + from * 7)
      if from == 0 then
        redis.call("SETRANGE", key, 0, header .. records)
      elseif not second then
        redis.call("SETRANGE", key, 0, header .. string.sub(s, 20) .. records)
      else
        redis.call("SETRANGE", key, 19 + from * 7, string.sub(records, 1, run * 7))
      end
      local lives = live(key, at + W - now) -- before a second write: what had gone would begin with that
      if lives and second then redis.call("SETRANGE", key, 0, header .. string.sub(records, run * 7 + 1)) end
      if not lives then count, head = 0, -1 end -- nothing else counts any more: the key's life was over
    until lives
    if grows and count == n and n <= FITTED then -- it grows no more: half of it is room to grow
      redis.call("SET", key, redis.call("GETRANGE", key, 0, -1), "KEEPTTL")
    end
    if holder and holder ~= NOBODY and newest + COPY > now then list = { int(newest), holder } end
    local text = int(at)
    for m = i - first + 1, i - first + many - (W < COPY and 0 or 1) do
      list[#list + 1] = text
      list[#list + 1] = mine[m]
    end
    if #list > 0 then remember(tokens, list, tonumber(list[#list - 1]), now) end
    if at > now then
      replies[i] = { 1, 0, at, since }
      for m = i + 1, i + many - 1 do replies[m] = { 1, 0, at, at } end
    else
      replies[i] = since and now - since or -1
      for m = i + 1, i + many - 1 do replies[m] = 0 end
    end
    s, newest, holder, i = "", at, token, i + many
  end
  if i > last or F.mode ~= 0 then return i end
  local at = max(now, slot(want))
  local refused = { 0, 1, at, newest > 0 and max(newest, n - want < count and nth(n - want + 1) + W or 0) or 0 }
  for m = i, last do replies[m] = refused end
  return last + 1
end
