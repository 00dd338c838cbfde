-- tokens.lua: which attempt holds which grant.
--
-- tokens  sorted set, see remember.lua; of leases, their ends, see leases.lua. A token that was withdrawn has a
--         negative score: the time of that or, when its grant counts for longer, COPY before its end. A bill has
--         the instant of what was paid more, BILLS lower and negative, as long as that counts; see correct.lua

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
