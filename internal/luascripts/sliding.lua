-- sliding.lua: the ledger of `sliding n/W`, a ring of grants in one string.
--
-- value  "1" schema | 8 bytes token of the newest grant | 3 bytes index of the
--        newest record | records: 7 bytes each, big-endian microseconds, one a
--        permit, at most max(n, largest n so far) of them
--
-- The k-th newest grant is one GETRANGE away, whatever n is; nothing has to be
-- pruned, because a grant that is n places old is written over.

local SCHEMA, HEADER, WIDTH = 49, 12, 7
local CHUNK = 2000 -- records that are written or moved at a time
local MOVED = 50000 -- records that one call moves at most
local NOBODY = string.rep("\0", 8)

local function pack(n, width)
  local b = {}
  for i = width, 1, -1 do
    b[i] = n % 256
    n = floor(n / 256)
  end
  return string.char(unpack(b))
end

local function unpack_at(s, from, width)
  local n = 0
  for i = from, from + width - 1 do n = n * 256 + string.byte(s, i) end
  return n
end

-- open reads the ledger's head; nil when a newer schema wrote it
local function open(key)
  local L = { key = key, count = 0, head = -1, newest = 0, token = NOBODY }
  local s = redis.call("GETRANGE", key, 0, HEADER + 2 * WIDTH - 1)
  if s == "" then return L end
  if string.byte(s, 1) ~= SCHEMA then return nil end
  L.token = string.sub(s, 2, 9)
  L.head = unpack_at(s, 10, 3)
  L.count = 1
  if #s > HEADER + WIDTH then L.count = (redis.call("STRLEN", key) - HEADER) / WIDTH end
  if L.head < 2 then
    L.newest = unpack_at(s, HEADER + 1 + L.head * WIDTH, WIDTH)
  else
    local at = HEADER + L.head * WIDTH
    L.newest = unpack_at(redis.call("GETRANGE", key, at, at + WIDTH - 1), 1, WIDTH)
  end
  return L
end

-- nth is the k-th newest grant, nil when there are fewer
local function nth(L, k)
  if k > L.count then return nil end
  if k == 1 then return L.newest end
  local at = HEADER + ((L.head - k + 1) % L.count) * WIDTH
  return unpack_at(redis.call("GETRANGE", L.key, at, at + WIDTH - 1), 1, WIDTH)
end

-- slot is the instant of the k-th permit from now, if all go as early as
-- possible. Never before the newest grant: a clock that went backwards, or a
-- neighbour that spent ahead of its turn, must not credit anything.
local function slot(L, n, W, now, k)
  local rounds = floor((k - 1) / n)
  local at = max(now, L.newest)
  local oldest = nth(L, n - (k - 1 - rounds * n))
  if oldest and oldest + W > at then at = oldest + W end
  return at + rounds * W
end

-- records are all of them, oldest first
local function records(L)
  if L.head == L.count - 1 then return redis.call("GETRANGE", L.key, HEADER, -1) end
  local turn = HEADER + (L.head + 1) * WIDTH
  return redis.call("GETRANGE", L.key, turn, -1) .. redis.call("GETRANGE", L.key, HEADER, turn - 1)
end

-- fill writes one record many times from an index of the ring on; by chunks,
-- because a long string is slow to make
local function fill(L, size, index, at, many)
  local chunk = string.rep(pack(at, WIDTH), min(many, CHUNK))
  while many > 0 do
    local run = min(many, CHUNK, size - index)
    local recs = run * WIDTH < #chunk and string.sub(chunk, 1, run * WIDTH) or chunk
    redis.call("SETRANGE", L.key, HEADER + index * WIDTH, recs)
    index, many = (index + run) % size, many - run
  end
end

-- shift moves many records from an index of the ring on by some places, the
-- last first
local function shift(L, index, many, by)
  while many > 0 do
    local from = (index + many - 1) % L.count + 1 -- behind the last that is left
    local to = (index + many + by - 1) % L.count + 1
    local run = min(many, CHUNK, from, to)
    local at, new = HEADER + (from - run) * WIDTH, HEADER + (to - run) * WIDTH
    redis.call("SETRANGE", L.key, new, redis.call("GETRANGE", L.key, at, at + run * WIDTH - 1))
    many = many - run
  end
end

local function header(token, head)
  return string.char(SCHEMA) .. token .. pack(head, 3)
end

-- spend writes cost permits at the instant `at`, which slot gave. The key's
-- life is never shortened: another process may still count with a longer window.
local function spend(L, n, W, now, at, cost, token)
  if L.count == 0 or (n == 1 and L.count == 1) then
    local px = life(at + W - now)
    if L.count == 1 then px = max(px, redis.call("PTTL", L.key)) end
    redis.call("SET", L.key, header(token, cost - 1) .. pack(at, WIDTH), "PX", int(px))
    fill(L, cost, 1, at, cost - 1)
    L.count, L.head = cost, cost - 1
  else
    if L.count < n and L.head ~= L.count - 1 then -- n was raised after the ring had turned
      redis.call("SET", L.key, header(L.token, L.count - 1) .. records(L), "KEEPTTL")
      L.head = L.count - 1
    end
    local size = max(n, L.count)
    fill(L, size, (L.head + 1) % size, at, cost)
    L.head = (L.head + cost) % size
    L.count = min(size, L.count + cost)
    redis.call("SETRANGE", L.key, 0, header(token, L.head))
    live(L.key, at + W - now)
  end
  L.newest, L.token = at, token
end

-- later counts the grants after t
local function later(L, t)
  local lo, hi = 0, L.count
  while lo < hi do
    local mid = ceil((lo + hi) / 2)
    if nth(L, mid) > t then lo = mid else hi = mid - 1 end
  end
  return lo
end

-- unspend takes up to cost permits of the instant `at` out again: they count
-- as spent one window before. What they wrote over is not known any more, but
-- left the window at that very instant at the latest; without a trace of it the
-- hole would admit too early when `at` is still to come, or comes again because
-- the clock goes backwards. In a very large window they count from the oldest
-- grant that may be moved: later than need be, never too early.
local function unspend(L, W, at, cost, token)
  local after = later(L, at)
  local many = min(cost, later(L, at - 1) - after)
  if many == 0 then return end
  local oldest = min(later(L, at - W), after + many + MOVED)
  local ghost = max(at - W, nth(L, oldest + 1) or 0)
  local first = (L.head - oldest + 1) % L.count
  shift(L, first, oldest - after - many, many)
  fill(L, L.count, first, ghost, many)
  if L.token == token then L.token = NOBODY end -- a neighbour of the same instant keeps its own
  redis.call("SETRANGE", L.key, 0, header(L.token, L.head))
  local at_newest = HEADER + L.head * WIDTH
  L.newest = unpack_at(redis.call("GETRANGE", L.key, at_newest, at_newest + WIDTH - 1), 1, WIDTH)
end

-- free is how many permits are to be had right now
local function free(L, n, W, now)
  if L.newest > now then return 0 end
  return max(0, n - later(L, now - W))
end
