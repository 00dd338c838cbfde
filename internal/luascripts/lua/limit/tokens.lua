-- tokens.lua: which attempt holds which grant.
--
-- tokens  sorted set, see remember.lua; of leases, their ends, see leases.lua. A token that was withdrawn has a
--         negative score: the time of that or, when its grant counts for longer, COPY before its end. A bill has
--         the instant of what was paid more, BILLS lower and negative, as long as that counts; see correct.lua

local numbers = require("lib/numbers")
local remember = require("limit/remember")
local ledger = require("limit/ledger")
local COPY, int = numbers.COPY, numbers.int
local NOBODY, remember = remember.NOBODY, remember.remember
local spend = ledger.spend

local BILLS = 4503599627370496

-- holds is the instant of the token's grant, a negative number when the token
-- was withdrawn, nil when it is new. A lease is held until it ends.
local function holds(rule, token)
  if rule.token == token and not rule.kind.lease then return rule.newest end
  local at = tonumber(redis.call("ZSCORE", rule.tokens, token) or "")
  if not at then return nil end
  if at < -BILLS then return -at - BILLS end
  if not rule.kind.lease or at < 0 then return at end
  return at > rule.now and rule.now or nil
end

-- from_header is the list of the token that the newest grant takes out of the header
local function from_header(rule, now)
  if rule.token == NOBODY or rule.newest + COPY <= now then return {} end
  return { int(rule.newest), rule.token }
end

-- grant spends permits for a token
local function grant(rule, now, at, token)
  local last_at, list = rule.newest, from_header(rule, now)
  spend(rule, now, at, rule.want, token)
  if rule.kind.lease then return rule.kind.lease(rule, at, now, token) end
  if rule.W < COPY then
    list[#list + 1] = int(at)
    list[#list + 1] = token
    last_at = at
  end
  remember(rule.tokens, list, last_at, now)
end

return {
  BILLS = BILLS, from_header = from_header, grant = grant, holds = holds,
}
