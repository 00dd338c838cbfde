-- ledger.lua: what was spent on a key, in the form of its limit's algorithm.
--
-- A ledger is a string: 1 byte names the algorithm that wrote it, and with it
-- the schema; 8 bytes are the token of the newest grant; the rest is the
-- algorithm's own. Each algorithm is a part of its own that puts a function
-- into `kinds`, which makes its functions when a script needs them; those that keep a
-- tally do so in kinds.tallied, which script.go puts around them:
--
--   fresh(L)                   a key on which nothing was spent
--   read(L, s)                 what s, the head of the value, holds; false for a form that it does not know
--   grants(L, new)             what the limit `new` needs to know of the past: {at, count, at, count ...}, oldest first
--   slot(L, now, before, cost) when cost permits behind `before` others go, if all go as early as possible
--   charge(L, at, cost)        spends them, in memory
--   save(L, now)               writes the ledger with its life
--   ends(L)                    from when on nothing of it counts
--   back(L, at, cost, worth, now)  takes a grant out again, in memory; false when there is nothing to write
--   free(L, now)               permits to be had now, which is not before the newest grant
--   worth(L)                   of the newest grant: what back needs to give as much as can be given, 0 for nothing
--
-- and, where it has numbers of its own or lives on other clocks,
--
--   numbers(L)                 reads L.more
--   covered(L, now)            whether it can decide about now
--   lease, offer               see leases.lua

local NEVER = 9007199254740991 -- the year 2255: what is further away is told so, a reply holds no more
local HEAD, READ = 400, "399" -- bytes of a value that are read at first: all of it, but for long logs; their end as text, for numbers are slow to hand on

local kinds = {}

-- algorithm is that of a letter, nil of an unknown one
local function algorithm(letter)
  if not kinds[letter] and kinds.tallied then
    kinds.tallied()
    kinds.tallied = nil
  end
  if type(kinds[letter]) == "function" then kinds[letter] = kinds[letter]() end
  return kinds[letter]
end

-- a limit's numbers, which open completes with the state of a key
local function limit(letter, n, W, more, version)
  local L = { letter = letter, n = tonumber(n), W = tonumber(W), more = more, version = tonumber(version), kind = algorithm(letter) }
  if L.kind.numbers then L.kind.numbers(L) end
  return L
end

-- open reads a key's ledger under the limit L. What another algorithm wrote is
-- carried over, as if the limit had been changed right after the newest grant: all
-- that is known to be spent is spent again. Until the next grant nothing is
-- written, so `now` has no part in it: an instant that moved on with the clock
-- would never come. The second answer is a status when there is nothing to decide
-- with: 5 newer schema, 6 a calendar that does not cover now, 7 an older limit than
-- the ledger was written under, whose version is the third. A caller that has not
-- heard of a change yet would grant by the old limit, and rewrite the ledger in its
-- form.
local function open(key, L, now)
  L.key, L.now, L.token, L.newest, L.known = key, now, NOBODY, 0, false
  if L.kind.covered and not L.kind.covered(L, now) then return nil, 6 end
  local s = redis.call("GETRANGE", key, "0", READ)
  if s == "" then
    L.kind.fresh(L)
    return L
  end
  local letter = string.sub(s, 1, 1)
  local kind = algorithm(letter)
  if not kind then return nil, 5 end
  L.token, L.known = string.sub(s, 2, 9), true
  if letter == L.letter then
    if not kind.read(L, s) then return nil, 5 end
    L.carried = L.wrote ~= L.version or L.carried
    if L.wrote > L.version then return nil, 7, L.wrote end
    return L
  end
  local old = { key = key, letter = letter, kind = kind }
  if not kind.read(old, s) then return nil, 5 end
  if old.wrote > L.version then return nil, 7, old.wrote end
  L.carried = true
  local grants = kind.grants(old, L)
  L.kind.fresh(L)
  if L.kind.lease then return L end
  for i = 1, #grants, 2 do L.kind.charge(L, grants[i], grants[i + 1]) end
  if L.taken then L.newest, L.changed = old.newest, old.newest end
  return L
end

-- slot is the instant at which cost permits go behind `before` others
local function slot(L, now, before, cost)
  return min(L.kind.slot(L, now, before, cost), NEVER)
end

-- outlive keeps a ledger that was written under another limit for as long as the
-- one in force counts with it. It may have been of a shorter window.
local function outlive(L, now)
  if L.carried and L.newest > 0 then live(L.key, L.kind.ends(L) - now) end
end

-- spend makes a grant at the instant that slot gave. The key's life is never
-- shortened: another process may still count with a longer window.
local function spend(L, now, at, cost, token)
  L.kind.charge(L, at, cost)
  L.newest, L.token = at, token
  L.kind.save(L, now)
  L.known = true
end

-- free is how many permits are to be had right now
local function free(L, now)
  return L.newest > now and not L.kind.lease and 0 or L.kind.free(L, now)
end
