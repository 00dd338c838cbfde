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

-- part_of makes part i of a call by its arguments; its keys stand behind KEYS[k]. So many
-- fields are named that the table hardly ever grows, which is slow.
local function part_of(i, k, turns, job, letter, n, W, more, version, cost, group, closed_us, worth)
  local kind = algorithm(letter)
  local L = {
    letter = letter, n = tonumber(n), W = tonumber(W), more = more, version = tonumber(version), kind = kind, -- see ledger.lua
    part = i, key = KEYS[k + 1], tokens = KEYS[k + 2], line = KEYS[k + 3], turns = turns,
    want = tonumber(cost), group = tonumber(group), rule_closed = tonumber(closed_us), told_worth = tonumber(worth),
    me = job ~= "" and cost .. ":" .. job or "",
    now = 0, token = NOBODY, newest = 0, known = false, closed = 0, -- open_parts
    count = 0, head = 0, head_read = "", at = 0, cost = 0, -- sliding.lua
    marked = false, parked = 0, first = 0, turn = 0, turns_last = 0, in_turns = false, waiting = 0, ahead = 0, -- line.lua
  }
  if kind.numbers then kind.numbers(L) end
  return L
end

-- open_parts reads the ledgers. When one can't be decided about, it answers the
-- status, which part, and the version of a newer limit.
local function open_parts(P, now)
  for i, L in ipairs(P) do
    local ok, status, version = open(L.key, L, now)
    if not ok then return status, i, version or 0 end
    L.closed, L.top = closed(L, now)
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

-- last_of_group is the last part that shares the key of part i; of leases each is by itself
local function last_of_group(P, i)
  local to = i
  while P[to + 1] and P[to + 1].group == P[i].group and not P[to + 1].kind.lease do to = to + 1 end
  return to
end
