-- step.lua: `bucket n/W burst b step`, n tokens at once every W. The interval
-- begins with the first token that is taken from a full bucket.
--
-- more  "b"
-- own   "x z": x tokens at z, when the last were added

function kinds.p()
  -- at is the bucket at an instant; when it is full, the interval begins there
  local function at(L, a)
    local ticks = max(0, floor((a - L.z) / L.W))
    local x = min(L.burst, L.x + ticks * L.n)
    if x >= L.burst then return x, a end
    return x, L.z + ticks * L.W
  end

  -- settle carries what is missing over to other numbers; under a stricter limit
  -- all that is known counts besides
  local function settle(L, old)
    local full = L.x >= old.burst
    L.x, L.z = max(0, L.burst - max(0, old.burst - L.x)), full and 0 or L.z
    if L.z + L.W <= L.newest then L.z = L.newest end -- the new interval is shorter: nothing comes for the past
    if stricter(L, old, L.burst, old.burst) then
      local R = replay(L)
      if R.x < L.x or (R.x == L.x and R.z > L.z) then L.x, L.z = R.x, R.z end
    end
  end

  return {
    numbers = function(L) L.burst = tonumber(L.more) end,
    fresh = function(L)
      tally_fresh(L)
      L.x, L.z = L.burst, 0
    end,
    read = function(L, s)
      local own, old = tally_read(L, s)
      local x, z = string.match(own or "", "^(%d+) (%d+)$")
      if not x then return false end
      L.x, L.z = tonumber(x), tonumber(z)
      if old then settle(L, old) end
      return true
    end,
    grants = tally_grants,
    slot = function(L, now, before, cost)
      local a, k = max(now, L.newest), before + cost
      local x, z = at(L, a)
      if k <= x then return a end
      return max(a, z + ceil((k - x) / L.n) * L.W)
    end,
    charge = function(L, when, cost)
      local x, z = at(L, when)
      L.x, L.z = max(0, x - cost), z
      tally(L, when, cost, over(L, when) and when)
    end,
    save = function(L, now) tally_save(L, now, int(L.x) .. " " .. int(L.z)) end,
    ends = function(L) return max(L.z + ceil((L.burst - L.x) / L.n) * L.W, L.newest + L.W) end,
    -- back does not advance the bucket: the clock may go backwards
    back = function(L, when, cost, worth, a)
      local missing, since = L.burst - at(L, a), taken_since(L, worth)
      local still = max(0, cost - L.n * (floor((a - when) / L.W) + 1))
      if since then still = max(0, missing - since) end
      L.x = L.x + min(cost, still, missing)
      tally_back(L, when, cost, worth)
      return true
    end,
    free = function(L, a) return (at(L, a)) end,
    worth = function(L) return L.taken end,
  }
end
