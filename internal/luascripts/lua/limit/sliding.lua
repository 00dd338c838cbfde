-- sliding.lua: the ledger of `sliding n/W`, a ring of grants in one string.
--
-- value  "s" | 8 bytes token of the newest grant | 7 bytes version of the limit
--        that it was written under | 3 bytes index of the newest record |
--        records: 7 bytes each, big-endian microseconds, one a permit, at most
--        max(n, largest n so far) of them
--
-- The k-th newest grant is one GETRANGE away, whatever n is; nothing has to be
-- pruned, because a grant that is n places old is written over.

function kinds.s()
  local HEADER, WIDTH = 19, 7
  local CHUNK = 2000 -- records that are written or moved at a time
  local MOVED = 50000 -- records that one call moves at most
  local GROUPS = 32 -- what another algorithm is told of the past

  local function three(n)
    return string.char(floor(n / 65536) % 256, floor(n / 256) % 256, n % 256)
  end

  -- reread forgets what was read of a ring, but for its head s
  local function reread(L, s)
    L.head_read, L.seen = s, nil
  end

  -- record is the one at an index of the ring. It is read with the next, for behind the
  -- newest stands the oldest
  local function record(L, index)
    local at = HEADER + index * WIDTH
    if at + WIDTH <= #L.head_read then return of_seven(L.head_read, at + 1) end
    local seen = L.seen or {}
    if not seen[index] then
      local two = redis.call("GETRANGE", L.key, at, at + 2 * WIDTH - 1)
      seen[index], L.seen = of_seven(two, 1), seen
      if #two == 2 * WIDTH then seen[index + 1] = of_seven(two, WIDTH + 1) end
    end
    return seen[index]
  end

  -- nth is the k-th newest grant, nil when there are fewer
  local function nth(L, k)
    if k > L.count then return nil end
    if k == 1 then return L.newest end
    if not L.runs then return record(L, (L.head - k + 1) % L.count) end
    for i = #L.runs, 1, -2 do
      if k <= L.runs[i] then return L.runs[i - 1] end
      k = k - L.runs[i]
    end
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
    if many < 1 then return end
    local chunk = string.rep(seven(at), min(many, CHUNK))
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

  -- fit gives back what Redis set aside for a ring to grow, half of it: it grows no more
  local function fit(L)
    redis.call("SET", L.key, redis.call("GETRANGE", L.key, 0, -1), "KEEPTTL")
  end

  local function header(L, token, head)
    return "s" .. token .. seven(L.version) .. three(head)
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

  -- write makes a log of what another algorithm's ledger told, with `size` of its
  -- newest records. Of more than the limit holds twice, these do.
  local function write(L, now, size)
    local runs, skip = L.runs, max(0, L.count - min(size, 2 * L.n + CHUNK))
    local px = max(1, life(L.newest + L.W - now), redis.call("PTTL", L.key))
    L.runs, L.count = nil, L.count - skip
    reread(L, "")
    L.head = L.count - 1
    redis.call("SET", L.key, header(L, L.token, L.head), "PX", int(px))
    local index = 0
    for i = 1, #runs, 2 do
      local many = max(0, runs[i + 1] - skip)
      skip = max(0, skip - runs[i + 1])
      if many > 0 then fill(L, L.count, index, runs[i], many) end
      index = index + many
    end
  end

  return {
    log = true, -- what was charged is saved before more is

    -- a log that is made of another ledger has `runs` of permits: {at, count, at, count ...}
    fresh = function(L)
      L.count, L.head = 0, -1
      reread(L, "")
      L.runs = L.known and {} or nil
    end,

    read = function(L, s)
      if #s < HEADER + WIDTH then return false end
      reread(L, s)
      L.wrote = of_seven(s, 10)
      local a, b, c = string.byte(s, 17, 19)
      L.head = (a * 256 + b) * 256 + c
      local bytes = #s < HEAD and #s or redis.call("STRLEN", L.key)
      L.count = (bytes - HEADER) / WIDTH
      L.newest = record(L, L.head)
      return true
    end,

    grants = function(L, new)
      -- as long as all of the log takes under the new limit; from the newest on and
      -- not from now, because the clock may go backwards after this
      local rounds = max(2, ceil(L.count / new.n) + 1)
      local left, grants = later(L, L.newest - rounds * new.W), {}
      local size = max(1, ceil(left / GROUPS))
      while left > 0 do
        local many = min(size, left)
        grants[#grants + 1] = nth(L, left - many + 1)
        grants[#grants + 1] = many
        left = left - many
      end
      return grants
    end,

    -- slot is never before the newest grant: a clock that went backwards, or a
    -- neighbour that spent ahead of its turn, must not credit anything
    slot = function(L, now, before, cost)
      local k = before + cost
      local rounds = floor((k - 1) / L.n)
      local at = max(now, L.newest)
      local oldest = nth(L, L.n - (k - 1 - rounds * L.n))
      if oldest and oldest + L.W > at then at = oldest + L.W end
      return at + rounds * L.W
    end,

    charge = function(L, at, cost)
      L.newest, L.at, L.cost = at, at, cost -- for save
      if not L.runs then return end
      L.runs[#L.runs + 1] = at
      L.runs[#L.runs + 1] = cost
      L.count = L.count + cost
    end,

    save = function(L, now)
      if L.runs then return write(L, now, max(L.n, L.count - L.cost)) end
      local n, at = L.n, L.at
      local cost, lives = min(L.cost, max(n, L.count)), nil -- a bill may be above the limit: the ring is full of it
      if L.count == 0 or (n == 1 and L.count == 1) then
        -- not SET: what a script sets takes the room that an argument of its calls before had
        redis.call("SETRANGE", L.key, "0", header(L, L.token, cost - 1) .. seven(at))
        fill(L, cost, 1, at, cost - 1)
        lives = live(L.key, at + L.W - now)
        L.count, L.head = cost, cost - 1
      else
        if L.count < n and L.head ~= L.count - 1 then -- n was raised after the ring had turned
          redis.call("SET", L.key, header(L, L.token, L.count - 1) .. records(L), "KEEPTTL")
          L.head = L.count - 1
        end
        local size, before = max(n, L.count), L.count
        fill(L, size, (L.head + 1) % size, at, cost)
        lives = live(L.key, at + L.W - now) -- before another write: what had gone would begin with that
        L.head = (L.head + cost) % size
        L.count = min(size, L.count + cost)
        if lives then redis.call("SETRANGE", L.key, "0", header(L, L.token, L.head)) end
        if lives and before < n and L.count == n and n <= FITTED then fit(L) end
      end
      reread(L, "")
      if lives then return end
      L.count, L.head = 0, -1 -- nothing else counts any more: the key's life was over
      L.kind.save(L, now)
    end,

    -- back takes up to cost permits of the instant `at` out again: they count
    -- as spent one window before. What they wrote over is not known any more, but
    -- left the window at that very instant at the latest; without a trace of it the
    -- hole would admit too early when `at` is still to come, or comes again because
    -- the clock goes backwards. In a very large window they count from the oldest
    -- grant that may be moved: later than need be, never too early.
    back = function(L, at, cost, _, now)
      if L.count == 0 then return false end -- all that is known was given back
      local after = later(L, at)
      local many = min(cost, later(L, at - 1) - after)
      if many == 0 then return false end
      if L.runs then write(L, now, L.count) end
      local oldest = min(later(L, at - L.W), after + many + MOVED)
      local ghost = max(at - L.W, nth(L, oldest + 1) or 0)
      local first = (L.head - oldest + 1) % L.count
      shift(L, first, oldest - after - many, many)
      fill(L, L.count, first, ghost, many)
      redis.call("SETRANGE", L.key, 0, header(L, L.token, L.head))
      reread(L, "")
      L.newest = record(L, L.head)
      return false
    end,

    free = function(L, a)
      if L.newest > a then return 0 end
      return max(0, L.n - later(L, a - L.W))
    end,

    worth = function() return 0 end,
    ends = function(L) return L.newest + L.W end,
  }
end
