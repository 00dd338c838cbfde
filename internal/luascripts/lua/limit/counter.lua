-- counter.lua: the ledgers of all kinds but `sliding`, which has a log, and `concurrent`;
-- and the kinds that only count: fixed, calendar, step.
--
-- value  the header of every ledger, see ledger.lua, and doubles: newest used start before
--        before_at taken changed n W; then, where a kind has them, one number of its limit and
--        two of its own, and once more one of each
--
-- newest  instant of the newest grant
-- used    permits since the window began at `start`
-- before  permits of the window before this one, whose last was at before_at
-- taken   begins as the instant of the first grant, and grows by 1 with each permit. Its value after a grant is the
--         worth of that: what was granted since is the difference
-- changed  the newest grant when the limit was changed, or else just before the first one: nothing up to then is given back
-- n W     the numbers it was written under
--
-- A window begins with its first grant. So a ledger knows how
-- many permits went in the last W, whatever its kind is: that counts when
-- the limit is changed.

local numbers = require("lib/numbers")
local binary = require("lib/binary")
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local NO_TOKEN = numbers.NO_TOKEN
local pack, unpack_at = binary.pack, binary.unpack_at

local COUNTED = ">ddddddddd"

local MOST = 9007199254740991 -- permits that are counted: a double holds no more exactly
local HUGE = 72057594037927936 -- above the sum of all that is written; what is no number is not below it

-- by how many doubles a kind has of its own: the numbers of its limit are a and b, its own x, y and z; keep gives those their names
local FORMATS = { [0] = COUNTED, [3] = COUNTED .. "ddd", [5] = COUNTED .. "ddddd" }
local BYTES = { [0] = 72, [3] = 96, [5] = 112 }

local function fresh()
  return { -- all fields are named: a table that grows is slow
    token = NO_TOKEN, remembered = 0, known = false, newest = 0, used = 0, start = 0, before = 0, before_at = 0, taken = 0, changed = 0,
    key = nil, limit = nil, tokens = nil, dirty = false, new_tokens = nil, set_newest = nil, granted = nil, carried_over = nil, t = nil, r = nil, f = nil,
  }
end

-- spend counts a grant, in the window that began or in another that begins at `from`
local function spend(ledger, at, cost, from)
  if from then
    if ledger.used > 0 then ledger.before, ledger.before_at = ledger.used, ledger.newest end
    ledger.start, ledger.used = from, 0
  end
  if ledger.taken == 0 then
    ledger.taken, ledger.changed = at, max(ledger.changed, at - 1)
  elseif ledger.taken + cost > MOST then -- of a grant before that it is not known any more how many followed
    ledger.taken = at
  end
  ledger.used, ledger.newest, ledger.taken = ledger.used + cost, at, ledger.taken + cost
end

local function scratch(ledger)
  local other = {}
  for name, value in pairs(ledger) do other[name] = value end
  return other
end

-- over says that the window has ended at an instant, or never began
local function over(limit, ledger, at)
  return ledger.used == 0 or at >= ledger.start + limit.W
end

-- back takes a grant out, unless it is of a window before
local function back(ledger, at, cost)
  if at >= ledger.start then ledger.used = max(0, ledger.used - cost) end
end

-- taken_since is how many permits were taken after a grant, nil when that is not known.
-- What is owed for them stays owed when the grant is given back.
local function taken_since(ledger, worth)
  if worth > 0 and worth <= ledger.taken then return ledger.taken - worth end
end

local function grants(ledger)
  local list = {}
  if ledger.before > 0 then list = { ledger.before_at, ledger.before } end
  if ledger.used > 0 then
    list[#list + 1] = ledger.newest
    list[#list + 1] = ledger.used
  end
  return list
end

-- read reads a value; the second answer are the numbers that it was written under, when
-- they are not those of limit. nil for what value does not write
local function read(kind, limit, s)
  local doubles = kind.doubles or 0
  if #s ~= 17 + BYTES[doubles] or string.byte(s, 17) > 2 then return nil end
  local newest, used, start, before, before_at, taken, changed, n, W, a, x, y, b, z = unpack_at(FORMATS[doubles], s, 18)
  local sum = newest + used + start + before + before_at + taken + changed
  if doubles > 0 then sum = sum + x + y end
  if not (n >= 1 and W >= 1 and sum >= 0 and sum < HUGE) then return nil end
  local ledger = {
    token = string.sub(s, 2, 9), remembered = string.byte(s, 17), known = true, newest = newest, used = used, start = start,
    before = before, before_at = before_at, taken = taken, changed = changed,
    key = nil, limit = nil, tokens = nil, dirty = false, new_tokens = nil, set_newest = nil, granted = nil, carried_over = nil, t = nil, r = nil, f = nil,
  }
  if doubles == 0 then a = nil else kind.keep(ledger, x, y, z) end
  if doubles < 5 then b = nil end
  if limit and limit.kind == kind and n == limit.n and W == limit.W and a == limit.a and b == limit.b then return ledger end
  local old = { n = n, W = W, kind = kind, a = a, b = b }
  if kind.numbers then kind.numbers(old) end
  return ledger, old
end

-- value is what is written after the header
local function value(limit, ledger)
  local kind = limit.kind
  local doubles = kind.doubles or 0
  local x, y, z
  if doubles > 0 then x, y, z = kind.own(ledger) end
  return string.char(ledger.remembered) .. pack(FORMATS[doubles], ledger.newest, ledger.used, ledger.start, ledger.before, ledger.before_at,
    ledger.taken, ledger.changed,
    limit.n, limit.W, limit.a or 0, x or 0, y or 0, limit.b or 0, z or 0)
end

-- fit begins the window at the newest grant when windows as long as the limit's would have ended before that
local function fit(limit, ledger)
  if ledger.start + limit.W <= ledger.newest then ledger.start = ledger.newest end
  ledger.changed = ledger.newest
end

-- replay is a ledger of a limit on which all that the counter of another limit knows is spent
local function replay(limit, ledger)
  local replayed, list = limit.kind.fresh(limit), grants(ledger)
  for i = 1, #list, 2 do limit.kind.charge(limit, replayed, list[i], list[i + 1]) end
  return replayed
end

-- recount counts all that is known once more: a window may be longer now, and
-- hold both tallies
local function recount(limit, ledger)
  local replayed = replay(limit, ledger)
  for _, name in ipairs({ "used", "start", "before", "before_at", "taken" }) do ledger[name] = replayed[name] end
  ledger.changed = ledger.newest
end

-- stricter says that a limit allows less than the old one: fewer permits a
-- second, or less at once
local function stricter(limit, old, burst, old_burst)
  return limit.W * old.n > old.W * limit.n or burst < old_burst
end

local counter = {
  back = back, fit = fit, fresh = fresh, grants = grants, over = over, read = read, replay = replay, spend = spend, stricter = stricter,
  taken_since = taken_since, value = value,
}

-- `fixed n/W`, at most n permits in a window that begins with the
-- first of them. These windows are all there is to know.
counter.fixed = {
  scratch = scratch, fresh = fresh, grants = grants, read = read, value = value,
  carry_over = function(limit, old, ledger)
    fit(limit, ledger)
    if limit.W > old.W and ledger.before > 0 and ledger.before_at + limit.W > ledger.newest then recount(limit, ledger) end -- one window may hold both now
  end,
  earliest = function(limit, ledger, now, before, cost)
    local a, k = max(now, ledger.newest), before + cost
    if over(limit, ledger, a) then return a + limit.W * floor((k - 1) / limit.n) end
    local most = min(ledger.used, limit.n) + k -- used is more than n after n fell; the next window owes nothing for that
    if most <= limit.n then return a end
    return ledger.start + limit.W + limit.W * floor((most - limit.n - 1) / limit.n)
  end,
  charge = function(limit, ledger, at, cost) spend(ledger, at, cost, over(limit, ledger, at) and at) end,
  ends = function(limit, ledger) return ledger.newest + limit.W end,
  back = function(_, ledger, at, cost)
    back(ledger, at, cost)
    return true
  end,
  free = function(limit, ledger, a) return over(limit, ledger, a) and limit.n or max(0, limit.n - ledger.used) end,
}

-- `calendar n/unit zone`, at most n permits in a civil minute,
-- hour, day, week or month. A window begins where that of the calendar does.
--
-- more  "short b0 b1 ...": where windows begin, as the caller's calendar has it;
--       beyond the last they are taken to be `short` long, which none falls below

-- window_start is where window i begins
local function window_start(limit, i)
  local bounds = limit.bounds
  local last = #bounds
  if i <= last then return bounds[i] end
  return bounds[last] + (i - last) * limit.short
end

-- index is the window in which an instant lies
local function index(limit, at)
  local bounds = limit.bounds
  local last = #bounds
  if at >= bounds[last] then return last + floor((at - bounds[last]) / limit.short) end
  local i = 1
  while i < last and bounds[i + 1] <= at do i = i + 1 end
  return i
end

-- used is what went in window i
local function used(limit, ledger, i)
  return ledger.newest >= window_start(limit, i) and ledger.used or 0
end

counter.calendar = {
  scratch = scratch, fresh = fresh, grants = grants, read = read, value = value,
  numbers = function(limit)
    if not limit.more then return end -- the bounds of another day are no other limit
    limit.bounds = {}
    for b in string.gmatch(limit.more, "%d+") do
      if limit.short then limit.bounds[#limit.bounds + 1] = tonumber(b) else limit.short = tonumber(b) end
    end
  end,
  covered = function(limit, now) return limit.bounds[1] <= now and now < limit.bounds[#limit.bounds] end,
  carry_over = function(limit, _, ledger) recount(limit, ledger) end,
  earliest = function(limit, ledger, now, before, cost)
    local a = max(now, ledger.newest, limit.bounds[1])
    local i = index(limit, a)
    local most = min(used(limit, ledger, i), limit.n) + before + cost -- used is more than n after n fell
    if most <= limit.n then return a end
    return window_start(limit, i + 1 + floor((most - limit.n - 1) / limit.n))
  end,
  -- an instant that the calendar does not know is in none of its windows
  charge = function(limit, ledger, at, cost)
    local from = at < limit.bounds[1] and at or window_start(limit, index(limit, at))
    spend(ledger, at, cost, (ledger.used == 0 or ledger.newest < from) and from)
  end,
  ends = function(limit, ledger)
    return max(window_start(limit, index(limit, max(ledger.newest, limit.bounds[1])) + 1), ledger.newest + limit.W)
  end,
  back = counter.fixed.back,
  free = function(limit, ledger, a) return max(0, limit.n - used(limit, ledger, index(limit, a))) end,
}

-- `bucket n/W burst b step`, n tokens at once every W. The interval
-- begins with the first token that is taken from a full bucket.
--
-- more  "b"
-- own   have, anchor: so many tokens at an instant, when the last were added

-- filled is the bucket at an instant; when it is full, the interval begins there
local function filled(limit, ledger, a)
  local ticks = max(0, floor((a - ledger.anchor) / limit.W))
  local have = min(limit.burst, ledger.have + ticks * limit.n)
  if have >= limit.burst then return have, a end
  return have, ledger.anchor + ticks * limit.W
end

counter.step = {
  doubles = 3,
  no_debt = true,
  scratch = scratch, grants = grants, read = read, value = value,
  numbers = function(limit)
    limit.a = limit.a or tonumber(limit.more)
    limit.burst = limit.a
  end,
  fresh = function(limit)
    local ledger = fresh()
    ledger.have, ledger.anchor = limit.burst, 0
    return ledger
  end,
  keep = function(ledger, have, anchor) ledger.have, ledger.anchor = have, anchor end,
  own = function(ledger) return ledger.have, ledger.anchor end,
  -- what is missing is carried over; under a stricter limit all that is known counts besides
  carry_over = function(limit, old, ledger)
    local full = ledger.have >= old.burst
    fit(limit, ledger)
    ledger.have, ledger.anchor = max(0, limit.burst - max(0, old.burst - ledger.have)), full and 0 or ledger.anchor
    if ledger.anchor + limit.W <= ledger.newest then ledger.anchor = ledger.newest end -- the new interval is shorter: nothing comes for the past
    if stricter(limit, old, limit.burst, old.burst) then
      local replayed = replay(limit, ledger)
      if replayed.have < ledger.have or (replayed.have == ledger.have and replayed.anchor > ledger.anchor) then
        ledger.have, ledger.anchor = replayed.have, replayed.anchor
      end
    end
  end,
  earliest = function(limit, ledger, now, before, cost)
    local a, k = max(now, ledger.newest), before + cost
    local have, anchor = filled(limit, ledger, a)
    if k <= have then return a end
    return max(a, anchor + ceil((k - have) / limit.n) * limit.W)
  end,
  charge = function(limit, ledger, at, cost)
    local have, anchor = filled(limit, ledger, at)
    ledger.have, ledger.anchor = max(0, have - cost), anchor
    spend(ledger, at, cost, over(limit, ledger, at) and at)
  end,
  ends = function(limit, ledger)
    return max(ledger.anchor + ceil((limit.burst - ledger.have) / limit.n) * limit.W, ledger.newest + limit.W)
  end,
  -- back does not advance the bucket: the clock may go backwards
  back = function(limit, ledger, at, cost, worth, a)
    local have, anchor = filled(limit, ledger, a)
    local missing, since = limit.burst - have, taken_since(ledger, worth)
    local still = cost - limit.n * max(0, floor((anchor - at - 1) / limit.W) + 1) -- less what came since at the ends of intervals
    if since then still = max(0, missing - since) end
    ledger.have = ledger.have + max(0, min(cost, still, missing))
    back(ledger, at, cost)
    return true
  end,
  free = function(limit, ledger, a) return (filled(limit, ledger, a)) end,
  worth = function(ledger) return ledger.taken end,
}

return counter
