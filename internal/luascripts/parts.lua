-- parts.lua: the rules that one call decides together, each on its key,
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

-- read_rules reads the arguments of the parts, which stand from args[from] on
local function read_rules(args, count, from)
  local rules = {}
  for a = from, from + 9 * count - 9, 9 do
    local letter = args[a]
    rules[#rules + 1] = {
      letter = letter, n = tonumber(args[a + 1]), W = tonumber(args[a + 2]), more = args[a + 3], version = tonumber(args[a + 4]),
      cost = args[a + 5] .. ":", want = tonumber(args[a + 5]), group = tonumber(args[a + 6]), rule_closed = tonumber(args[a + 7]),
      told_worth = tonumber(args[a + 8]), kind = algorithm(letter),
    }
  end
  return rules
end

-- parts_of makes the parts of a call by rules that were read, whose keys stand behind
-- KEYS[before]. All fields of a part are named, for a table that grows is slow.
local function parts_of(rules, job, before, turns)
  local P = {}
  for i, R in ipairs(rules) do
    local k = before + 3 * i - 3
    local L = {
      letter = R.letter, n = R.n, W = R.W, more = R.more, version = R.version, kind = R.kind, -- see ledger.lua
      part = i, key = KEYS[k + 1], tokens = KEYS[k + 2], line = KEYS[k + 3], turns = turns and KEYS[3 * #rules + before + i],
      want = R.want, group = R.group, rule_closed = R.rule_closed, told_worth = R.told_worth, me = job ~= "" and R.cost .. job or "",
      now = 0, token = NOBODY, newest = 0, known = false, wrote = nil, carried = nil, closed = 0, -- open_parts
      count = 0, head = 0, head_read = "", seen = nil, at = 0, cost = 0, -- sliding.lua
      nobody = false, marked = false, mixed = nil, no_turns = nil, -- closed and look of line.lua
      parked = 0, first = 0, last = nil, late = nil, leader = nil, front = nil, front_ticket = nil, front_told = nil,
      turn = 0, turns_last = 0, turns_late = nil, turn_front = nil, turn_ticket = nil, turn_told = nil,
      in_line = nil, told_me = nil, ticket = nil, in_turns = false, missed = nil, -- find and park
      waiting = 0, turns_ahead = 0, ahead = 0, behind = nil, by_ledger = 0, by_turns = 0, -- rank and measure
    }
    if R.kind.numbers then R.kind.numbers(L) end
    P[i] = L
  end
  return P
end

-- read_parts makes the parts of a call that has all the keys
local function read_parts(args, count, from, job)
  return parts_of(read_rules(args, count, from), job, 0, #KEYS == 4 * count)
end

-- open_parts reads the ledgers. When one can't be decided about, it answers the
-- status, which part, and the version of a newer limit.
local function open_parts(P, now)
  for i, L in ipairs(P) do
    local ok, status, version = open(L.key, L, now)
    if not ok then return status, i, version or 0 end
    L.closed = closed(L, now)
  end
end

-- measure finds when a part admits me if all ahead of me go as early as they can:
-- from then on it does, as long as nobody else comes. Turns ahead go when they were
-- promised, which may be later: when it refuses me, that is what I am told.
local function measure(L, now)
  local b = max(now, L.closed)
  L.by_ledger = slot(L, b, L.ahead, L.want)
  L.by_turns = L.by_ledger
  for i = 1, L.behind and #L.behind or 0, 2 do
    if L.behind[i] > b then L.by_turns = max(L.by_turns, slot(L, L.behind[i], L.behind[i + 1], L.want)) end
  end
end

-- follows says that only turns ahead of me put me off until an instant: then I do
-- not exist for jobs of other policies, as they do not
local function follows(L, at)
  return L.by_turns == at and L.by_ledger < at
end

-- stand_for gives me my places while a part puts me off until an instant, and
-- answers in whose line I wait, nil when I only follow turns. The groups before that
-- part admitted me: there I keep my turn. Who waits for a lease keeps none in the
-- rates of its key, nor of wider ones.
local function stand_for(P, binding, at, now)
  local bound, keeps = P[binding], nil
  for i, L in ipairs(P) do
    local admitted = L.group < bound.group or (L.group == bound.group and not bound.kind.lease)
    if i == binding and not follows(L, at) then keeps = i end
    if i == binding or (admitted and not L.kind.lease) then stand(L, i ~= keeps, at, now) else step_aside(L, at, now) end
  end
  return keeps
end

-- left_behind tells who comes next in the lines in which I do not wait any more
local function left_behind(P, keeps, now)
  local turns = {}
  for i, L in ipairs(P) do
    if i ~= keeps and L.ticket and not L.in_turns and not is_parked(L.ticket) then next_turns(L, now, turns) end
  end
  return turns
end

-- joint is the first instant, not before a, at which all the parts from..to admit
-- me, and which part put it off last: `by` when none of these did. What they do not
-- admit until `reach` is put off by turns, too.
local function joint(P, from, to, a, by, reach)
  for i = from, to do
    if P[i].by_ledger > a then a, by = P[i].by_ledger, i end
  end
  for i = from, to do
    if P[i].by_ledger > reach and P[i].by_turns > a then a, by = P[i].by_turns, i end
  end
  return a, by
end

-- widest_from is where the widest rates begin, which share a key, for a job that may
-- wait there only: nil for one that waits elsewhere, or where there are no rates.
local function widest_from(P, widest)
  if P[widest].kind.lease then return nil end
  local from, elsewhere = widest, false
  while from > 1 and P[from - 1].group == P[widest].group do from = from - 1 end
  for i, L in ipairs(P) do
    if L.ticket and i >= from and i <= widest then return from end
    elsewhere = elsewhere or L.ticket
  end
  return not elsewhere and from or nil
end

-- in_widest is the instant at which the widest rates, the parts from..widest, admit
-- me, and which of them puts me off beyond reach; or, for one who has no place there
-- yet, a later instant, which of the other parts puts it off until then, and true. A
-- lease does so only while it is closed: who has one now will not then.
local function in_widest(P, from, widest, now, reach)
  local at, by = joint(P, from, widest, now, nil, reach)
  local later, which, placed = at, nil, false
  for i, L in ipairs(P) do
    local is_wide = i >= from and i <= widest
    local other = i < from and L.by_turns or i > widest and L.closed or 0
    placed = placed or is_wide and L.ticket
    if other > later then later, which = other, i end
  end
  if which and not placed then return later, which, true end
  return at, at > reach and by or nil, false
end

-- last_of_group is the last part that shares the key of part i; of leases each is by itself
local function last_of_group(P, i)
  local to = i
  while P[to + 1] and P[to + 1].group == P[i].group and not P[to + 1].kind.lease do to = to + 1 end
  return to
end
