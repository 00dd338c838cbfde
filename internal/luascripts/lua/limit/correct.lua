-- correct.lua: what a grant's holder gives back, or pays more.
--
-- A grant whose token is forgotten is found by its instant, which its holder tells: once,
-- for then its token is withdrawn for as long as the holder may tell it.

-- give_back takes permits of a grant out again. What went before the limit was
-- changed stays spent: how much of it still counts is not known. The same goes for
-- what was nothing under this limit, as a lease is, which is known by its end, and for
-- what another ledger knew that is lost.
local function give_back(L, now, at, cost, worth)
  if not L.known or at > L.newest or L.taken == 0 or (L.changed and at <= L.changed) then return end
  if L.kind.back(L, at, cost, worth, max(now, L.newest)) then L.kind.save(L, now) end
end

-- unspend takes a grant out again, and its token: a neighbour of the same instant keeps its own
local function unspend(L, now, at, cost, token, worth)
  if L.known and L.token == token then
    L.token = NOBODY
    redis.call("SETRANGE", L.key, 1, NOBODY)
  end
  give_back(L, now, at, cost, worth)
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
