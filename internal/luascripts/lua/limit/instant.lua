-- instant.lua: what `gcra` and `smooth` have in common: beside the tally their
-- state is one instant, t + r/n microseconds with 0 <= r < n, so that a permit
-- may take W/n and nothing is ever rounded in a ledger. nil on a fresh key.
--
-- own  "t r"

-- plus is the time of k permits later; k may be negative
local function plus(L, t, r, k)
  local q = floor(L.W / L.n)
  local s = r + k * (L.W - q * L.n)
  local whole = floor(s / L.n)
  return t + k * q + whole, s - whole * L.n
end

local function up(t, r)
  return r > 0 and t + 1 or t
end

local function later_of(t, r, t2, r2)
  if t2 > t or (t2 == t and r2 > r) then return t2, r2 end
  return t, r
end

local function instant_fresh(L)
  tally_fresh(L)
  L.t, L.r = nil, nil
end

-- instant_read reads a ledger; settle carries it over to other numbers
local function instant_read(L, s, settle)
  local own, old = tally_read(L, s)
  local t, r = string.match(own or "", "^(%d+) (%d+)$")
  if not t then return false end
  L.t, L.r = tonumber(t), tonumber(r)
  if old then settle(L, old) end
  return true
end

-- instant_settled is not before what a stricter limit makes of all that is known
local function instant_settled(L, old, t, r)
  if stricter(L, old, L.burst, old.burst) then
    local R = replay(L)
    if R.t then t, r = later_of(t, r, R.t, R.r) end
  end
  L.t, L.r = t, r
end

local function instant_save(L, now)
  tally_save(L, now, int(L.t) .. " " .. int(L.r))
end

-- instant_back takes the time of cost permits off again, as much of it as
-- is still to come at a: what time has paid, others may have spent since. `stored`
-- permits' time may lie in the past and still counts.
local function instant_back(L, at, cost, worth, a, stored)
  local c, rest = plus(L, 0, 0, cost)
  local since = taken_since(L, worth)
  local ends = plus(L, L.t, L.r, stored - (since or 0))
  if not since then ends = min(at + c, ends) end
  local left = max(0, ends - a)
  if left >= up(c, rest) then
    L.t, L.r = plus(L, L.t, L.r, -cost)
  else
    L.t = L.t - left
  end
  tally_back(L, at, cost, worth)
  return true
end
