-- rulecall.lua: the rules that one call decides together, each on its key,
-- narrowest first.
--
-- Of each part a call has three keys (ledger, tokens, line), the turns of
-- each behind them when the policy has several rules, and nine arguments:
--
--   kind n window_us more version  the limit, see ledger.lua
--   cost       permits wanted, 1 to what the limit can ever grant
--   group      counts up with each other key: parts of one group share theirs
--   closed_us  until when the rule is closed on all keys, 0 when it is not
--   worth      of a grant, as acquire.lua answered it; 0 when that is not known

local remember = require("limit/remember")
local ledger = require("limit/ledger")
local tickets = require("limit/tickets")
local line = require("limit/line")
local max = math.max
local NOBODY = remember.NOBODY
local algorithm, open, slot = ledger.algorithm, ledger.open, ledger.slot
local is_parked = tickets.is_parked
local closed, next_turns = line.closed, line.next_turns

-- part_of makes part i of a call by its arguments; its keys stand behind keys[k]. So many
-- fields are named that the table hardly ever grows, which is slow.
local function part_of(keys, i, k, turns, job, letter, n, W, more, version, cost, group, closed_us, worth)
  local kind = algorithm(letter)
  local rule = {
    letter = letter, n = tonumber(n), W = tonumber(W), more = more, version = tonumber(version), kind = kind, -- see ledger.lua
    part = i, key = keys[k + 1], tokens = keys[k + 2], line = keys[k + 3], turns = turns,
    want = tonumber(cost), group = tonumber(group), rule_closed = tonumber(closed_us), told_worth = tonumber(worth),
    me = job ~= "" and cost .. ":" .. job or "",
    now = 0, token = NOBODY, newest = 0, known = false, closed = 0, -- open_parts
    count = 0, head = 0, head_read = "", at = 0, cost = 0, -- sliding.lua
    marked = false, parked = 0, first = 0, turn = 0, turns_last = 0, in_turns = false, waiting = 0, ahead = 0, -- line.lua
  }
  if kind.numbers then kind.numbers(rule) end
  return rule
end

-- open_parts reads the ledgers. When one can't be decided about, it answers the
-- status, which part, and the version of a newer limit.
local function open_parts(rules, now)
  for i, rule in ipairs(rules) do
    local ok, status, version = open(rule.key, rule, now)
    if not ok then return status, i, version or 0 end
    rule.closed, rule.top = closed(rule, now)
  end
end

-- measure finds when a part admits me if all ahead of me go as early as they can:
-- from then on it does, as long as nobody else comes. Turns ahead go when they were
-- promised, which may be later: when it refuses me, that is what I am told.
local function measure(rule, now)
  local b = max(now, rule.closed)
  rule.by_ledger = slot(rule, b, rule.ahead, rule.want)
  rule.by_turns = rule.by_ledger
  for i = 1, rule.behind and #rule.behind or 0, 2 do
    if rule.behind[i] > b then rule.by_turns = max(rule.by_turns, slot(rule, rule.behind[i], rule.behind[i + 1], rule.want)) end
  end
end

-- left_behind tells who comes next in the lines in which I do not wait any more
local function left_behind(rules, keeps, now)
  local turns = {}
  for i, rule in ipairs(rules) do
    if i ~= keeps and rule.ticket and not rule.in_turns and not is_parked(rule.ticket) then next_turns(rule, now, turns) end
  end
  return turns
end

-- joint is the first instant, not before a, at which all the parts from..to admit
-- me, and which part put it off last: `by` when none of these did. What they do not
-- admit until `reach` is put off by turns, too.
local function joint(rules, from, to, a, by, reach)
  for i = from, to do
    if rules[i].by_ledger > a then a, by = rules[i].by_ledger, i end
  end
  for i = from, to do
    if rules[i].by_ledger > reach and rules[i].by_turns > a then a, by = rules[i].by_turns, i end
  end
  return a, by
end

-- last_of_group is the last part that shares the key of part i; of leases each is by itself
local function last_of_group(rules, i)
  local to = i
  while rules[to + 1] and rules[to + 1].group == rules[i].group and not rules[to + 1].kind.lease do to = to + 1 end
  return to
end

return {
  joint = joint, last_of_group = last_of_group, left_behind = left_behind, measure = measure, open_parts = open_parts, part_of = part_of,
}
