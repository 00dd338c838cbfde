-- tokens.lua: which ask has which grant, and what its holder gives back or pays more.
--
-- The ledger's header names the newest grant's token. When the next grant takes
-- its place it moves to a sorted set of its own, for as long as a copy of its call may still
-- arrive, however long the grant counts: who corrects it later tells its instant. Where the
-- window is shorter than that it is written there at once, because the ledger goes with its
-- window, and where grants follow each other, so that one command looks it up and writes it. Only
-- the first rule of a call remembers its token: what corrects a grant brings the same rules.
--
-- remembered  where the token in the header is remembered besides: 0 NOWHERE, so that it moves to the sorted set with the next grant;
--             1 BY_FIRST, by the first rule of its call; 2 IN_SET, in the sorted set
-- tokens      sorted set of tokens. The score says what became of each:
--           the instant of its grant; of a lease the instant at which it ends, see leases.lua
--           -t                        it was withdrawn at t; or t is RESENT_WITHIN before its grant stops to count, if that is later
--           -ADJUSTMENT_OFFSET - instant    an adjustment, with the instant of what was paid more, as long as that counts
--
-- Of a ledger these fields belong to this file:
--   new_tokens  the tokens that put adds to the set: {score, token, score, token ...}
--   set_newest  the newest grant whose token the set had before these, 0 when that is not known
--   granted     in a script of several calls: the instants of its grants by token; its `scores` are what the set has of all its calls
--   old         the tokens that put takes out of the set: no copies of their calls may arrive any more
--   noted       true when the set has the token of the grant that is about to be made
--
-- A token whose copy may not arrive any more counts as forgotten, whether it is still there or not:
-- so it does not matter when old ones are cleared, and not each call does it.
--
-- A grant whose token is forgotten is found by its instant, which its holder tells: once,
-- for then its token is withdrawn for as long as the holder may tell it.

local numbers = require("lib/numbers")
local ledger = require("limit/ledger")
local floor, max, min = math.floor, math.max, math.min
local RESENT_WITHIN, NO_TOKEN, int, live = numbers.RESENT_WITHIN, numbers.NO_TOKEN, numbers.int, numbers.live
local earliest, write = ledger.earliest, ledger.write

local call, byte = redis.call, string.byte
local ADJUSTMENT_OFFSET = 4503599627370496
local NOWHERE, BY_FIRST, IN_SET = 0, 1, 2 -- of `remembered`
local STRETCH = 100000 -- the set gets a new life once in each, and lives so much longer than it must

-- held_at is the instant of the token's grant, a negative number when the token
-- was withdrawn, nil when it is new. A lease is held until it ends. Its instant is that of its last renewal, or of its grant:
-- its holder trusts it from then on, and a later instant would outlast the lease.
local function held_at(rule, token)
  local of, lease = rule.ledger, rule.kind.lease
  if of.token == token and not lease then return of.newest end
  local known = of.granted
  if known and known[token] then return known[token] end
  if rule.no_tokens then return nil end
  local at
  if not rule.askers or lease then
    at = tonumber(call("ZSCORE", rule.tokens, token) or "")
  else -- the script asks once for all its calls
    if not known.scores then
      known.scores = {}
      local list = rule.askers[rule.tokens]
      for i, score in ipairs(call("ZMSCORE", rule.tokens, unpack(list))) do known.scores[list[i]] = tonumber(score or "") end
    end
    at = known.scores[token]
  end
  if not at then return nil end
  if at < -ADJUSTMENT_OFFSET then return -at - ADJUSTMENT_OFFSET end
  if at <= 0 then return at end
  if lease then -- no lease begins after the newest one, or now. Its end less a length that was made shorter meanwhile may lie after that
    return at > rule.now and min(at - rule.W, max(rule.now, of.newest)) or nil
  end
  if at + RESENT_WITHIN > rule.now then return at end
  of.old = of.old or {} -- a new grant of it is remembered with a new instant
  of.old[#of.old + 1] = token
end

local function forget_old(tokens, lowest, highest, many)
  local old = call("ZRANGEBYSCORE", tokens, lowest, highest, "LIMIT", "0", many or 20)
  if #old > 0 then call("ZREM", tokens, unpack(old)) end
end

-- remember keeps tokens, {score, token ...}, of grants up to `last`, and says whether one was new. One that is known keeps its
-- score: that of an adjustment is negative. `before` is the newest grant that the set had, 0 when that is not known
local function remember(tokens, list, last, before, now)
  if call("ZADD", tokens, "NX", unpack(list)) == 0 then return false end
  local again = floor(before / STRETCH) == floor(last / STRETCH)
  if not again or byte(list[2], 8) < 32 then -- one call in eight, which clears more than the eight add
    forget_old(tokens, "0", int(now - RESENT_WITHIN), 64 + 8 * #list)
  end
  if not again then live(tokens, last + RESENT_WITHIN + STRETCH - now) end
  return true
end

-- at_once says that a token is written to the set with its grant
local function at_once(rule, now)
  local of = rule.ledger
  return rule.index == 1 and (rule.W < RESENT_WITHIN or of.newest + RESENT_WITHIN > now and of.token ~= NO_TOKEN)
end

-- note looks a token up that is about to be granted now, and remembers it, by one command: 1 when it is new, 0 when it is not.
-- It answers nil where only held_at can say that
local function note(rule, token, now)
  local of = rule.ledger
  if of.remembered ~= IN_SET or rule.no_tokens or not at_once(rule, now) then return nil end
  of.noted = of.token ~= token and remember(of.tokens, { int(now), token }, now, of.newest, now)
  return of.noted and 1 or 0
end

-- spend makes a grant of a rule, which put writes
local function spend(rule, now, at, token)
  local of = rule.ledger
  local list, kind, newest, held = of.new_tokens, rule.kind, of.newest, of.token
  if not kind.lease then
    local first, before = at_once(rule, now), newest + RESENT_WITHIN > now and held ~= NO_TOKEN and of.remembered == NOWHERE
    if not list then of.set_newest = of.remembered == IN_SET and newest or 0 end
    if of.granted then
      if before then of.granted[held] = of.granted.scores and of.granted.scores[held] or newest end
      of.granted[token] = at
    end
    if of.noted then
      of.noted = nil
    elseif before and first and not list then -- at once: a table that grows is slow
      of.new_tokens = { int(newest), held, int(at), token }
    elseif before or first then
      list = list or {}
      of.new_tokens = list
      if before then list[#list + 1], list[#list + 2] = int(newest), held end
      if first then list[#list + 1], list[#list + 2] = int(at), token end
    end
    of.remembered = rule.index > 1 and BY_FIRST or first and IN_SET or NOWHERE
  end
  kind.charge(rule.limit, of, at, rule.want)
  of.newest, of.token, of.dirty = at, token, true
end

-- spend_all grants the first `many` of some tokens, each at now, and puts their replies at replies[i] and after it. The
-- caller fills in since when the first was possible
local function spend_all(rule, now, tokens, many, i, replies)
  local of, kind, want = rule.ledger, rule.kind, rule.want
  if many == 1 then
    spend(rule, now, now, tokens[1])
    if kind.worth then replies[i] = { 1, 0, now, now, 0, 0, 0, kind.worth(of), 0 } end
    return
  end
  if kind.worth then -- each has its own
    for m = 1, many do
      spend(rule, now, now, tokens[m])
      replies[i + m - 1] = { 1, 0, now, now, 0, 0, 0, kind.worth(of), 0 }
    end
    return
  end
  rule.want = want * many
  spend(rule, now, now, tokens[many])
  rule.want = want
  local list, at, n = of.new_tokens or {}, int(now), of.new_tokens and #of.new_tokens or 0
  for m = 1, many - 1 do
    list[n + 1], list[n + 2], n = at, tokens[m], n + 2
    replies[i + m] = 0
  end
  if of.remembered == NOWHERE then -- one grant after another would have written it
    list[n + 1], list[n + 2], of.remembered = at, tokens[many], IN_SET
  end
  of.new_tokens = list
end

-- put writes a ledger and its tokens
local function put(of, now)
  write(of, now)
  if of.old then
    call("ZREM", of.tokens, unpack(of.old))
    of.old = nil
  end
  local list = of.new_tokens
  if list then
    of.new_tokens = nil
    remember(of.tokens, list, of.newest, of.set_newest, now)
  end
end

-- grant spends permits for a token at once
local function grant(rule, now, at, token)
  spend(rule, now, at, token)
  put(rule.ledger, now)
end

-- is_known says that a ledger may know a grant of an instant
local function is_known(of, at) return of.known and at <= of.newest and of.taken ~= 0 and not (of.changed and at <= of.changed) end

local function leave_no_trace(of, cost, worth)
  if worth ~= 0 and worth == of.taken then of.taken = of.taken - cost end
end

-- give_back takes permits of a grant out again. What went before the limit was
-- changed stays spent: how much of it still counts is not known. The same goes for
-- what was nothing under this limit, as a lease is, which is known by its end, and for
-- what another ledger knew that is lost. A grant that is given back `whole`, with no later one, leaves no trace for those before
-- it. One that got smaller does: it may get smaller once more, by the same worth, which no later grant may have.
local function give_back(rule, now, at, cost, worth, whole)
  local of = rule.ledger
  if not is_known(of, at) or not rule.kind.back(rule.limit, of, at, cost, worth, max(now, of.newest)) then return end
  if whole then leave_no_trace(of, cost, worth) end
  write(of, now)
end

-- forget takes the token of the newest grant out of the header
local function forget(rule)
  rule.ledger.token = NO_TOKEN
  call("SETRANGE", rule.key, 1, NO_TOKEN)
end

-- unspend takes a grant out again, and its token: a neighbour of the same instant keeps its own
local function unspend(rule, now, at, cost, token, worth)
  if rule.ledger.known and rule.ledger.token == token then forget(rule) end
  give_back(rule, now, at, cost, worth, true)
end

-- admits_anew says whether a rule would admit a grant of the instant `at`, 0 when it is not known, now instead. What it takes out of a ledger
-- for that is not written
local function admits_anew(rule, now, at, token)
  local of, kind = rule.ledger, rule.kind
  local known = at > 0 and is_known(of, at)
  if kind.moves then return kind.moves(rule, known and at or 0, token) end
  if known and kind.back(rule.limit, of, at, rule.want, rule.stated_worth, max(now, of.newest)) then leave_no_trace(of, rule.want, rule.stated_worth) end
  return earliest(rule, now, 0, rule.want) <= now
end

-- take_out takes a grant out that admits_anew admits, so that spend makes it again
local function take_out(rule, now, at, token)
  local of = rule.ledger
  if rule.index == 1 then call("ZREM", rule.tokens, token) end -- frees first: a full Redis does not refuse the rest then
  if of.token == token or of.remembered == IN_SET then of.remembered = NOWHERE end -- the set may be gone now: the next token gives it a life
  if rule.kind.moves and at > 0 then
    unspend(rule, now, at, rule.want, token, rule.stated_worth)
  elseif of.token == token then
    of.token = NO_TOKEN
  end
end

-- read_stated reads what the holder of a grant says about it: of each rule two arguments from
-- args[from] on, its instant and until when it may be found by that
local function read_stated(rules, args, from)
  for i, rule in ipairs(rules) do
    rule.stated_at, rule.stated_until = tonumber(args[2 * i + from - 2]), tonumber(args[2 * i + from - 1])
  end
end

-- granted is the instant of the grant of a token. Each rule looks the token up: the first one and leases remember it, the others
-- when it is in their header, or that of an adjustment. Else they take what the first rule found. When the token is forgotten, the
-- instant that the holder states counts, if there may have been a grant then
local function granted(rule, token, first)
  local of, held = rule.ledger, held_at(rule, token)
  if not held and rule.index > 1 and not rule.kind.lease then held = first end
  if held or rule.kind.lease or not of.known or rule.stated_at == 0 then return held end
  if rule.stated_at <= of.newest and rule.stated_at + RESENT_WITHIN <= rule.now and rule.now < rule.stated_until then return rule.stated_at end
end

-- withdraw makes a token refuse from now on, at least until `stated_until`: until then its holder may still state
-- the instant of the grant. `held` is what held_at answered. A token that refuses already does not refuse for less long
local function withdraw(rule, token, held, stated_until, now)
  local since = max(now, stated_until - RESENT_WITHIN, -(held or 0))
  call("ZADD", rule.tokens, int(-since), token)
  forget_old(rule.tokens, "(" .. int(RESENT_WITHIN - now), "(0")
  live(rule.tokens, since + RESENT_WITHIN + STRETCH - now) -- as remember, which may find it alone
end

-- keep_adjustment keeps an adjustment, so that it is done once, and what it paid at an instant is found
local function keep_adjustment(rule, adjustment, at, now)
  local keep = max(rule.limit.counts, RESENT_WITHIN)
  call("ZADD", rule.tokens, int(-ADJUSTMENT_OFFSET - at), adjustment)
  forget_old(rule.tokens, int(keep - now - ADJUSTMENT_OFFSET), "(" .. int(-ADJUSTMENT_OFFSET))
  live(rule.tokens, at + keep - now)
end

-- lessen gives back some of what a token was granted. When that was all of the newest grant, `newest` is an older instant
-- now. So the token leaves the header, and is remembered with its own instant.
local function lessen(rule, now, held, token)
  local of = rule.ledger
  local newest = of.token == token and of.newest
  give_back(rule, now, held, -rule.want, rule.stated_worth, false)
  if not newest or of.newest == newest then return end
  forget(rule)
  if newest + RESENT_WITHIN > now and of.remembered == NOWHERE then remember(of.tokens, { int(newest), token }, newest, 0, now) end
end

return {
  admits_anew = admits_anew, grant = grant, granted = granted, held_at = held_at, keep_adjustment = keep_adjustment, lessen = lessen, note = note,
  put = put, read_stated = read_stated, spend = spend, spend_all = spend_all, take_out = take_out, unspend = unspend, withdraw = withdraw,
}
