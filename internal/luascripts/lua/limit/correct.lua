-- correct.lua: what a grant's holder gives back, or pays more.
--
-- A grant whose token is forgotten is found by its instant, which its holder tells: once,
-- for then its token is withdrawn for as long as the holder may tell it.

local numbers = require("lib/numbers")
local remember = require("limit/remember")
local tokens = require("limit/tokens")
local max = math.max
local COPY, int, live = numbers.COPY, numbers.int, numbers.live
local NOBODY, forget_old, remember = remember.NOBODY, remember.forget_old, remember.remember
local BILLS, holds = tokens.BILLS, tokens.holds

-- give_back takes permits of a grant out again. What went before the limit was
-- changed stays spent: how much of it still counts is not known. The same goes for
-- what was nothing under this limit, as a lease is, which is known by its end, and for
-- what another ledger knew that is lost.
local function give_back(rule, now, at, cost, worth)
  if not rule.known or at > rule.newest or rule.taken == 0 or (rule.changed and at <= rule.changed) then return end
  if rule.kind.back(rule, at, cost, worth, max(now, rule.newest)) then rule.kind.save(rule, now) end
end

-- unspend takes a grant out again, and its token: a neighbour of the same instant keeps its own
local function unspend(rule, now, at, cost, token, worth)
  if rule.known and rule.token == token then
    rule.token = NOBODY
    redis.call("SETRANGE", rule.key, 1, NOBODY)
  end
  give_back(rule, now, at, cost, worth)
end

-- read_told reads what the holder of a grant tells: of each part two arguments from
-- args[from] on, its instant and until when it may be found by that
local function read_told(rules, args, from)
  for i, rule in ipairs(rules) do
    rule.told_at, rule.told_until = tonumber(args[from + 2 * i - 2]), tonumber(args[from + 2 * i - 1])
  end
end

-- granted is the instant of the grant that a token's holder corrects: of one whose
-- token is forgotten, what was told, if there may have been one then
local function granted(rule, token)
  local held = holds(rule, token)
  if held or rule.kind.lease or not rule.known or rule.told_at == 0 then return held end
  if rule.told_at <= rule.newest and rule.told_at + COPY <= rule.now and rule.now < rule.told_until then return rule.told_at end
end

-- withdraw makes the token refuse from now on, and find nothing by what is told; held is
-- what it held, below 0 when it refused already: it does not for less long than it would
local function withdraw(rule, token, held, now)
  local since = max(now, rule.told_until - COPY, -(held or 0))
  redis.call("ZADD", rule.tokens, int(-since), token)
  forget_old(rule.tokens, "(" .. int(COPY - now), "(0")
  live(rule.tokens, since + COPY - now)
end

-- bill_of keeps a bill, so that it is done once, and what it paid at an instant is found
local function bill_of(rule, bill, at, now)
  local keep = max(rule.W, COPY)
  redis.call("ZADD", rule.tokens, int(-BILLS - at), bill)
  forget_old(rule.tokens, int(keep - now - BILLS), "(" .. int(-BILLS))
  live(rule.tokens, at + keep - now)
end

-- lessen gives back some of what a token was granted. When that was all of the newest
-- grant the header names an instant before it: its token goes where it has its own.
local function lessen(rule, now, held, token)
  local newest = rule.token == token and rule.newest
  give_back(rule, now, held, -rule.want, rule.told_worth)
  if not newest or rule.newest == newest then return end
  rule.token = NOBODY
  redis.call("SETRANGE", rule.key, 1, NOBODY)
  if newest + COPY > now then remember(rule.tokens, { int(newest), token }, newest, now) end
end

return {
  bill_of = bill_of, granted = granted, lessen = lessen, read_told = read_told, unspend = unspend, withdraw = withdraw,
}
