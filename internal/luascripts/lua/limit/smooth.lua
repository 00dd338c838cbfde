-- smooth.lua: `smooth n/W burst s` and, with s = 0, `leaky n/W`: a job never
-- waits for its own permits, the one after it does. What is not used is stored,
-- s permits at most. It begins with none.
--
-- more  "s"
-- own   the instant at which the next one goes, see instant.lua; before now by what is stored

function kinds.m()
  local STORED = 3600000000 -- what is stored is kept so long

  -- following is when the next goes, with what is stored at a
  local function following(L, a)
    if not L.t then return a, 0 end
    if a > up(plus(L, L.t, L.r, L.burst)) then return plus(L, a, 0, -L.burst) end
    return L.t, L.r -- with the rest of a microsecond by which a grant had to be late
  end

  -- settle leaves what is owed as it is, as Guava's setRate does. Stored time is
  -- not more permits when these get shorter: what was spent of it would be there again.
  local function settle(L, old)
    local t = up(L.t, L.r)
    if t < L.newest and old.W * L.n > L.W * old.n then
      t = L.newest - floor((L.newest - t) * (L.W * old.n) / (L.n * old.W))
    end
    instant_settled(L, old, t, 0)
  end

  return {
    numbers = function(L) L.burst = tonumber(L.more) end,
    fresh = instant_fresh,
    read = function(L, s) return instant_read(L, s, settle) end,
    grants = tally_grants,
    slot = function(L, now, before)
      local a = max(now, L.newest)
      local t, r = following(L, a)
      return max(a, up(plus(L, t, r, before)))
    end,
    charge = function(L, at, cost)
      local t, r = following(L, at)
      L.t, L.r = plus(L, t, r, cost)
      tally(L, at, cost, over(L, at) and at)
    end,
    save = instant_save,
    ends = function(L)
      local ends = L.t and up(plus(L, L.t, L.r, L.burst)) or 0
      return max(L.burst > 0 and ends + STORED or ends, L.newest + L.W)
    end,
    back = function(L, at, cost, worth, a) return instant_back(L, at, cost, worth, a, L.burst) end,
    free = function(L, a)
      local t, r = following(L, a)
      if up(t, r) > a then return 0 end
      local k = floor((a - t) * L.n / L.W) + 1 -- near it
      while k > 1 and up(plus(L, t, r, k)) > a do k = k - 1 end
      return k
    end,
    worth = function(L) return L.taken end,
  }
end
