-- pair.lua: the way of admit.lua for a permit each of two rules: `sliding 1/W` on a key
-- on which nobody waits but the job, and `sliding n/W` on a wider one, where it waits or
-- nobody does. It grants, by what admit would have found and no more; as lone.lua it asks
-- Redis and Lua the least.
--
-- It is, behind pairline.lua, the body of pair(P, k, token, job, now) and answers a call whose form has the
-- numbers P, see pair_of, and whose keys stand behind KEYS[k]. Nil, and nothing written,
-- when that takes the long way.

-- the ledgers: when each admits me
local s, newest, holder, free_at = call("GETRANGE", key, "0", "26"), 0, nil, 0
if s ~= "" then
  if #s ~= 26 or string.byte(s) ~= 115 or of_seven(s, 10) ~= P.version then return nil end
  newest, holder = of_seven(s, 20), string.sub(s, 2, 9)
  free_at = newest + P.W
end
if token == holder or call("ZSCORE", tokens, token) then return nil end

local n, count, head, wide_newest, wide_holder, ring = P.n, 0, -1, 0, nil, ""
s = call("GETRANGE", wide, "0", "18")
if s ~= "" then
  if #s < 19 or string.byte(s) ~= 115 or of_seven(s, 10) ~= P.wide_version then return nil end
  local a, b, c = string.byte(s, 17, 19)
  head, wide_holder = (a * 256 + b) * 256 + c, string.sub(s, 2, 9)
  ring = call("GETRANGE", wide, string.format("%d", 19 + head * 7), string.format("%d", 39 + head * 7)) -- the newest, and the two oldest of a full ring
  if #ring < 7 then return nil end
  count = (call("STRLEN", wide) - 19) / 7
  if count > n or count < n and head ~= count - 1 or count == n - 1 and n <= FITTED then return nil end -- n was another; or it grows no more
  wide_newest = of_seven(ring, 1)
end

-- nth is the j-th newest grant of the ring, nil when there are fewer
local function nth(j)
  if j > count then return nil end
  local index = (head - j + 1) % count
  local from = (index - head) * 7
  if from >= 0 and from + 7 <= #ring then return of_seven(ring, from + 1) end
  return of_seven(call("GETRANGE", wide, string.format("%d", 19 + index * 7), string.format("%d", 25 + index * 7)), 1)
end

if ahead >= n then return nil end
local oldest = nth(n - ahead)
local wide_free_at = max(wide_newest, oldest and oldest + P.wide_W or 0)
local at = max(now, free_at, wide_free_at)
if at > now + P.inline or P.longest >= 0 and at > now + P.longest then return nil end

local sooner
if next then
  oldest = nth(n - 1) -- the n-th behind this grant
  sooner = max(at, oldest and oldest + P.wide_W or 0)
  if next_told - sooner <= 1000 then sooner = nil end
end

-- keep remembers the tokens of a grant, as grant of tokens.lua
local function keep(set, W, last_newest, last_holder)
  local list, until_at = {}, last_newest
  if last_holder and last_holder ~= NOBODY and last_newest + COPY > now then list = { int(last_newest), last_holder } end
  if W < COPY then
    list[#list + 1] = int(at)
    list[#list + 1] = token
    until_at = at
  end
  if #list == 0 or call("ZADD", set, "NX", unpack(list)) == 0 then return end
  local old = call("ZRANGEBYSCORE", set, "0", int(now - COPY), "LIMIT", "0", #list == 4 and "24" or "22")
  if #old > 0 then call("ZREM", set, unpack(old)) end
  live(set, until_at + COPY - now)
end

local record = seven(at)
repeat -- what was there may have gone meanwhile
  call("SETRANGE", key, "0", "s" .. token .. seven(P.version) .. "\0\0\0" .. record)
until live(key, at + P.W - now)
keep(tokens, P.W, newest, holder)

local header, lives = "s" .. token .. seven(P.wide_version), false
if count > 0 then
  head = (head + 1) % n
  call("SETRANGE", wide, string.format("%d", 19 + head * 7), record)
  lives = live(wide, at + P.wide_W - now)
  if lives then call("SETRANGE", wide, "0", header .. string.char(floor(head / 65536), floor(head / 256) % 256, head % 256)) end
end
while not lives do
  call("SETRANGE", wide, "0", header .. "\0\0\0" .. record)
  lives = live(wide, at + P.wide_W - now)
end
keep(wide_tokens, P.wide_W, wide_newest, wide_holder)

if turn then call("DEL", KEYS[k + 3], KEYS[k + 7]) end -- nothing else was there
if waits then call("ZREM", line, me, "@" .. me) end
local from = max(free_at, wide_free_at)
if sooner then return { 1, 0, at, from, promised, 0, 1, 0, 0, 0, 0, 2, sooner, string.sub(next, 3) } end
return { 1, 0, at, from, promised }
