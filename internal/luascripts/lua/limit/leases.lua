-- leases.lua: `concurrent n lease W`, at most n at once. What counts are the
-- leases that have not ended: the members of `tokens`, score = end of the lease.
-- Nothing counts them up or down, so nothing can be lost or doubled.
--
-- own  newest, fence, n and W, doubles, after the header of every ledger
--
-- fence  grows from lease to lease, also when the ledger has expired meanwhile

local numbers = require("lib/numbers")
local binary = require("lib/binary")
local ledger = require("limit/ledger")
local line = require("limit/line")
local floor, max, min = math.floor, math.max, math.min
local int, live = numbers.int, numbers.live
local pack, unpack_at = binary.pack, binary.unpack_at
local NEVER, earliest = ledger.NEVER, ledger.earliest
local OFFERED_FOR, PROMISE_OFFSET, at_rank, promised = line.OFFERED_FOR, line.PROMISE_OFFSET, line.at_rank, line.promised
local line_ends, tell = line.line_ends, line.tell

local OFFERS = 16 -- how many a call tells at most that a lease is free
local AHEAD = 32 -- how many behind them, of n at most, come by themselves when the leases end
local SOON = 40000 -- a lease that ends so soon is as good as free: whoever is told now comes for its end

local function live_leases(ledger, now)
  return redis.call("ZCOUNT", ledger.tokens, "(" .. int(now), "+inf")
end

-- ends_from is so many leases that have not ended, with their ends, from a rank on
local function ends_from(ledger, index, many)
  return redis.call("ZRANGEBYSCORE", ledger.tokens, "(" .. int(ledger.now), "+inf", "WITHSCORES", "LIMIT", index, many)
end

-- tell_ahead tells the jobs behind the free leases when they come if nobody gives one back. A notice can be lost
-- with the process that received it, which may have held all leases: so jobs know in advance when these end. Nothing is to be
-- done while job 2 * many behind them has been promised the instant of job `many`, or an earlier one. Else 3 * many jobs
-- are told, so that this is due again after `many` more leases and not after each. From the second `many` on they are
-- told the instant of job `many`
local function tell_ahead(rule, from, free, promoted)
  local many = min(rule.n, AHEAD)
  local last = min(free + 2 * many, line_ends(rule) - rule.first_rank) - 1
  if last < free then return end
  local edge = min(last, free + many - 1)
  local at_edge = earliest(rule, from, edge, 1)
  if (promised(rule, (at_rank(rule.line, rule.first_rank + last))) or 0) <= at_edge + 1000 then return end
  local members = redis.call("ZRANGE", rule.line, rule.first_rank + free, min(rule.end_rank, rule.first_rank + free + 3 * many) - 1)
  local names, sooner = {}, {}
  for i, m in ipairs(members) do names[i] = "@" .. m end
  local before = redis.call("ZMSCORE", rule.line, unpack(names))
  local ledger = rule.ledger
  ledger.ends_at = max(0, ledger.live - rule.n + free) -- earliest needs them for each
  ledger.ends = ends_from(ledger, ledger.ends_at, many)
  for i, m in ipairs(members) do
    local rank = free + i - 1
    local at = rank < edge and earliest(rule, from, rank, 1) or at_edge
    if before[i] and before[i] - PROMISE_OFFSET > at + 1000 then
      sooner[#sooner + 1] = int(at + PROMISE_OFFSET)
      sooner[#sooner + 1] = names[i]
      tell(rule, at, m, promoted)
    end
  end
  ledger.ends = nil
  redis.call("ZADD", rule.line, unpack(sooner))
end

-- tell_next tells the first behind the free leases when one ends that was not renewed
-- in time. Its holder has died, so the end stays where it is; and those whom tell_ahead
-- told it may have gone before, for leases that were given back
local function tell_next(rule, from, free, promoted)
  if free >= line_ends(rule) - rule.first_rank then return end
  local at = earliest(rule, from, free, 1)
  if at > rule.ledger.now + rule.W / 2 then return end
  local m = at_rank(rule.line, rule.first_rank + free)
  if (promised(rule, m) or 0) <= at + 1000 then return end
  redis.call("ZADD", rule.line, int(at + PROMISE_OFFSET), "@" .. m)
  tell(rule, at, m, promoted)
end

return {
  fresh = function()
    return { key = nil, limit = nil, tokens = nil, token = numbers.NO_TOKEN, remembered = 0, known = false, newest = 0, fence = 0, now = 0, live = nil,
      ends = nil, ends_at = 0 }
  end,

  read = function(kind, _, s)
    if #s ~= 48 then return nil end
    local ledger = kind.fresh()
    ledger.token, ledger.known = string.sub(s, 2, 9), true
    ledger.newest, ledger.fence = unpack_at(">dd", s, 17)
    return ledger.fence >= 0 and ledger.fence <= NEVER and ledger or nil
  end,

  value = function(limit, ledger) return pack(">dddd", ledger.newest, ledger.fence, limit.n, limit.W) end,

  grants = function() return {} end,

  spent = function(_, ledger, _, most)
    local list, ends = {}, ends_from(ledger, 0, most)
    for i = #ends, 2, -2 do
      list[#list + 1] = tonumber(ends[i])
      list[#list + 1] = 1
    end
    return list
  end,

  -- n places: those that are free, and the others in the order in which their
  -- leases end; whoever is ahead takes them one by one, for a lease each. The ends of
  -- leases that are renewed move: whoever waits for one that is given back early is
  -- told so
  earliest = function(limit, ledger, now, before)
    local rounds = floor(before / limit.n)
    local index = (ledger.live or live_leases(ledger, ledger.now)) - limit.n + before - rounds * limit.n
    if index < 0 then return now + rounds * limit.W end
    local known = ledger.ends and ledger.ends[2 * (index - ledger.ends_at) + 2]
    return max(now, tonumber(known or ends_from(ledger, index, 1)[2])) + rounds * limit.W
  end,

  charge = function(_, ledger, at)
    ledger.newest, ledger.fence = at, max(ledger.fence + 1, ledger.now)
  end,

  -- anew is a fence for a holder whose first answer was lost: nobody remembers those
  -- before the newest. A full Redis must not keep it from its lease
  anew = function(ledger)
    local fence = max(ledger.fence + 1, ledger.now)
    if ledger.newest > 0 then
      ledger.fence = fence
      if ledger.known and not ledger.dirty then redis.pcall("SETRANGE", ledger.key, "24", pack(">d", fence)) end
    end
    return fence
  end,

  -- moves says whether a lease can be made anew: as it can be renewed, see renew.lua
  moves = function(rule, _, token)
    local newest, ends = rule.ledger.newest, tonumber(redis.call("ZSCORE", rule.tokens, token) or "")
    return ends and ends > rule.now and not (newest > rule.now and ends <= newest)
  end,

  ends = function(limit, ledger) return ledger.newest + limit.W end,
  back = function() return false end,
  free = function(limit, ledger, now) return max(0, limit.n - live_leases(ledger, now)) end,

  -- lease begins one, and clears away some that have ended
  lease = function(rule, at, now, token)
    redis.call("ZADD", rule.tokens, int(at + rule.W), token)
    local old = redis.call("ZRANGEBYSCORE", rule.tokens, "(0", int(now), "LIMIT", 0, 20)
    if #old > 0 then redis.call("ZREM", rule.tokens, unpack(old)) end
    live(rule.tokens, at + rule.W - now)
  end,

  -- offer tells the first who wait that a lease is free for them, and those behind when one
  -- ends. A lease counts as free when at most a tenth of it is left, and at most SOON
  offer = function(rule, now, promoted)
    local ledger = rule.ledger
    local free = rule.closed == 0 and max(0, rule.n - live_leases(ledger, now + min(SOON, floor(rule.W / 10)))) or 0
    local most = min(free, OFFERS, line_ends(rule) - rule.first_rank)
    if most > 0 then
      for _, m in ipairs(redis.call("ZRANGE", rule.line, rule.first_rank, rule.first_rank + most - 1)) do
        if (promised(rule, m) or 0) > now + OFFERED_FOR then redis.call("ZADD", rule.line, int(now + OFFERED_FOR + PROMISE_OFFSET), "@" .. m) end
        tell(rule, now, m, promoted) -- a job that was told before is told again: the notice may have been lost
      end
    end
    ledger.live = live_leases(ledger, now)
    tell_ahead(rule, max(now, rule.closed), free, promoted)
    tell_next(rule, max(now, rule.closed), free, promoted)
    ledger.live = nil
  end,
}
