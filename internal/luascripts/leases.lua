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

  local function live_leases(L, now)
    return redis.call("ZCOUNT", L.tokens, "(" .. int(now), "+inf")
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
      local index = live_leases(L, L.now) - L.n + before - rounds * L.n
      if index < 0 then return now + rounds * L.W end
      local v = redis.call("ZRANGEBYSCORE", L.tokens, "(" .. int(L.now), "+inf", "WITHSCORES", "LIMIT", index, 1)
      return max(now, tonumber(v[2])) + rounds * L.W
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
      redis.call("ZADD", L.tokens, int(at + L.W), token)
      local old = redis.call("ZRANGEBYSCORE", L.tokens, "(0", int(now), "LIMIT", 0, 20)
      if #old > 0 then redis.call("ZREM", L.tokens, unpack(old)) end
      live(L.tokens, at + L.W - now)
    end,

    -- offer tells the first who wait that a lease is free for them
    offer = function(L, now, reply)
      if L.closed > 0 then return end
      local free = min(L.n - live_leases(L, now), OFFERS, L.last - L.first)
      if free <= 0 then return end
      for _, m in ipairs(redis.call("ZRANGE", L.line, L.first, L.first + free - 1)) do
        local before = told(L, m) or 0
        if before > now + 1000 then -- one that was offered before is not offered for longer
          redis.call("ZADD", L.promised, int(min(before, now + OFFERED)), m)
          reply[#reply + 1] = L.part
          reply[#reply + 1] = now
          reply[#reply + 1] = string.match(m, ":(.*)$")
        end
      end
    end,
  }
end
