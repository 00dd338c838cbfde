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

-- read_parts makes the parts of a call whose arguments stand from args[from] on, and
-- whose keys behind KEYS[before]: all of them where that is not told
local function read_parts(args, count, from, job, before, turns)
  local P = {}
  if not before then
    before, turns = 0, #KEYS == 4 * count
  end
  for i = 1, count do
    local k, a = before + 3 * i - 3, from + 9 * i - 9
    local L = limit(args[a], args[a + 1], args[a + 2], args[a + 3], args[a + 4])
    L.part, L.key, L.tokens, L.line = i, KEYS[k + 1], KEYS[k + 2], KEYS[k + 3]
    if turns then L.turns = KEYS[3 * count + before + i] end
    L.want, L.group, L.rule_closed, L.told_worth = tonumber(args[a + 5]), tonumber(args[a + 6]), tonumber(args[a + 7]), tonumber(args[a + 8])
    L.me = job ~= "" and args[a + 5] .. ":" .. job or ""
    P[i] = L
  end
  return P
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
