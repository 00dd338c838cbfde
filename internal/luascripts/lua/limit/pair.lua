-- pair.lua: the way of admit.lua for a permit each of two rules: `sliding 1/W` on a key
-- on which nobody waits but the job, and `sliding n/W` on a wider one, where it waits or
-- nobody does. It grants, by what admit would have found and no more; as lone.lua it asks
-- Redis and Lua the least.
--
-- pair answers a call whose form has the
-- numbers, see pair_of, and whose keys stand behind KEYS[k]. Nil, and nothing written,
-- when that takes the long way.

local numbers = require("lib/numbers")
local timestamp = require("lib/timestamp")
local remember = require("limit/remember")
local tickets = require("limit/tickets")
local floor, max = math.floor, math.max
local COPY, int, live = numbers.COPY, numbers.int, numbers.live
local FITTED, timestamp_at, timestamp = timestamp.FITTED, timestamp.timestamp_at, timestamp.timestamp
local NOBODY = remember.NOBODY
local GRACE, NOTED, PARK, ROOM, TOLD = tickets.GRACE, tickets.NOTED, tickets.PARK, tickets.ROOM, tickets.TOLD

-- pair_of is what the form of such a call says, nil of another: to grant or to book, by two
-- rules on two keys that are open, narrow and wide, a permit of each; see acquire.lua
local function pair_of(form)
  local inline, longest, W, version, n, wide_W, wide_version = string.match(form,
    "^%-12|1|(%d+)|(%-?%d+)||0|1|s|1|(%d+)||(%d+)|1|1|0|0|s|(%d+)|(%d+)||(%d+)|1|2|0|0|$")
  if not inline or n == "1" then return nil end
  return { inline = tonumber(inline), longest = tonumber(longest), W = tonumber(W), version = tonumber(version),
    n = tonumber(n), wide_W = tonumber(wide_W), wide_version = tonumber(wide_version) }
end

local function pair(keys, numbers, k, token, job, now)
  local call, key, tokens, wide, wide_tokens, line = redis.call, keys[k + 1], keys[k + 2], keys[k + 4], keys[k + 5], keys[k + 6]

  -- the narrow key, and the turns of both: mine, while the wider key holds me up
  local me, there, turn = "1:" .. job, call("EXISTS", keys[k + 3], keys[k + 7], keys[k + 8]), nil
  if there > 0 then
    if there ~= 2 or job == "" then return nil end
    if call("ZCARD", keys[k + 3]) ~= 1 then return nil end -- others wait
    local mine, told = call("ZRANGE", keys[k + 7], "0", "1", "WITHSCORES"), call("ZRANGE", keys[k + 3], "0", "0", "WITHSCORES")
    if #mine ~= 2 or mine[1] ~= me or mine[2] % ROOM ~= 0 or #told ~= 2 or told[1] ~= "@" .. me then return nil end
    turn = told[2] - TOLD
    if turn >= PARK then return nil end
  end

  -- the line of the wider key: my place, and who comes next to go
  local ahead, promised, next, next_told = 0, turn or 0, nil, nil
  local two = call("ZRANGE", line, "0", "1", "WITHSCORES")
  local waits = two[1] ~= nil
  if waits then
    if job == "" or call("ZCOUNT", line, NOTED, "+inf") > 0 then return nil end -- I am nobody, or something is noted of it
    local ticket, told = tonumber(two[2]), nil
    if ticket < -PARK / 2 then return nil end -- somebody is parked
    if two[1] == me then
      next = tonumber(two[4] or TOLD) < TOLD and two[3]
      told = call("ZMSCORE", line, "@" .. me, "@" .. (next or me))
    else
      next = two[1]
      told = call("ZMSCORE", line, "@" .. me, "@" .. next, me)
      ticket = tonumber(told[3] or "")
      if not ticket or ticket < -PARK / 2 then return nil end
      ahead = call("ZCOUNT", line, "-inf", "(" .. told[3])
    end
    if not told[1] or ticket >= TOLD or ticket % ROOM ~= 0 then return nil end
    promised = turn or told[1] - TOLD
    if next then
      if not told[2] or string.sub(next, 1, 2) ~= "1:" then return nil end
      next_told = told[2] - TOLD
      if next_told + GRACE < now then return nil end -- it is late
    end
  end

  -- the ledgers: when each admits me
  local s, newest, holder, free_at = call("GETRANGE", key, "0", "26"), 0, nil, 0
  if s ~= "" then
    if #s ~= 26 or string.byte(s) ~= 115 or timestamp_at(s, 10) ~= numbers.version then return nil end
    newest, holder = timestamp_at(s, 20), string.sub(s, 2, 9)
    free_at = newest + numbers.W
  end
  if token == holder or call("ZSCORE", tokens, token) then return nil end

  local n, count, head, wide_newest, wide_holder, ring = numbers.n, 0, -1, 0, nil, ""
  s = call("GETRANGE", wide, "0", "18")
  if s ~= "" then
    if #s < 19 or string.byte(s) ~= 115 or timestamp_at(s, 10) ~= numbers.wide_version then return nil end
    local a, b, c = string.byte(s, 17, 19)
    head, wide_holder = (a * 256 + b) * 256 + c, string.sub(s, 2, 9)
    ring = call("GETRANGE", wide, string.format("%d", 19 + head * 7), string.format("%d", 39 + head * 7)) -- the newest, and the two oldest of a full ring
    if #ring < 7 then return nil end
    count = (call("STRLEN", wide) - 19) / 7
    if count > n or count < n and head ~= count - 1 or count == n - 1 and n <= FITTED then return nil end -- n was another; or it grows no more
    wide_newest = timestamp_at(ring, 1)
  end

  -- nth is the j-th newest grant of the ring, nil when there are fewer
  local function nth(j)
    if j > count then return nil end
    local index = (head - j + 1) % count
    local from = (index - head) * 7
    if from >= 0 and from + 7 <= #ring then return timestamp_at(ring, from + 1) end
    return timestamp_at(call("GETRANGE", wide, string.format("%d", 19 + index * 7), string.format("%d", 25 + index * 7)), 1)
  end

  if ahead >= n then return nil end
  local oldest = nth(n - ahead)
  local wide_free_at = max(wide_newest, oldest and oldest + numbers.wide_W or 0)
  local at = max(now, free_at, wide_free_at)
  if at > now + numbers.inline or numbers.longest >= 0 and at > now + numbers.longest then return nil end

  local sooner
  if next then
    oldest = nth(n - 1) -- the n-th behind this grant
    sooner = max(at, oldest and oldest + numbers.wide_W or 0)
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

  local record = timestamp(at)
  repeat -- what was there may have gone meanwhile
    call("SETRANGE", key, "0", "s" .. token .. timestamp(numbers.version) .. "\0\0\0" .. record)
  until live(key, at + numbers.W - now)
  keep(tokens, numbers.W, newest, holder)

  local header, lives = "s" .. token .. timestamp(numbers.wide_version), false
  if count > 0 then
    head = (head + 1) % n
    call("SETRANGE", wide, string.format("%d", 19 + head * 7), record)
    lives = live(wide, at + numbers.wide_W - now)
    if lives then call("SETRANGE", wide, "0", header .. string.char(floor(head / 65536), floor(head / 256) % 256, head % 256)) end
  end
  while not lives do
    call("SETRANGE", wide, "0", header .. "\0\0\0" .. record)
    lives = live(wide, at + numbers.wide_W - now)
  end
  keep(wide_tokens, numbers.wide_W, wide_newest, wide_holder)

  if turn then call("DEL", keys[k + 3], keys[k + 7]) end -- nothing else was there
  if waits then call("ZREM", line, me, "@" .. me) end
  local from = max(free_at, wide_free_at)
  if sooner then return { 1, 0, at, from, promised, 0, 1, 0, 0, 0, 0, 2, sooner, next } end
  return { 1, 0, at, from, promised }
end

return {
  pair = pair, pair_of = pair_of,
}
