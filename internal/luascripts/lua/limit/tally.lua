-- tally.lua: the ledger of every algorithm but `sliding`, which has a log.
--
-- value  1 byte algorithm | 8 bytes token of the newest grant | text
--        "newest used age before age taken changed version;own;n W more"
--
-- newest  instant of the newest grant
-- used    permits since the tally began, which was `age` before newest
-- before  permits of the tally before this one, whose last was `age` before newest
-- taken   grows by each permit, from the first instant on: what it grew by since a
--         grant was taken after it
-- changed  the newest grant when the limit was changed, or else just before the first one: nothing up to then is given back
-- version  of the limit that it was written under
-- own     what the algorithm keeps beside that, see its part
-- n W more  the numbers it was written under
--
-- A tally is a window that begins with its first grant. So a ledger knows how
-- many permits went in the last W, whatever its algorithm is: that counts when
-- the limit is changed.

local function tally_fresh(L)
  L.newest, L.used, L.start, L.before, L.before_at, L.taken, L.changed = 0, 0, 0, 0, 0, 0, 0
end

-- tally counts a grant, in the tally that began or in another that begins at `from`
local function tally(L, at, cost, from)
  if from then
    if L.used > 0 then L.before, L.before_at = L.used, L.newest end
    L.start, L.used = from, 0
  end
  if L.taken == 0 then L.taken, L.changed = at, max(L.changed, at - 1) end
  L.used, L.newest, L.taken = L.used + cost, at, L.taken + cost
end

-- over says that the tally has ended at an instant, or never began
local function over(L, at)
  return L.used == 0 or at >= L.start + L.W
end

-- tally_back takes a grant out, unless it is of a tally before. The newest one
-- leaves no trace for those before it.
local function tally_back(L, at, cost, worth)
  if at >= L.start then L.used = max(0, L.used - cost) end
  if worth ~= 0 and worth == L.taken then L.taken = L.taken - cost end
end

-- taken_since is how many permits were taken after a grant, nil when that is not known.
-- What is owed for them stays owed when the grant is given back.
local function taken_since(L, worth)
  if worth > 0 and worth <= L.taken then return L.taken - worth end
end

local function tally_grants(L)
  local grants = {}
  if L.before > 0 then grants = { L.before_at, L.before } end
  if L.used > 0 then
    grants[#grants + 1] = L.newest
    grants[#grants + 1] = L.used
  end
  return grants
end

-- tally_read reads the text, answers the algorithm's own part of it, and the
-- limit that it was written under when that is not L
local function tally_read(L, s)
  local newest, used, age, before, before_age, taken, changed, wrote, own, n, W, more =
    string.match(s, "^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+);([^;]*);(%d+) (%d+) ?(.*)$", 10)
  if not newest then return nil end
  L.taken, L.changed, L.wrote = tonumber(taken), tonumber(changed), tonumber(wrote)
  L.newest, L.used, L.before = tonumber(newest), tonumber(used), tonumber(before)
  L.start, L.before_at = L.newest - tonumber(age), 0
  if L.before > 0 then L.before_at = L.newest - tonumber(before_age) end
  n, W = tonumber(n), tonumber(W)
  if n == L.n and W == L.W and more == (L.stored or L.more) then return own end
  if not L.n then -- another algorithm's: read as it was written
    L.n, L.W, L.more = n, W, more
    if L.kind.numbers then L.kind.numbers(L) end
    return own
  end
  if L.start + L.W <= L.newest then L.start = L.newest end
  L.changed, L.carried = L.newest, true
  local old = { n = n, W = W, more = more, kind = L.kind }
  if L.kind.numbers then L.kind.numbers(old) end
  return own, old
end

-- tally_again counts all that is known once more: a window may be longer now, and
-- hold both tallies
local function tally_again(L, charge)
  local newest, grants = L.newest, tally_grants(L)
  tally_fresh(L)
  for i = 1, #grants, 2 do charge(L, grants[i], grants[i + 1]) end
  L.newest, L.changed = newest, newest
end

-- replay is a ledger of the same limit on which all that the tally knows is spent
local function replay(L)
  local R = { n = L.n, W = L.W, more = L.more, kind = L.kind }
  if L.kind.numbers then L.kind.numbers(R) end
  L.kind.fresh(R)
  local grants = tally_grants(L)
  for i = 1, #grants, 2 do L.kind.charge(R, grants[i], grants[i + 1]) end
  return R
end

-- stricter says that the limit L allows less than the old one: fewer permits a
-- second, or less at once
local function stricter(L, old, capacity, old_capacity)
  return L.W * old.n > old.W * L.n or capacity < old_capacity
end

-- tally_save writes the ledger
local function tally_save(L, now, own)
  local px = max(1, life(L.kind.ends(L) - now))
  if L.known then px = max(px, redis.call("PTTL", L.key)) end
  local text = L.letter .. L.token .. string.format("%.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f;",
    L.newest, L.used, L.newest - L.start, L.before, L.before > 0 and L.newest - L.before_at or 0, L.taken, L.changed, L.version
  ) .. own .. string.format(";%.0f %.0f", L.n, L.W)
  local more = L.stored or L.more
  if more ~= "" then text = text .. " " .. more end
  redis.call("SET", L.key, text, "PX", int(px))
end
