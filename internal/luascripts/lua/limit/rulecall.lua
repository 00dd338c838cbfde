-- rulecall.lua: the rules that one call decides together, each on its key,
-- narrowest first.
--
-- Of each rule a call has three keys (ledger, tokens, line), the turns of each after them when
-- the policy has several rules, and in a text nine fields, each with "|" after it:
--
--   kind n window_us more version  the limit, see ledger.lua
--   cost       permits wanted, 1 to what the limit can ever grant
--   group      counts up with each other key: rates of one group share theirs; a lease has the group of a rate on its key, or else
--              the last one + 1
--   closed_us  until when the rule is closed on all keys, 0 when it is not
--   worth      of a grant, as acquire.lua answered it; 0 when that is not known
--
-- In these files a `rule` is one rule of a call: a limit, a key and a cost. "The job" is that of the
-- call. Jobs ahead of it have smaller tickets. A rule's table has these fields, by the function that sets them:
--
--   rule_of    limit, kind, n, W    the limit, and what is asked often of it
--              index                which rule of the call it is, from 1
--              want, cost           the cost, as a number and as text
--              group, rule_closed, stated_worth    as in the text
--   set_keys   key, tokens, line, turns    the keys; key is that of the ledger
--              now                  Redis' clock
--              seen, askers         what the script knows already of all lines, and of all tokens
--              no_tokens            no grant has a token in `tokens`
--   set_job    member               the job as a member of the line, "cost:job"; "" when the call is nobody's
--   open_rule  ledger
--   open_line  closed               until when nothing goes, 0 when it is open
--              nobody               true when the line is empty: nobody waits or is parked, and nothing is noted
--              marked               true when something beside promises is noted of the line
--              mixed                true when costs differ
--              top                  the first of the line, as read
--   read_line  parked, first_rank, end_rank, first_unparked, front, front_promised, to_park    the line, see line.lua
--              first_turn_rank, end_turn_rank, first_turn, turn_front, turn_ticket, turn_promised, dead_turns, kept_to_drop    the turns, see line.lua
--              no_turns             true when the set of turns was read and is empty
--              in_line              the job's ticket in the line
--              in_kept              the ticket of its turn, by whatever policy
--              last_promise         the instant that it was promised last
--   park       missed               the jobs that were late and wait for a lease
--   find_ticket  ticket             the job's, in the line or among the turns
--              in_turns             true when it is among the turns
--   step_aside, leave_all  left_turn    true when it was among the turns, and does not hold up anybody there any more
--   count_ahead_of_job  waiting, turns_ahead    how many are ahead of the job
--              ahead                how many permits these want
--              costs, front_index   the costs of the first of them, and which of these is that of `front`
--              promised_turns       the first and the last turn that go before it: {instant, permits, instant, permits}
--   measure    by_ledger, by_turns  the first instants at which the rule admits the job
--              behind_front         true when the first job of the line goes before it
--   read_stated  stated_at, stated_until    what the holder of a grant says about it, see tokens.lua
--   cancel.lua   found              when the grant was made that is given back; 0 or less: it was withdrawn before; nil: no such grant is known
--   grant_anew   found              when the grant was made that is made anew; 0: no such grant is known
--
-- A rule's table is kept with the text that it was made of (see memo.lua). All calls with this text write to it, in this script and in later
-- ones. set_keys and set_job begin a call anew. What they do not reset is left over from the call before.

local memo = require("lib/memo")
local ledger = require("limit/ledger")
local tokens = require("limit/tokens")
local line = require("limit/line")
local read_since = require("lib/server").read_since
local ceil, max, min = math.ceil, math.max, math.min
local NEVER, limit_of, open, earliest = ledger.NEVER, ledger.limit_of, ledger.open, ledger.earliest
local put = tokens.put
local GRACE, is_parked = line.GRACE, line.is_parked
local charge_ahead, find_ticket, read_line, open_line, promote, count_ahead_of_job =
  line.charge_ahead, line.find_ticket, line.read_line, line.open_line, line.promote, line.count_ahead_of_job

local RULE = "^([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|()" -- and where the next begins

-- rule_of makes a rule of its limit and fields. Others are named only to make room: with more than 32 names Lua lays the table out
-- for 64, which is enough for all fields. Otherwise fields that come and go would have it laid out anew at each call
local function rule_of(limit, index, cost, group, closed_us, worth)
  return {
    limit = limit, kind = limit.kind, n = limit.n, W = limit.W, index = index,
    want = tonumber(cost), cost = cost, group = tonumber(group), rule_closed = tonumber(closed_us), stated_worth = tonumber(worth),
    key = nil, tokens = nil, line = nil, turns = nil, now = nil, seen = nil, askers = nil, no_tokens = nil, member = nil, ledger = nil, closed = nil,
    nobody = nil, marked = nil, mixed = nil, top = nil, parked = nil, first_rank = nil, end_rank = nil, front = nil, in_line = nil, ticket = nil,
    waiting = nil, turns_ahead = nil, ahead = nil, by_ledger = nil, by_turns = nil, behind_front = nil, no_turns = nil, in_turns = nil, missed = nil,
  }
end

-- read_rules makes the rules of a text, from a byte of it on
local function read_rules(text, start)
  local rules = {}
  while start <= #text do
    local letter, n, W, more, version, cost, group, closed_us, worth, next_at = string.match(text, RULE, start)
    rules[#rules + 1] = rule_of(limit_of(letter, n, W, more, version), #rules + 1, cost, group, closed_us, worth)
    start = next_at
  end
  return rules
end

local rules_of = memo(function(text)
  local rules, once = read_rules(text, 1), false
  for _, rule in ipairs(rules) do once = once or rule.stated_worth ~= 0 end
  return { rules = rules, once = once }
end)

-- set_keys gives a rule the keys after keys[k], and the turns
local function set_keys(rule, keys, k, turns, now)
  rule.key, rule.tokens, rule.line, rule.turns, rule.now = keys[k + 1], keys[k + 2], keys[k + 3], turns, now
  rule.ledger, rule.seen, rule.no_tokens, rule.askers = nil, nil, false, nil
end

-- set_job gives a rule the job of a call, and forgets what it knew of the line for the one before
local function set_job(rule, job)
  rule.member = job ~= "" and rule.cost .. ":" .. job or ""
  rule.ticket, rule.in_turns, rule.left_turn, rule.last_promise, rule.no_turns = nil, false, false, nil, false
  rule.waiting, rule.turns_ahead, rule.ahead, rule.promised_turns, rule.to_park, rule.missed = 0, 0, 0, nil, nil, nil
end

-- rule_on is a rule that a script asks about alone, with nobody's job
local function rule_on(key, tokens, line, limit, cost, closed_us, now)
  local rule = rule_of(limit, 1, cost, "1", closed_us, "0")
  set_keys(rule, { key, tokens, line }, 0, nil, now)
  set_job(rule, "")
  return rule
end

-- rules_at gives the rules of a text their keys, of which there are `many` after keys[k]
local function rules_at(text, keys, k, many, job, now)
  local rules = rules_of(text).rules
  local count = #rules
  for i, rule in ipairs(rules) do
    set_keys(rule, keys, k + 3 * (i - 1), many == 4 * count and keys[3 * count + k + i] or nil, now)
    set_job(rule, job)
  end
  return rules
end

-- open_rule gives a rule its ledger: one that the script has opened, if there are any
local function open_rule(rule, now, opened)
  local of = opened and opened[rule.key]
  if of and of.limit == rule.limit then
    rule.ledger = of
    return
  end
  if of and of.dirty then put(of, now) end -- under other numbers it is carried over
  local status, version = open(rule, now)
  if status or not opened then return status, version end
  rule.ledger.granted = of and of.granted or {}
  opened[rule.key] = rule.ledger
end

-- open_rules reads the ledgers. When one can't be decided about, it answers the
-- status, which rule, and the version of a newer limit.
local function open_rules(rules, now, opened)
  for i, rule in ipairs(rules) do
    local status, version = open_rule(rule, now, opened)
    if status then return status, i, version end
    open_line(rule, now)
  end
end

-- counts_until is until when a permit of a rule may count that was granted at an instant
local function counts_until(rule, at)
  local limit, kind = rule.limit, rule.kind
  if kind.covered then return kind.earliest(limit, { newest = at, used = limit.n }, at, 0, 1) end -- the next window of the calendar
  local permits = max(limit.n, limit.burst or 0)
  if kind.owes then permits = max(permits, (limit.burst or 0) + rule.want * kind.owes(limit)) end
  return at + limit.W * ceil(permits / limit.n)
end

-- hold_after_failover closes rules that a script only reads until what this server may have forgotten has stopped to count, as acquire.lua does. It
-- answers of each until when it is held: 0 for not, -1 when nobody knows it
local function hold_after_failover(rules, now)
  local since, held = read_since(now), {}
  for i, rule in ipairs(rules) do
    local open = since and counts_until(rule, since)
    held[i] = open and (open > now and open or 0) or -1
    rule.closed = max(rule.closed, held[i])
  end
  return held
end

-- measure finds when a rule admits the job if all ahead of it go as early as they can:
-- from then on it does, as long as nobody else comes. Turns ahead go when they were
-- promised, which may be later. A job that is refused is promised the later instant.
--
-- Where costs differ nobody goes before the first who waits: a smaller job would take what
-- that one waits for, again and again. So `behind_front` says that the job has a ticket and
-- the first goes before it: the job comes when that one is expected at the latest.
local function measure(rule, now)
  local b = max(now, rule.closed)
  local of, left, front_at = charge_ahead(rule, b)
  rule.by_ledger = min(rule.kind.earliest(rule.limit, of, b, left, rule.want), NEVER)
  rule.behind_front = rule.mixed and rule.ticket and front_at and front_at < rule.by_ledger
  if rule.behind_front then
    local expected = rule.front_promised or 0
    if expected <= now then expected = expected + GRACE end
    rule.by_ledger = max(rule.by_ledger, min(expected, NEVER))
  end
  rule.by_turns = rule.by_ledger
  for i = 1, rule.promised_turns and #rule.promised_turns or 0, 2 do
    if rule.promised_turns[i] > b then rule.by_turns = max(rule.by_turns, earliest(rule, rule.promised_turns[i], rule.promised_turns[i + 1], rule.want)) end
  end
end

-- promote_in_lines_left promotes the next job of each line that the call's job has left, and the first turn where it has left
-- its turn: that one was told to come after the job, which may have waited for another rule until far in the future
local function promote_in_lines_left(rules, waits_at, now)
  local promoted = {}
  for i, rule in ipairs(rules) do
    local left_line = i ~= waits_at and rule.ticket and not rule.in_turns and not is_parked(rule.ticket)
    if left_line or rule.left_turn then promote(rule, now, promoted, rule.left_turn) end
  end
  return promoted
end

-- joint is the first instant, not before `at`, at which all the rules first_rule..last_rule admit
-- the job, and the index of the rule that delays it until then: `delayed_by` when none of these does. Turns count only for
-- rules whose ledger admits it after `reach`.
local function joint(rules, first_rule, last_rule, at, delayed_by, reach)
  for i = first_rule, last_rule do
    if rules[i].by_ledger > at then at, delayed_by = rules[i].by_ledger, i end
  end
  for i = first_rule, last_rule do
    if rules[i].by_ledger > reach and rules[i].by_turns > at then at, delayed_by = rules[i].by_turns, i end
  end
  return at, delayed_by
end

-- last_of_group is the last rule that shares the key of rule i; of leases each is by itself
local function last_of_group(rules, i)
  local to = i
  while rules[to + 1] and rules[to + 1].group == rules[i].group and not rules[to + 1].kind.lease do to = to + 1 end
  return to
end

-- find_and_measure finds for each rule the place of the job, the jobs ahead of it, and the instant at which the rule admits it
local function find_and_measure(rules, now)
  for _, rule in ipairs(rules) do
    read_line(rule, now, false, rule.top)
    find_ticket(rule)
    count_ahead_of_job(rule)
    measure(rule, now)
  end
end

-- find_place finds the index of the rule in whose line the job waits, or else of the first in which it has a place, nil for
-- none; the instant, now when it has come; and the index of the rule that delays the job until then.
-- It looks at all rules, because the job may have a place in any. The instant is the latest that the rules up to that
-- one tell. Later rules do not count: the job has no place there, and whoever joins such a line would put it off again and
-- again. A rule whose ledger admits the job now does not count either, although turns may be ahead: the job keeps its place.
local function find_place(rules, now)
  local place, in_some_line
  find_and_measure(rules, now)
  for i, rule in ipairs(rules) do
    local waits = rule.ticket and not rule.in_turns and not is_parked(rule.ticket)
    if (rule.ticket and not place) or (waits and not in_some_line) then place = i end
    in_some_line = in_some_line or waits
  end
  if not place then return nil end

  local at, delayed_by, i = now, place, 1
  while i <= place do
    local to = last_of_group(rules, i)
    local due, last = joint(rules, i, to, now, place, now)
    if due > now and due >= at then at, delayed_by = due, last end
    i = to + 1
  end
  return place, at, delayed_by
end

return {
  counts_until = counts_until, find_and_measure = find_and_measure, find_place = find_place, hold_after_failover = hold_after_failover, joint = joint,
  last_of_group = last_of_group, promote_in_lines_left = promote_in_lines_left, open_rules = open_rules, open_rule = open_rule, read_rules = read_rules,
  rule_on = rule_on, rules_at = rules_at, set_job = set_job, set_keys = set_keys,
}
