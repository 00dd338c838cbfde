-- ledger.lua: what was spent on a key, in the form of its limit's algorithm.
--
-- A ledger is a string: 1 byte names the algorithm that wrote it, and with it
-- the schema; 8 bytes are the token of the newest grant; the rest is the
-- algorithm's own. Each algorithm is a module that gives these functions; those that
-- count get some of them from counter.lua:
--
--   fresh(rule)                   a key on which nothing was spent
--   read(rule, s)                 what s, the head of the value, holds; false for a form that it does not know
--   grants(rule, new)             what the limit `new` needs to know of the past: {at, count, at, count ...}, oldest first
--   slot(rule, now, before, cost) when cost permits behind `before` others go, if all go as early as possible
--   charge(rule, at, cost)        spends them, in memory
--   save(rule, now)               writes the ledger with its life
--   ends(rule)                    from when on nothing of it counts
--   back(rule, at, cost, worth, now)  takes a grant out again, in memory; false when there is nothing to write
--   free(rule, now)               permits to be had now, which is not before the newest grant
--   worth(rule)                   of the newest grant: what back needs to give as much as can be given, 0 for nothing
--
-- and, where it has numbers of its own or lives on other clocks,
--
--   numbers(rule)                 reads rule.more
--   covered(rule, now)            whether it can decide about now
--   lease, offer               see leases.lua

local numbers = require("lib/numbers")
local remember = require("limit/remember")
local min = math.min
local live = numbers.live
local NOBODY = remember.NOBODY

local NEVER = 9007199254740991 -- the year 2255: what is further away is told so, a reply holds no more
local HEAD, READ = 400, "399" -- bytes of a value that are read at first: all of it, but for long logs; their end as text, for numbers are slow to hand on

local KINDS = { s = "limit/sliding", f = "limit/fixed", c = "limit/calendar", g = "limit/gcra", p = "limit/step", m = "limit/smooth", w = "limit/warmup", k = "limit/leases" }

-- algorithm is that of a letter, nil of an unknown one. A script that meets it for the
-- first time makes it.
local function algorithm(letter)
  local file = KINDS[letter]
  return file and require(file)
end

-- a limit's numbers, which open completes with the state of a key
local function limit(letter, n, W, more, version)
  local rule = { letter = letter, n = tonumber(n), W = tonumber(W), more = more, version = tonumber(version), kind = algorithm(letter) }
  if rule.kind.numbers then rule.kind.numbers(rule) end
  return rule
end

-- open reads a key's ledger under the limit rule. What another algorithm wrote is
-- carried over, as if the limit had been changed right after the newest grant: all
-- that is known to be spent is spent again. Until the next grant nothing is
-- written, so `now` has no part in it: an instant that moved on with the clock
-- would never come. The second answer is a status when there is nothing to decide
-- with: 5 newer schema, 6 a calendar that does not cover now, 7 an older limit than
-- the ledger was written under, whose version is the third. A caller that has not
-- heard of a change yet would grant by the old limit, and rewrite the ledger in its
-- form.
local function open(key, rule, now)
  rule.key, rule.now, rule.token, rule.newest, rule.known = key, now, NOBODY, 0, false
  if rule.kind.covered and not rule.kind.covered(rule, now) then return nil, 6 end
  local s = redis.call("GETRANGE", key, "0", READ)
  if s == "" then
    rule.kind.fresh(rule)
    return rule
  end
  local letter = string.sub(s, 1, 1)
  local kind = algorithm(letter)
  if not kind then return nil, 5 end
  rule.token, rule.known = string.sub(s, 2, 9), true
  if letter == rule.letter then
    if not kind.read(rule, s) then return nil, 5 end
    rule.carried = rule.wrote ~= rule.version or rule.carried
    if rule.wrote > rule.version then return nil, 7, rule.wrote end
    return rule
  end
  local old = { key = key, letter = letter, kind = kind }
  if not kind.read(old, s) then return nil, 5 end
  if old.wrote > rule.version then return nil, 7, old.wrote end
  rule.carried = true
  local grants = kind.grants(old, rule)
  rule.kind.fresh(rule)
  if rule.kind.lease then return rule end
  for i = 1, #grants, 2 do rule.kind.charge(rule, grants[i], grants[i + 1]) end
  if rule.taken then rule.newest, rule.changed = old.newest, old.newest end
  return rule
end

-- slot is the instant at which cost permits go behind `before` others
local function slot(rule, now, before, cost)
  return min(rule.kind.slot(rule, now, before, cost), NEVER)
end

-- outlive keeps a ledger that was written under another limit for as long as the
-- one in force counts with it. It may have been of a shorter window.
local function outlive(rule, now)
  if rule.carried and rule.newest > 0 then live(rule.key, rule.kind.ends(rule) - now) end
end

-- spend makes a grant at the instant that slot gave. The key's life is never
-- shortened: another process may still count with a longer window.
local function spend(rule, now, at, cost, token)
  rule.kind.charge(rule, at, cost)
  rule.newest, rule.token = at, token
  rule.kind.save(rule, now)
  rule.known = true
end

-- free is how many permits are to be had right now
local function free(rule, now)
  return rule.newest > now and not rule.kind.lease and 0 or rule.kind.free(rule, now)
end

return {
  HEAD = HEAD, NEVER = NEVER, algorithm = algorithm, free = free, limit = limit, open = open, outlive = outlive, slot = slot, spend = spend,
}
