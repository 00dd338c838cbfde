-- sliding.lua: the ledger of `sliding n/W`, a ring of grants in one string.
--
-- value  "s" | 8 bytes token of the newest grant | 7 bytes version of the limit
--        that it was written under | 3 bytes index of the newest record |
--        records: 7 bytes each, big-endian microseconds, one a permit, at most
--        max(n, largest n so far) of them
--
-- The k-th newest grant is one GETRANGE away, whatever n is; nothing has to be
-- pruned, because a grant that is n places old is written over.

local numbers = require("lib/numbers")
local timestamp = require("lib/timestamp")
local ledger = require("limit/ledger")
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local int, life, live = numbers.int, numbers.life, numbers.live
local FITTED, timestamp_at, timestamp = timestamp.FITTED, timestamp.timestamp_at, timestamp.timestamp
local HEAD = ledger.HEAD

local HEADER, WIDTH = 19, 7
local CHUNK = 2000 -- records that are written or moved at a time
local MOVED = 50000 -- records that one call moves at most
local GROUPS = 32 -- what another algorithm is told of the past

local function three(n)
  return string.char(floor(n / 65536) % 256, floor(n / 256) % 256, n % 256)
end

-- reread forgets what was read of a ring, but for its head s
local function reread(rule, s)
  rule.head_read, rule.seen = s, nil
end

-- record is the one at an index of the ring. It is read with the next, for behind the
-- newest stands the oldest
local function record(rule, index)
  local at = HEADER + index * WIDTH
  if at + WIDTH <= #rule.head_read then return timestamp_at(rule.head_read, at + 1) end
  local seen = rule.seen or {}
  if not seen[index] then
    local two = redis.call("GETRANGE", rule.key, at, at + 2 * WIDTH - 1)
    seen[index], rule.seen = timestamp_at(two, 1), seen
    if #two == 2 * WIDTH then seen[index + 1] = timestamp_at(two, WIDTH + 1) end
  end
  return seen[index]
end

-- nth is the k-th newest grant, nil when there are fewer
local function nth(rule, k)
  if k > rule.count then return nil end
  if k == 1 then return rule.newest end
  if not rule.runs then return record(rule, (rule.head - k + 1) % rule.count) end
  for i = #rule.runs, 1, -2 do
    if k <= rule.runs[i] then return rule.runs[i - 1] end
    k = k - rule.runs[i]
  end
end

-- records are all of them, oldest first
local function records(rule)
  if rule.head == rule.count - 1 then return redis.call("GETRANGE", rule.key, HEADER, -1) end
  local turn = HEADER + (rule.head + 1) * WIDTH
  return redis.call("GETRANGE", rule.key, turn, -1) .. redis.call("GETRANGE", rule.key, HEADER, turn - 1)
end

-- fill writes one record many times from an index of the ring on; by chunks,
-- because a long string is slow to make
local function fill(rule, size, index, at, many)
  if many < 1 then return end
  local chunk = string.rep(timestamp(at), min(many, CHUNK))
  while many > 0 do
    local run = min(many, CHUNK, size - index)
    local recs = run * WIDTH < #chunk and string.sub(chunk, 1, run * WIDTH) or chunk
    redis.call("SETRANGE", rule.key, HEADER + index * WIDTH, recs)
    index, many = (index + run) % size, many - run
  end
end

-- shift moves many records from an index of the ring on by some places, the
-- last first
local function shift(rule, index, many, by)
  while many > 0 do
    local from = (index + many - 1) % rule.count + 1 -- behind the last that is left
    local to = (index + many + by - 1) % rule.count + 1
    local run = min(many, CHUNK, from, to)
    local at, new = HEADER + (from - run) * WIDTH, HEADER + (to - run) * WIDTH
    redis.call("SETRANGE", rule.key, new, redis.call("GETRANGE", rule.key, at, at + run * WIDTH - 1))
    many = many - run
  end
end

-- fit gives back what Redis set aside for a ring to grow, half of it: it grows no more
local function fit(rule)
  redis.call("SET", rule.key, redis.call("GETRANGE", rule.key, 0, -1), "KEEPTTL")
end

local function header(rule, token, head)
  return "s" .. token .. timestamp(rule.version) .. three(head)
end

-- later counts the grants after t
local function later(rule, t)
  local lo, hi = 0, rule.count
  while lo < hi do
    local mid = ceil((lo + hi) / 2)
    if nth(rule, mid) > t then lo = mid else hi = mid - 1 end
  end
  return lo
end

-- write makes a log of what another algorithm's ledger told, with `size` of its
-- newest records. Of more than the limit holds twice, these do.
local function write(rule, now, size)
  local runs, skip = rule.runs, max(0, rule.count - min(size, 2 * rule.n + CHUNK))
  local px = max(1, life(rule.newest + rule.W - now), redis.call("PTTL", rule.key))
  rule.runs, rule.count = nil, rule.count - skip
  reread(rule, "")
  rule.head = rule.count - 1
  redis.call("SET", rule.key, header(rule, rule.token, rule.head), "PX", int(px))
  local index = 0
  for i = 1, #runs, 2 do
    local many = max(0, runs[i + 1] - skip)
    skip = max(0, skip - runs[i + 1])
    if many > 0 then fill(rule, rule.count, index, runs[i], many) end
    index = index + many
  end
end

return {
  log = true, -- what was charged is saved before more is

  -- a log that is made of another ledger has `runs` of permits: {at, count, at, count ...}
  fresh = function(rule)
    rule.count, rule.head = 0, -1
    reread(rule, "")
    rule.runs = rule.known and {} or nil
  end,

  read = function(rule, s)
    if #s < HEADER + WIDTH then return false end
    reread(rule, s)
    rule.wrote = timestamp_at(s, 10)
    local a, b, c = string.byte(s, 17, 19)
    rule.head = (a * 256 + b) * 256 + c
    local bytes = #s < HEAD and #s or redis.call("STRLEN", rule.key)
    rule.count = (bytes - HEADER) / WIDTH
    rule.newest = record(rule, rule.head)
    return true
  end,

  grants = function(rule, new)
    -- as long as all of the log takes under the new limit; from the newest on and
    -- not from now, because the clock may go backwards after this
    local rounds = max(2, ceil(rule.count / new.n) + 1)
    local left, grants = later(rule, rule.newest - rounds * new.W), {}
    local size = max(1, ceil(left / GROUPS))
    while left > 0 do
      local many = min(size, left)
      grants[#grants + 1] = nth(rule, left - many + 1)
      grants[#grants + 1] = many
      left = left - many
    end
    return grants
  end,

  -- slot is never before the newest grant: a clock that went backwards, or a
  -- neighbour that spent ahead of its turn, must not credit anything
  slot = function(rule, now, before, cost)
    local k = before + cost
    local rounds = floor((k - 1) / rule.n)
    local at = max(now, rule.newest)
    local oldest = nth(rule, rule.n - (k - 1 - rounds * rule.n))
    if oldest and oldest + rule.W > at then at = oldest + rule.W end
    return at + rounds * rule.W
  end,

  charge = function(rule, at, cost)
    rule.newest, rule.at, rule.cost = at, at, cost -- for save
    if not rule.runs then return end
    rule.runs[#rule.runs + 1] = at
    rule.runs[#rule.runs + 1] = cost
    rule.count = rule.count + cost
  end,

  save = function(rule, now)
    if rule.runs then return write(rule, now, max(rule.n, rule.count - rule.cost)) end
    local n, at = rule.n, rule.at
    local cost, lives = min(rule.cost, max(n, rule.count)), nil -- a bill may be above the limit: the ring is full of it
    if rule.count == 0 or (n == 1 and rule.count == 1) then
      -- not SET: what a script sets takes the room that an argument of its calls before had
      redis.call("SETRANGE", rule.key, "0", header(rule, rule.token, cost - 1) .. timestamp(at))
      fill(rule, cost, 1, at, cost - 1)
      lives = live(rule.key, at + rule.W - now)
      rule.count, rule.head = cost, cost - 1
    else
      if rule.count < n and rule.head ~= rule.count - 1 then -- n was raised after the ring had turned
        redis.call("SET", rule.key, header(rule, rule.token, rule.count - 1) .. records(rule), "KEEPTTL")
        rule.head = rule.count - 1
      end
      local size, before = max(n, rule.count), rule.count
      fill(rule, size, (rule.head + 1) % size, at, cost)
      lives = live(rule.key, at + rule.W - now) -- before another write: what had gone would begin with that
      rule.head = (rule.head + cost) % size
      rule.count = min(size, rule.count + cost)
      if lives then redis.call("SETRANGE", rule.key, "0", header(rule, rule.token, rule.head)) end
      if lives and before < n and rule.count == n and n <= FITTED then fit(rule) end
    end
    reread(rule, "")
    if lives then return end
    rule.count, rule.head = 0, -1 -- nothing else counts any more: the key's life was over
    rule.kind.save(rule, now)
  end,

  -- back takes up to cost permits of the instant `at` out again: they count
  -- as spent one window before. What they wrote over is not known any more, but
  -- left the window at that very instant at the latest; without a trace of it the
  -- hole would admit too early when `at` is still to come, or comes again because
  -- the clock goes backwards. In a very large window they count from the oldest
  -- grant that may be moved: later than need be, never too early.
  back = function(rule, at, cost, _, now)
    if rule.count == 0 then return false end -- all that is known was given back
    local after = later(rule, at)
    local many = min(cost, later(rule, at - 1) - after)
    if many == 0 then return false end
    if rule.runs then write(rule, now, rule.count) end
    local oldest = min(later(rule, at - rule.W), after + many + MOVED)
    local ghost = max(at - rule.W, nth(rule, oldest + 1) or 0)
    local first = (rule.head - oldest + 1) % rule.count
    shift(rule, first, oldest - after - many, many)
    fill(rule, rule.count, first, ghost, many)
    redis.call("SETRANGE", rule.key, 0, header(rule, rule.token, rule.head))
    reread(rule, "")
    rule.newest = record(rule, rule.head)
    return false
  end,

  free = function(rule, a)
    if rule.newest > a then return 0 end
    return max(0, rule.n - later(rule, a - rule.W))
  end,

  worth = function() return 0 end,
  ends = function(rule) return rule.newest + rule.W end,
}
