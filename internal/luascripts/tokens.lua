-- tokens.lua: which attempt holds which grant.
--
-- See remember.lua. A token that was withdrawn has its time as a negative score.

-- holds is the instant of the token's grant, a negative number when the token
-- was withdrawn, nil when it is new. A lease is held until it ends.
local function holds(L, token)
  if L.token == token and not L.kind.lease then return L.newest end
  local at = tonumber(redis.call("ZSCORE", L.tokens, token) or "")
  if not L.kind.lease or not at or at < 0 then return at end
  return at > L.now and L.now or nil
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
