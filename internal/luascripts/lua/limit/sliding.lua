-- sliding.lua: the ledger of `sliding n/W`, a ring of grants in one string.
--
-- value  the header of every ledger, see ledger.lua; 3 bytes, index of the newest record, of
--        which the two highest bits are those of `remembered`; records: 7 bytes each, big-endian
--        microseconds, one a permit, at most the largest n so far
--
-- The k-th newest grant is one GETRANGE away, whatever n is; nothing has to be
-- pruned, because a grant that is n places old is written over.

local numbers = require("lib/numbers")
local binary = require("lib/binary")
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local NO_TOKEN, life, live = numbers.NO_TOKEN, numbers.life, numbers.live
local timestamp, timestamp_at = binary.timestamp, binary.timestamp_at

local call, byte, sub, char, format = redis.call, string.byte, string.sub, string.char, string.format
local HEADER, WIDTH = 19, 7 -- bytes before the records, and of each record
local READ_WHOLE = 54 -- a ring of so many permits is read at once, of a larger one the header and a record
local NONE = {} -- no runs: it stays empty
local CHUNK = 2000 -- records that are written or moved at a time: a long text is slow to make
local MOVED = 50000 -- records that one call moves at most
local GROUPS = 32 -- grants, at most, that another kind is told of the past
local FITTED = 150000 -- the most records of a ring that are moved to where they just fit

-- offset is where a record stands in the value, as text: as a number it would cost a conversion
local function offset(index, more)
  return format("%d", HEADER + index * WIDTH + more)
end

-- A ledger has these fields:
--   count         how many records it has in Redis; newest_index is the index of the newest of them
--   capacity      how many records the ring has at most
--   text, from    what was read of the value, and from which byte on
--   read_before   true when a record was read by a command of its own
--   pending       how many permits are not written yet; runs has them: {at, permits, at, permits ...}, of which the last is `newest`
-- All fields are named, and `runs` is made with its first: a table that grows is slow
local function make(key, count, newest_index, capacity, token, text)
  return {
    key = key, limit = nil, tokens = nil, token = token, remembered = 0, known = count > 0, newest = 0, dirty = false, new_tokens = nil, set_newest = nil,
    count = count, newest_index = newest_index, capacity = capacity, pending = 0, runs = NONE, text = text, from = 0, read_before = nil,
    carried_over = nil, granted = nil,
  }
end

-- record is the one at an index of the ring. It is read with the next, for next to the
-- newest stands the oldest. From the second time on many are read at once
local function record(ledger, index)
  local at = HEADER + index * WIDTH - ledger.from
  if at < 0 or at + WIDTH > #ledger.text then
    ledger.text = call("GETRANGE", ledger.key, offset(index, 0), offset(index, ledger.read_before and 64 * WIDTH - 1 or 2 * WIDTH - 1))
    ledger.read_before, ledger.from, at = true, HEADER + index * WIDTH, 0
  end
  return timestamp_at(ledger.text, at + 1)
end

-- nth is the k-th newest grant, nil when there are fewer
local function nth(ledger, k)
  if k == 1 and ledger.newest > 0 then return ledger.newest end
  if k > ledger.capacity then return nil end
  if k > ledger.pending then
    k = k - ledger.pending
    if k > ledger.count then return nil end
    return record(ledger, (ledger.newest_index - k + 1) % ledger.count)
  end
  local runs = ledger.runs
  for i = #runs, 1, -2 do
    if k <= runs[i] then return runs[i - 1] end
    k = k - runs[i]
  end
end

-- later counts the grants after t
local function later(ledger, t)
  local lo, hi = 0, min(ledger.capacity, ledger.count + ledger.pending)
  while lo < hi do
    local mid = ceil((lo + hi) / 2)
    if nth(ledger, mid) > t then lo = mid else hi = mid - 1 end
  end
  return lo
end

local function header(ledger, newest_index)
  local low = newest_index % 256
  local high = (newest_index - low) / 256
  return "s" .. ledger.token .. ledger.limit.stamp .. char(floor(high / 256) + 64 * ledger.remembered, high % 256, low)
end

-- put writes runs of records into a ring of `size` records, from an index on, but for the first `skip` permits
local function put(key, size, index, runs, skip)
  local parts, from, many = {}, index, 0 -- what is not written yet
  for i = 1, #runs, 2 do
    local left = runs[i + 1] - skip
    skip = max(0, -left)
    local bytes = left > 0 and timestamp(runs[i])
    while left > 0 do
      local run = min(left, CHUNK - many, size - index)
      parts[#parts + 1] = run == 1 and bytes or string.rep(bytes, run)
      index, many, left = index + run, many + run, left - run
      if index == size or many == CHUNK then
        call("SETRANGE", key, offset(from, 0), table.concat(parts))
        index = index % size
        parts, from, many = {}, index, 0
      end
    end
  end
  if many > 0 then call("SETRANGE", key, offset(from, 0), table.concat(parts)) end
end

-- shift moves many records from an index of the ring on by some places, the
-- last first
local function shift(ledger, index, many, by)
  while many > 0 do
    local from = (index + many - 1) % ledger.count + 1 -- after the last that is left
    local to = (index + many + by - 1) % ledger.count + 1
    local run = min(many, CHUNK, from, to)
    local at, new = HEADER + (from - run) * WIDTH, HEADER + (to - run) * WIDTH
    call("SETRANGE", ledger.key, new, call("GETRANGE", ledger.key, at, at + run * WIDTH - 1))
    many = many - run
  end
end

-- unroll writes a ring so that its first record is the oldest: n was raised after the ring had begun anew at its first record
local function unroll(ledger)
  local oldest = HEADER + (ledger.newest_index + 1) * WIDTH
  local records = call("GETRANGE", ledger.key, oldest, -1) .. call("GETRANGE", ledger.key, HEADER, oldest - 1)
  ledger.newest_index = ledger.count - 1
  call("SET", ledger.key, header(ledger, ledger.newest_index) .. records, "KEEPTTL")
end

-- write_anew makes a log of what the ledger of another kind told. Of more than the limit
-- holds twice, its newest records do
local function write_anew(ledger, now)
  local key, limit = ledger.key, ledger.limit
  local count = min(ledger.pending, ledger.capacity)
  local records = min(count, 2 * limit.n + CHUNK)
  local px = max(1, life(ledger.newest + limit.W - now), call("PTTL", key))
  call("SET", key, header(ledger, records - 1), "PX", numbers.int(px))
  put(key, records, 0, ledger.runs, ledger.pending - records)
  ledger.anew, ledger.capacity = nil, max(limit.n, records)
  ledger.count, ledger.newest_index, ledger.pending, ledger.runs, ledger.text, ledger.from = records, records - 1, 0, NONE, "", 0
end

return {
  no_debt = true,

  fresh = function(limit, key)
    return make(key, 0, -1, limit.n, NO_TOKEN, "")
  end,

  numbers = function(limit)
    limit.reads = HEADER + WIDTH * (limit.n > READ_WHOLE and 1 or READ_WHOLE + 1)
  end,

  read = function(_, limit, s, key, max_bytes)
    if #s < HEADER then return nil end
    local a, b, c = byte(s, 17, 19)
    local newest_index = (a % 64 * 256 + b) * 256 + c
    local ledger = make(key, 1, newest_index, 0, sub(s, 2, 9), s)
    if #s < max_bytes and #s > HEADER then
      ledger.count = (#s - HEADER) / WIDTH
      ledger.newest = newest_index < ledger.count and ledger.count % 1 == 0 and timestamp_at(s, HEADER + newest_index * WIDTH + 1)
    else
      local two = call("GETRANGE", key, offset(newest_index, 0), offset(newest_index, 2 * WIDTH - 1)) -- the newest stands last, or the oldest comes next
      if #two < WIDTH or #two % WIDTH > 0 then return nil end
      ledger.newest, ledger.text, ledger.from = timestamp_at(two, 1), two, HEADER + newest_index * WIDTH
      ledger.count = #two < 2 * WIDTH and newest_index + 1 or (call("STRLEN", key) - HEADER) / WIDTH
    end
    if ledger.count % 1 ~= 0 or newest_index >= ledger.count or a > 191 then return nil end
    ledger.remembered = floor(a / 64)
    ledger.capacity = limit and max(limit.n, ledger.count) or ledger.count
    return ledger
  end,

  grants = function(ledger, new)
    -- as long as all of the log takes under the new limit; from the newest on and
    -- not from now, because the clock may go backwards after this
    local rounds = max(2, ceil(ledger.count / new.n) + 1)
    local left, grants = later(ledger, ledger.newest - rounds * new.W), {}
    local group = max(1, ceil(left / GROUPS))
    while left > 0 do
      local many = min(group, left)
      grants[#grants + 1] = nth(ledger, left - many + 1)
      grants[#grants + 1] = many
      left = left - many
    end
    return grants
  end,

  spent = function(limit, ledger, now, most)
    local list = {}
    for k = 1, min(most, later(ledger, now - limit.W)) do
      local at = nth(ledger, k)
      if list[#list - 1] == at then
        list[#list] = list[#list] + 1
      else
        list[#list + 1] = at
        list[#list + 1] = 1
      end
    end
    return list
  end,

  scratch = function(ledger)
    local other = {}
    for name, value in pairs(ledger) do other[name] = value end
    other.runs = { unpack(ledger.runs) }
    return other
  end,

  -- carry_grants makes a log of grants that the ledger of another kind told
  carry_grants = function(limit, ledger, grants)
    ledger.anew, ledger.runs = true, grants
    for i = 2, #grants, 2 do ledger.pending = ledger.pending + grants[i] end
    ledger.newest = grants[#grants - 1] or 0
    ledger.capacity = max(limit.n, ledger.pending)
  end,

  -- earliest is never before the newest grant: a clock that went backwards, or a
  -- neighbour that spent ahead of its instant, must not credit anything
  earliest = function(limit, ledger, now, before, cost)
    local k, n = before + cost, limit.n
    local rounds = k > n and floor((k - 1) / n) or 0
    local at = max(now, ledger.newest)
    local oldest = nth(ledger, n - (k - 1 - rounds * n))
    if oldest and oldest + limit.W > at then at = oldest + limit.W end
    return at + rounds * limit.W
  end,

  charge = function(_, ledger, at, cost)
    local runs = ledger.runs
    if not runs[1] then
      ledger.runs = { at, cost }
    elseif at == ledger.newest then
      runs[#runs] = runs[#runs] + cost
    else
      runs[#runs + 1], runs[#runs + 2] = at, cost
    end
    ledger.newest, ledger.pending = at, ledger.pending + cost
  end,

  -- first_grant writes the ledger of a key that has none, of one permit that is granted now
  first_grant = function(limit, key, token, now)
    -- not SET: what a script sets takes the room that an argument of its calls before had
    call("SETRANGE", key, "0", "s" .. token .. limit.stamp .. "\0\0\0" .. timestamp(now))
    call("PEXPIRE", key, limit.life)
  end,

  -- write writes what is pending: what is larger than the ring fills all of it
  write = function(limit, ledger, now)
    if ledger.anew then return write_anew(ledger, now) end
    local key, count, capacity = ledger.key, ledger.count, ledger.capacity
    local many = min(ledger.pending, capacity)
    if many > 0 and count < capacity and ledger.newest_index ~= count - 1 then unroll(ledger) end
    ledger.newest_index = (ledger.newest_index + ledger.pending) % capacity
    -- not SET: what a script sets takes the room that an argument of its calls before had
    if many == 1 and ledger.newest_index == 0 then -- the record stands right after the header
      call("SETRANGE", key, "0", header(ledger, 0) .. timestamp(ledger.newest))
    else
      if many == 1 then
        call("SETRANGE", key, offset(ledger.newest_index, 0), timestamp(ledger.newest))
      else
        put(key, capacity, (ledger.newest_index + 1 - many) % capacity, ledger.runs, ledger.pending - many)
      end
      call("SETRANGE", key, "0", header(ledger, ledger.newest_index))
    end
    -- gives back what Redis set aside for a ring to grow, half of it: it grows no more
    local full = count > 0 and count < capacity and count + many >= capacity
    if full and capacity <= FITTED then call("SET", key, call("GETRANGE", key, 0, -1), "KEEPTTL") end
    ledger.count, ledger.pending, ledger.runs, ledger.text, ledger.from = min(capacity, count + many), 0, NONE, "", 0
    if ledger.known then
      live(key, ledger.newest + limit.W - now)
    else
      call("PEXPIRE", key, ledger.newest == now and limit.life or numbers.int(life(ledger.newest + limit.W - now)))
    end
  end,

  -- back takes up to cost permits of the instant `at` out again: they count
  -- as spent one window before. What they wrote over is not known any more, but
  -- left the window at that very instant at the latest; without a trace of it the
  -- hole would admit too early when `at` is still to come, or comes again because
  -- the clock goes backwards. In a very large window they count from the oldest
  -- grant that may be moved: later than need be, never too early.
  back = function(limit, ledger, at, cost, _, now)
    local after = later(ledger, at)
    local many = min(cost, later(ledger, at - 1) - after)
    if many == 0 then return false end -- all that is known was given back
    if ledger.anew then write_anew(ledger, now) end
    local oldest = min(later(ledger, at - limit.W), after + many + MOVED)
    local ghost = max(at - limit.W, nth(ledger, oldest + 1) or 0)
    local first = (ledger.newest_index - oldest + 1) % ledger.count
    shift(ledger, first, oldest - after - many, many)
    put(ledger.key, ledger.count, first, { ghost, many }, 0)
    call("SETRANGE", ledger.key, 0, header(ledger, ledger.newest_index))
    ledger.text, ledger.from = "", 0
    ledger.newest = record(ledger, ledger.newest_index)
    return false
  end,

  -- moves says whether there are permits now, with those of the grant at an instant, 0 for none
  moves = function(rule, at)
    local limit, ledger, now = rule.limit, rule.ledger, rule.now
    local own = at > now - limit.W and min(rule.want, later(ledger, at - 1) - later(ledger, at)) or 0
    return ledger.newest <= now and limit.n - later(ledger, now - limit.W) + own >= rule.want
  end,

  free = function(limit, ledger, a)
    if ledger.newest > a then return 0 end
    return max(0, limit.n - later(ledger, a - limit.W))
  end,

  ends = function(limit, ledger) return ledger.newest + limit.W end,
}
