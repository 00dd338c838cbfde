-- counter.lua: the ledger of every algorithm but `sliding`, which has a log.
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

local numbers = require("lib/numbers")
local max = math.max
local int, life = numbers.int, numbers.life

local function fresh(rule)
  rule.newest, rule.used, rule.start, rule.before, rule.before_at, rule.taken, rule.changed = 0, 0, 0, 0, 0, 0, 0
end

-- spend counts a grant, in the tally that began or in another that begins at `from`
local function spend(rule, at, cost, from)
  if from then
    if rule.used > 0 then rule.before, rule.before_at = rule.used, rule.newest end
    rule.start, rule.used = from, 0
  end
  if rule.taken == 0 then rule.taken, rule.changed = at, max(rule.changed, at - 1) end
  rule.used, rule.newest, rule.taken = rule.used + cost, at, rule.taken + cost
end

-- over says that the tally has ended at an instant, or never began
local function over(rule, at)
  return rule.used == 0 or at >= rule.start + rule.W
end

-- back takes a grant out, unless it is of a tally before. The newest one
-- leaves no trace for those before it.
local function back(rule, at, cost, worth)
  if at >= rule.start then rule.used = max(0, rule.used - cost) end
  if worth ~= 0 and worth == rule.taken then rule.taken = rule.taken - cost end
end

-- taken_since is how many permits were taken after a grant, nil when that is not known.
-- What is owed for them stays owed when the grant is given back.
local function taken_since(rule, worth)
  if worth > 0 and worth <= rule.taken then return rule.taken - worth end
end

local function grants(rule)
  local grants = {}
  if rule.before > 0 then grants = { rule.before_at, rule.before } end
  if rule.used > 0 then
    grants[#grants + 1] = rule.newest
    grants[#grants + 1] = rule.used
  end
  return grants
end

-- read reads the text, answers the algorithm's own part of it, and the
-- limit that it was written under when that is not rule
local function read(rule, s)
  local newest, used, age, before, before_age, taken, changed, wrote, own, n, W, more =
    string.match(s, "^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+);([^;]*);(%d+) (%d+) ?(.*)$", 10)
  if not newest then return nil end
  rule.taken, rule.changed, rule.wrote = tonumber(taken), tonumber(changed), tonumber(wrote)
  rule.newest, rule.used, rule.before = tonumber(newest), tonumber(used), tonumber(before)
  rule.start, rule.before_at = rule.newest - tonumber(age), 0
  if rule.before > 0 then rule.before_at = rule.newest - tonumber(before_age) end
  n, W = tonumber(n), tonumber(W)
  if n == rule.n and W == rule.W and more == (rule.stored or rule.more) then return own end
  if not rule.n then -- another algorithm's: read as it was written
    rule.n, rule.W, rule.more = n, W, more
    if rule.kind.numbers then rule.kind.numbers(rule) end
    return own
  end
  if rule.start + rule.W <= rule.newest then rule.start = rule.newest end
  rule.changed, rule.carried = rule.newest, true
  local old = { n = n, W = W, more = more, kind = rule.kind }
  if rule.kind.numbers then rule.kind.numbers(old) end
  return own, old
end

-- again counts all that is known once more: a window may be longer now, and
-- hold both tallies
local function again(rule, charge)
  local newest, grants = rule.newest, grants(rule)
  fresh(rule)
  for i = 1, #grants, 2 do charge(rule, grants[i], grants[i + 1]) end
  rule.newest, rule.changed = newest, newest
end

-- replay is a ledger of the same limit on which all that the tally knows is spent
local function replay(rule)
  local replayed = { n = rule.n, W = rule.W, more = rule.more, kind = rule.kind }
  if rule.kind.numbers then rule.kind.numbers(replayed) end
  rule.kind.fresh(replayed)
  local grants = grants(rule)
  for i = 1, #grants, 2 do rule.kind.charge(replayed, grants[i], grants[i + 1]) end
  return replayed
end

-- stricter says that the limit rule allows less than the old one: fewer permits a
-- second, or less at once
local function stricter(rule, old, capacity, old_capacity)
  return rule.W * old.n > old.W * rule.n or capacity < old_capacity
end

-- save writes the ledger
local function save(rule, now, own)
  local px = max(1, life(rule.kind.ends(rule) - now))
  if rule.known then px = max(px, redis.call("PTTL", rule.key)) end
  local text = rule.letter .. rule.token .. string.format("%.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f;",
    rule.newest, rule.used, rule.newest - rule.start, rule.before, rule.before > 0 and rule.newest - rule.before_at or 0, rule.taken, rule.changed, rule.version
  ) .. own .. string.format(";%.0f %.0f", rule.n, rule.W)
  local more = rule.stored or rule.more
  if more ~= "" then text = text .. " " .. more end
  redis.call("SET", rule.key, text, "PX", int(px))
end

return {
  again = again, back = back, fresh = fresh, grants = grants, over = over, read = read, replay = replay, save = save, spend = spend,
  stricter = stricter, taken_since = taken_since,
}
