-- ledger.lua: what was spent on a key, in the form of its limit's kind.
--
-- A ledger is a string. It begins with a header of 16 bytes: 1 byte names the kind that wrote it, and with it the schema; 8 bytes
-- are the token of the newest grant; 7 bytes the version of the limit that it was written
-- under. The rest is the kind's own. For all kinds but leases that begins with `remembered`, see tokens.lua.
--
-- A limit is a table that never changes: letter, kind, n, W, more and version, and what its
-- kind reads of these. A ledger is a table that a script reads once, decides on, and writes
-- once: key, limit, token, remembered, newest (instant of the newest grant, 0 for none), known
-- (there is a value), and what its kind keeps. Each kind gives these functions:
--
--   fresh(limit, key)                   a key on which nothing was spent
--   read(kind, limit, s, key, max_bytes)  what s holds: the first bytes of a value, or all of it when it has less than max_bytes. nil when
--                                       the kind writes no such value. The second answer is the limit that it was written under, when
--                                       that is not `limit`
--   grants(ledger, limit)               what another kind needs to know of the past: {at, count, at, count ...}, oldest first
--   earliest(limit, ledger, now, before, cost)  when cost permits behind `before` others go, if all go as early as possible
--   charge(limit, ledger, at, cost)     spends them, in memory
--   ends(limit, ledger)                 from when on nothing of it counts
--   back(limit, ledger, at, cost, worth, now)  takes a grant out again, in memory or in Redis; true when the caller has to write the ledger
--   free(limit, ledger, now)            permits to be had now, which is not before the newest grant
--
-- and, where it has them,
--
--   numbers(limit)                      reads limit.more, and says in limit.reads how much of a value is read at once
--   covered(limit, now)                 whether it can decide about now
--   carry_over(limit, old, ledger)      carries a ledger over from other numbers
--   carry_grants(limit, ledger, grants) the same from the grants that another kind told
--   worth(ledger)                       of the newest grant: what back needs to give as much as can be given
--   owes(limit)                         where the next job waits for the permits of this one: how many times as long as for others, at most
--   value(limit, ledger)                what stands after the header; or
--   write(limit, ledger, now)           writes it
--   spent(limit, ledger, now, most)     the newest grants that count, for a reader: {at, count, at, count ...}, the newest first
--   no_debt                             true when it can't record more than the limit admits. Then a correction spends what is free at most, see
--                                       adjust.lua: to give back more than that later would free what others spent
--   moves(rule, at, token)              whether a grant of an instant, 0 when it is not known, can count from now on instead. Where a kind has none,
--                                       back works in memory alone, and is asked
--   lease, offer, anew                  see leases.lua
--   first_grant(limit, key, token, now) writes the first grant on a key that has no ledger, see shortcut.lua
--   scratch(ledger)                     a ledger to charge in vain, where earliest must be told whole jobs: what one leaves over of a window
--                                       may be too little for the next, see line.lua

local numbers = require("lib/numbers")
local binary = require("lib/binary")
local max, min = math.max, math.min
local life, live = numbers.life, numbers.live
local timestamp, timestamp_at = binary.timestamp, binary.timestamp_at

local call, sub = redis.call, string.sub
local NEVER = 6755399441055743 -- the year 2184: what is further away is told so, a score in line holds no more
local UNITS_MOST = 1048576 -- units of the largest cost of a limit, about
local NEWER, NOT_COVERED, OUTDATED, CORRUPT = 5, 6, 7, 8 -- statuses, see read
local READ = 399 -- so many bytes of a value hold what any kind but a large ring writes
local MOST = 256 -- limits that are kept from call to call

local KINDS = {
  s = { "limit/sliding" }, f = { "limit/counter", "fixed" }, c = { "limit/counter", "calendar" }, p = { "limit/counter", "step" },
  g = { "limit/tat", "gcra" }, m = { "limit/tat", "smooth" }, w = { "limit/tat", "warmup" }, k = { "limit/leases" },
}

-- kind_of is that of a letter, nil of an unknown one. It is made when it is met first.
local function kind_of(letter)
  local where = KINDS[letter]
  if not where or where.fresh then return where end
  local kind = require(where[1])
  if where[2] then kind = kind[where[2]] end
  KINDS[letter] = kind
  return kind
end

local limits, count = {}, 0

-- limit_of makes a limit of texts, or answers the one that it made of them
local function limit_of(letter, n, W, more, version)
  local text = letter .. n .. "|" .. W .. "|" .. more .. "|" .. version
  local limit = limits[text]
  if limit then return limit end
  if count == MOST then limits, count = {}, 0 end
  limit = { letter = letter, kind = kind_of(letter), n = tonumber(n), W = tonumber(W), more = more, version = tonumber(version) }
  limit.stamp, limit.life = timestamp(limit.version), numbers.int(life(limit.W)) -- as they are written
  limit.reads = READ
  if limit.kind.numbers then limit.kind.numbers(limit) end
  limit.last_byte = string.format("%d", limit.reads - 1)
  limit.counts = limit.W * math.ceil(max(limit.n, limit.burst or 0) / limit.n) -- for so long, at most, a permit counts
  limit.unit = 1 -- so many permits are one unit of a ticket, see line.lua
  while max(limit.n, limit.burst or 0) > UNITS_MOST * limit.unit do limit.unit = 2 * limit.unit end
  limits[text], count = limit, count + 1
  return limit
end

-- fresh is a ledger on which nothing was spent
local function fresh(limit, key)
  local ledger = limit.kind.fresh(limit, key)
  ledger.key, ledger.limit = key, limit
  return ledger
end

-- read reads the ledger of a rule. What another limit wrote is
-- carried over, as if the limit had been changed right after the newest grant: all
-- that is known to be spent is spent again. Until the next grant nothing is
-- written, so `now` has no part in it: an instant that moved on with the clock
-- would never come. The second answer is a status when there is nothing to decide
-- with: 5 newer schema, 6 a calendar that does not cover now, 7 an older limit than
-- the ledger was written under, whose version is the third, 8 a corrupt ledger: its
-- kind is known, and the rest is not what that kind writes. A caller that has not
-- heard of a change yet would grant by the old limit, and rewrite the ledger in its
-- form.
local function read(rule, now, nothing)
  local key, limit = rule.key, rule.limit
  local kind = limit.kind
  if kind.covered and not kind.covered(limit, now) then return nil, NOT_COVERED end
  local s = nothing and "" or call("GETRANGE", key, "0", limit.last_byte)
  if s == "" then return fresh(limit, key) end
  local letter = sub(s, 1, 1)
  local writer = letter == limit.letter and kind or kind_of(letter)
  if not writer then return nil, NEWER end
  if #s < 16 then return nil, CORRUPT end
  if writer ~= kind and limit.reads < READ then s = call("GETRANGE", key, 0, READ - 1) end
  local ledger, old = writer.read(writer, writer == kind and limit or nil, s, key, writer == kind and limit.reads or READ)
  if not ledger or not (ledger.newest >= 0 and ledger.newest <= NEVER) then return nil, CORRUPT end
  local other = sub(s, 10, 16) ~= limit.stamp
  if other and timestamp_at(s, 10) > limit.version then return nil, OUTDATED, timestamp_at(s, 10) end
  if writer ~= kind then
    local before = ledger
    ledger = fresh(limit, key)
    ledger.token, ledger.remembered, ledger.known, ledger.replaces = before.token, before.remembered, true, true
    if not kind.lease then
      local grants = writer.grants(before, limit)
      if kind.carry_grants then
        kind.carry_grants(limit, ledger, grants)
      else
        for i = 1, #grants, 2 do kind.charge(limit, ledger, grants[i], grants[i + 1]) end
        ledger.newest, ledger.changed = before.newest, before.newest
      end
    end
  else
    ledger.key, ledger.limit = key, limit
    if old and kind.carry_over then kind.carry_over(limit, old, ledger) end
  end
  if old and kind.carry_over or other or writer ~= kind then ledger.carried_over = true end
  return ledger
end

-- open gives a rule its ledger, and answers the status when there is none to decide with.
-- It reads nothing where it is known that nothing is there
local function open(rule, now, nothing)
  local ledger, status, version = read(rule, now, nothing)
  rule.ledger = ledger
  if not ledger then return status, version or 0 end
  ledger.tokens = rule.tokens
  if rule.kind.lease then ledger.now = now end
end

-- write writes a ledger with its life, which is never shortened: another process may still
-- count with a longer window
local function write(ledger, now)
  local limit, key = ledger.limit, ledger.key
  local kind = limit.kind
  ledger.dirty = false
  if kind.write then
    kind.write(limit, ledger, now)
  else
    local value = limit.letter .. ledger.token .. limit.stamp .. kind.value(limit, ledger)
    local us = kind.ends(limit, ledger) - now
    if ledger.replaces then -- what stood there may have been longer
      call("SET", key, value, "KEEPTTL")
      ledger.replaces = false
    else
      call("SETRANGE", key, "0", value)
    end
    if ledger.known then live(key, us) else call("PEXPIRE", key, numbers.int(math.max(1, life(us)))) end
  end
  ledger.known = true
end

-- earliest is the instant at which cost permits go behind `before` others
local function earliest(rule, now, before, cost)
  local limit = rule.limit
  return min(limit.kind.earliest(limit, rule.ledger, now, before, cost), NEVER)
end

-- outlive keeps a ledger that was written under another limit for as long as the
-- one in force counts with it. It may have been of a shorter window.
local function outlive(rule, now)
  local ledger = rule.ledger
  if ledger.carried_over and ledger.newest > 0 then live(rule.key, rule.kind.ends(rule.limit, ledger) - now) end
end

-- free is how many permits are to be had right now
local function free(rule, now)
  return rule.ledger.newest > now and not rule.kind.lease and 0 or rule.kind.free(rule.limit, rule.ledger, now)
end

-- spent is what is known of the newest grants, the newest first: {at, permits, at, permits ...}
local function spent(rule, now, most)
  if most == 0 then return {} end
  local kind = rule.kind
  if kind.spent then return kind.spent(rule.limit, rule.ledger, now, most) end
  local grants, list = kind.grants(rule.ledger, rule.limit), {}
  for i = #grants - 1, 1, -2 do
    list[#list + 1] = grants[i]
    list[#list + 1] = grants[i + 1]
  end
  return list
end

local function worth(rule)
  return rule.kind.worth and rule.kind.worth(rule.ledger) or 0
end

return {
  CORRUPT = CORRUPT, NEVER = NEVER, NOT_COVERED = NOT_COVERED, UNITS_MOST = UNITS_MOST, free = free, limit_of = limit_of,
  open = open, outlive = outlive, earliest = earliest, spent = spent, worth = worth, write = write,
}
