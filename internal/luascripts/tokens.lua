-- tokens.lua: which attempt holds which grant.
--
-- tokens  sorted set, see remember.lua; of leases, their ends, see leases.lua. A token that was withdrawn has a
--         negative score: the time of that or, when its grant counts for longer, COPY before its end. A bill has
--         the instant of what was paid more, BILLS lower and negative, as long as that counts
--
-- A grant whose token is forgotten is found by its instant, which its holder tells: once,
-- for then its token is withdrawn for as long as the holder may tell it.

local BILLS = 4503599627370496

-- holds is the instant of the token's grant, a negative number when the token
-- was withdrawn, nil when it is new. A lease is held until it ends.
local function holds(L, token)
  if L.token == token and not L.kind.lease then return L.newest end
  local at = tonumber(redis.call("ZSCORE", L.tokens, token) or "")
  if not at then return nil end
  if at < -BILLS then return -at - BILLS end
  if not L.kind.lease or at < 0 then return at end
  return at > L.now and L.now or nil
end

-- read_told reads what the holder of a grant tells: of each part two arguments from
-- args[from] on, its instant and until when it may be found by that
local function read_told(P, args, from)
  for i, L in ipairs(P) do
    L.told_at, L.told_until = tonumber(args[from + 2 * i - 2]), tonumber(args[from + 2 * i - 1])
  end
end

-- granted is the instant of the grant that a token's holder corrects: of one whose
-- token is forgotten, what was told, if there may have been one then
local function granted(L, token)
  local held = holds(L, token)
  if held or L.kind.lease or not L.known or L.told_at == 0 then return held end
  if L.told_at <= L.newest and L.told_at + COPY <= L.now and L.now < L.told_until then return L.told_at end
end

-- from_header is the list of the token that the newest grant takes out of the header
local function from_header(L, now)
  if L.token == NOBODY or L.newest + COPY <= now then return {} end
  return { int(L.newest), L.token }
end

-- grant spends permits for a token
local function grant(L, now, at, token)
  local last_at, list = L.newest, from_header(L, now)
  spend(L, now, at, L.want, token)
  if L.kind.lease then return L.kind.lease(L, at, now, token) end
  if L.W < COPY then
    list[#list + 1] = int(at)
    list[#list + 1] = token
    last_at = at
  end
  remember(L.tokens, list, last_at, now)
end

-- withdraw makes the token refuse from now on, and find nothing by what is told; held is
-- what it held, below 0 when it refused already: it does not for less long than it would
local function withdraw(L, token, held, now)
  local since = max(now, L.told_until - COPY, -(held or 0))
  redis.call("ZADD", L.tokens, int(-since), token)
  forget_old(L.tokens, "(" .. int(COPY - now), "(0")
  live(L.tokens, since + COPY - now)
end

-- bill_of keeps a bill, so that it is done once, and what it paid at an instant is found
local function bill_of(L, bill, at, now)
  local keep = max(L.W, COPY)
  redis.call("ZADD", L.tokens, int(-BILLS - at), bill)
  forget_old(L.tokens, int(keep - now - BILLS), "(" .. int(-BILLS))
  live(L.tokens, at + keep - now)
end

-- lessen gives back some of what a token was granted. When that was all of the newest
-- grant the header names an instant before it: its token goes where it has its own.
local function lessen(L, now, held, token)
  local newest = L.token == token and L.newest
  give_back(L, now, held, -L.want, L.told_worth)
  if not newest or L.newest == newest then return end
  L.token = NOBODY
  redis.call("SETRANGE", L.key, 1, NOBODY)
  if newest + COPY > now then remember(L.tokens, { int(newest), token }, newest, now) end
end
