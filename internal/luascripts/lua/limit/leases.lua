-- leases.lua: `concurrent n lease W`, at most n at once. What counts are the
-- leases that have not ended: the members of `tokens`, score = end of the lease.
-- Nothing counts them up or down, so nothing can be lost or doubled.
--
-- own  "newest fence version n W", beside the header of every ledger
--
-- fence  grows from lease to lease, also when the ledger has expired meanwhile

function kinds.k()
  local OFFERS = 16 -- how many a call tells at most that a lease is free
  local OFFERED = 900000 -- and how long, with GRACE, it is kept for them
  local AHEAD = 32 -- how many behind them, of n at most, come by themselves when the leases end
  local SOON = 40000 -- a lease that ends so soon is as good as free: whoever is told now comes for its end

  local function live_leases(L, now)
    return redis.call("ZCOUNT", L.tokens, "(" .. int(now), "+inf")
  end

  -- ends_from is so many leases that have not ended, with their ends, from a rank on
  local function ends_from(L, index, many)
    return redis.call("ZRANGEBYSCORE", L.tokens, "(" .. int(L.now), "+inf", "WITHSCORES", "LIMIT", index, many)
  end

  -- tell_ahead tells those behind the free leases when they come if nobody gives one
  -- back: a hint dies with the process that reads it, and that may have held all leases.
  -- So the first `many` must have heard it longer ago than from the last `many` calls:
  -- twice as many know it, and when they do not, three times as many are told. It is
  -- due again after so many more leases, not after each. From the second `many` on they
  -- are told what the last of the first is
  local function tell_ahead(L, from, free, reply)
    local many = min(L.n, AHEAD)
    local last = min(free + 2 * many, line_ends(L) - L.first) - 1
    if last < free then return end
    local edge = min(last, free + many - 1)
    local at_edge = slot(L, from, edge, 1)
    if (told(L, (at_rank(L.line, L.first + last))) or 0) <= at_edge + 1000 then return end
    local members = redis.call("ZRANGE", L.line, L.first + free, min(L.last, L.first + free + 3 * many) - 1)
    local names, sooner = {}, {}
    for i, m in ipairs(members) do names[i] = "@" .. m end
    local before = redis.call("ZMSCORE", L.line, unpack(names))
    L.ends_at = max(0, L.live - L.n + free) -- slot needs them for each
    L.ends = ends_from(L, L.ends_at, many)
    for i, m in ipairs(members) do
      local rank = free + i - 1
      local at = rank < edge and slot(L, from, rank, 1) or at_edge
      if before[i] and before[i] - TOLD > at + 1000 then
        sooner[#sooner + 1] = int(at + TOLD)
        sooner[#sooner + 1] = names[i]
        tell(L, at, m, reply)
      end
    end
    L.ends = nil
    redis.call("ZADD", L.line, unpack(sooner))
  end

  -- tell_next tells the first behind the free leases when one ends that was not renewed
  -- in time. Its holder has died, so the end stays where it is; and those whom tell_ahead
  -- told it may have gone before, for leases that were given back
  local function tell_next(L, from, free, reply)
    if free >= line_ends(L) - L.first then return end
    local at = slot(L, from, free, 1)
    if at > L.now + L.W / 2 then return end
    local m = at_rank(L.line, L.first + free)
    if (told(L, m) or 0) <= at + 1000 then return end
    redis.call("ZADD", L.line, int(at + TOLD), "@" .. m)
    tell(L, at, m, reply)
  end

  return {
    fresh = function(L)
      L.newest, L.fence = 0, 0
    end,

    read = function(L, s)
      local newest, fence, version = string.match(s, "^(%d+) (%d+) (%d+) %d+ %d+$", 10)
      if not newest then return false end
      L.newest, L.fence, L.wrote = tonumber(newest), tonumber(fence), tonumber(version)
      return true
    end,

    grants = function() return {} end,

    -- n places: those that are free, and the others in the order in which their
    -- leases end; whoever is ahead takes them one by one, for a lease each. The ends of
    -- leases that are renewed move: whoever waits for one that is given back early is
    -- told so
    slot = function(L, now, before)
      local rounds = floor(before / L.n)
      local index = (L.live or live_leases(L, L.now)) - L.n + before - rounds * L.n
      if index < 0 then return now + rounds * L.W end
      local known = L.ends and L.ends[2 * (index - L.ends_at) + 2]
      return max(now, tonumber(known or ends_from(L, index, 1)[2])) + rounds * L.W
    end,

    charge = function(L, at)
      L.newest, L.fence = at, max(L.fence + 1, L.now)
    end,

    save = function(L, now)
      local text = string.format("%.0f %.0f %.0f %.0f %.0f", L.newest, L.fence, L.version, L.n, L.W)
      redis.call("SET", L.key, L.letter .. L.token .. text, "PX", int(life(L.newest + L.W - now)))
    end,

    -- anew is a fence for a holder whose first answer was lost: nobody remembers those
    -- before the newest. A full Redis must not keep it from its lease
    anew = function(L)
      local fence = max(L.fence + 1, L.now)
      if L.newest > 0 then
        local text = string.format("%.0f %.0f %.0f %.0f %.0f", L.newest, fence, L.wrote, L.n, L.W)
        redis.pcall("SET", L.key, L.letter .. L.token .. text, "KEEPTTL")
      end
      return fence
    end,

    ends = function(L) return L.newest + L.W end,
    back = function() return false end,
    free = function(L, now) return max(0, L.n - live_leases(L, now)) end,
    worth = function() return 0 end,

    -- lease begins one, and clears away some that have ended
    lease = function(L, at, now, token)
      local old
      repeat
        redis.call("ZADD", L.tokens, int(at + L.W), token)
        old = old or redis.call("ZRANGEBYSCORE", L.tokens, "(0", int(now), "LIMIT", 0, 20)
        if #old > 0 then redis.call("ZREM", L.tokens, unpack(old)) end
      until live(L.tokens, at + L.W - now)
    end,

    -- offer tells the first who wait that a lease is free for them, and those behind when one
    -- ends. In the last tenth of its lease a holder has given it up
    offer = function(L, now, reply)
      local free = L.closed == 0 and max(0, L.n - live_leases(L, now + min(SOON, floor(L.W / 10)))) or 0
      local most = min(free, OFFERS, line_ends(L) - L.first)
      if most > 0 then
        for _, m in ipairs(redis.call("ZRANGE", L.line, L.first, L.first + most - 1)) do
          if (told(L, m) or 0) > now + OFFERED then redis.call("ZADD", L.line, int(now + OFFERED + TOLD), "@" .. m) end
          tell(L, now, m, reply) -- also who was told before: it may not have heard
        end
      end
      L.live = live_leases(L, now)
      tell_ahead(L, max(now, L.closed), free, reply)
      tell_next(L, max(now, L.closed), free, reply)
      L.live = nil
    end,
  }
end
