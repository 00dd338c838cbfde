-- tokens.lua: which attempt holds which grant.
--
-- The ledger's header names the newest grant's token. When the next grant takes
-- its place it moves to a sorted set of its own (score = instant of the grant),
-- as long as the grant counts or a copy of its call may still arrive; where the
-- window is shorter than that it is written there at once, because the ledger
-- goes with its window. A token that was withdrawn has its time as a negative
-- score.

-- holds is the instant of the token's grant, a negative number when the token
-- was withdrawn, nil when it is new. A lease is held until it ends.
local function holds(L, token)
  if L.token == token and not L.kind.lease then return L.newest end
  local at = tonumber(redis.call("ZSCORE", L.tokens, token) or "")
  if not L.kind.lease or not at or at < 0 then return at end
  return at > L.now and L.now or nil
end

local function forget_old(tokens, lowest, highest, many)
  local old = redis.call("ZRANGEBYSCORE", tokens, lowest, highest, "LIMIT", 0, many or 20)
  if #old > 0 then redis.call("ZREM", tokens, unpack(old)) end
end

-- remember keeps tokens, {score, token ...}, of which the last is of an instant
local function remember(tokens, list, at, W, now)
  if #list == 0 or redis.call("ZADD", tokens, unpack(list)) == 0 then return end -- it was there
  local keep = max(W, COPY)
  forget_old(tokens, "0", int(now - keep), 20 + #list) -- more than are new
  live(tokens, at + keep - now)
end

-- from_header is the list of the token that the newest grant takes out of the header
local function from_header(L, now)
  if L.token == NOBODY or L.newest + max(L.W, COPY) <= now then return {} end
  return { int(L.newest), L.token }
end

-- grant spends permits for a token
local function grant(L, now, at, token)
  local before_at, list = L.newest, from_header(L, now)
  spend(L, now, at, L.want, token)
  if L.kind.lease then return L.kind.lease(L, at, now, token) end
  remember(L.tokens, list, before_at, L.W, now)
  if L.W < COPY then remember(L.tokens, { int(at), token }, at, L.W, now) end
end

-- withdraw makes the token refuse from now on
local function withdraw(tokens, token, now)
  redis.call("ZADD", tokens, int(-now), token)
  forget_old(tokens, "(" .. int(COPY - now), "(0")
  live(tokens, COPY)
end
