-- places.lua: how a job gets its places in the lines, gives up those that it need not have,
-- and comes back before others: its grant was given back, or it was put off.

local numbers = require("lib/numbers")
local line = require("limit/line")
local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min
local int, live = numbers.int, numbers.live
local PARKED_FOR, MIXED, PARK_OFFSET, PARKED_TO, ROOM, PROMISE_OFFSET, at_rank, cost_of, is_parked, unparked =
  line.PARKED_FOR, line.MIXED, line.PARK_OFFSET, line.PARKED_TO, line.ROOM, line.PROMISE_OFFSET, line.at_rank, line.cost_of, line.is_parked, line.unparked
local NOTES_TO, is_squeezed, kept_score, kept_ticket, line_ends, squeeze, ticket_before, ticket_behind =
  line.NOTES_TO, line.is_squeezed, line.kept_score, line.kept_ticket, line.line_ends, line.squeeze, line.ticket_before, line.ticket_behind
local GRANTED, GRANTED_FROM, KEPT_TO, leave = line.GRANTED, line.GRANTED_FROM, line.KEPT_TO, line.leave

local GRANTED_MOST = 64 -- of so many jobs the tickets are kept when they are granted

-- granted_ticket is the ticket of the score of a job that was granted, nil of none
local function granted_ticket(score)
  return score and score / 64 - PARK_OFFSET or nil
end

-- granted_jobs is of how many jobs the tickets are kept, though they were granted
local function granted_jobs(rule)
  return rule.marked and redis.call("ZCOUNT", rule.line, GRANTED_FROM, "+inf") or 0
end

-- mix notes that costs differ, when the job's cost is not that of the first job that waits, or of the first turn
local function mix(rule)
  if rule.nobody then return end
  local m
  if rule.to_park then m = rule.first_unparked else m = at_rank(rule.line, redis.call("ZCOUNT", rule.line, "-inf", PARKED_TO)) end
  local differs = m and cost_of(m) ~= rule.want
  if not differs and rule.turns and not rule.no_turns then
    m = rule.to_park and rule.first_turn ~= rule.member and rule.first_turn or at_rank(rule.turns, 0)
    differs = m and cost_of(m) ~= rule.want
  end
  if differs then redis.call("ZADD", rule.line, int(PARK_OFFSET + PROMISE_OFFSET), MIXED) end
end

-- last_ticket is that of one behind all: a whole number of ROOMs, as first_ticket
local function last_ticket(rule)
  local ticket = 0
  local function after(member, t)
    if member then ticket = max(ticket, ticket_behind(rule, cost_of(member), ceil(unparked(t) / ROOM) * ROOM)) end
  end
  if rule.parked > 0 then after(at_rank(rule.line, rule.parked - 1)) end -- the last who is parked
  if line_ends(rule) > 0 then after(at_rank(rule.line, rule.end_rank - 1)) end
  if not rule.nobody then -- behind the turns of all policies and all that may come back, so that no two jobs have tickets that overlap
    local last = redis.call("ZRANGE", rule.line, "-1", "-1", "WITHSCORES")
    if string.sub(last[1] or "", 1, 1) == "~" then
      after(string.sub(last[1], 2), granted_ticket(last[2]))
      local rank = int(-granted_jobs(rule) - 1) -- of the last before these
      last = redis.call("ZRANGE", rule.line, rank, rank, "WITHSCORES")
    end
    if string.sub(last[1] or "", 1, 1) == "#" then after(string.sub(last[1], 2), kept_ticket(last[2])) end
  end
  return ticket
end

-- extend_life lets the line and the turns outlive the last promise by the time that somebody stays parked
local function extend_life(rule, at, now)
  live(rule.line, at - now + PARKED_FOR)
  if rule.turns and not rule.no_turns then live(rule.turns, at - now + PARKED_FOR) end
end

-- is_there notes that somebody has a place
local function is_there(rule)
  rule.nobody = false
  if rule.seen then rule.seen[rule.line] = true end
end

-- promise tells the job an instant
local function promise(rule, at)
  is_there(rule)
  redis.call("ZADD", rule.line, int(at + PROMISE_OFFSET), "@" .. rule.member)
end

-- enlist gives the job a ticket in a set, and tells it an instant
local function enlist(rule, set, ticket, at)
  local stale = rule.nobody -- whoever is among the turns has gone
  is_there(rule)
  if set == rule.line then
    redis.call("ZADD", set, int(ticket), rule.member, int(at + PROMISE_OFFSET), "@" .. rule.member)
  else
    rule.no_turns = false
    redis.call("ZADD", rule.line, int(at + PROMISE_OFFSET), "@" .. rule.member, kept_score(ticket), "#" .. rule.member)
    if stale then redis.call("UNLINK", set) end
    redis.call("ZADD", set, int(ticket), rule.member)
  end
end

local function is_among(list, name)
  for _, other in ipairs(list) do
    if other == name then return true end
  end
  return false
end

-- clear takes out jobs that have been late for PARKED_FOR. It leaves the jobs that this call is about to park
local function clear(rule, now)
  local outdated = redis.call("ZRANGEBYSCORE", rule.line, int(PROMISE_OFFSET), int(PROMISE_OFFSET + now - PARKED_FOR), "LIMIT", 0, 20)
  for _, name in ipairs(outdated) do
    local m = string.match(name, "^@(.*)$") or ""
    local u = redis.call("ZMSCORE", rule.line, m, "#" .. m)
    local ticket = tonumber(u[1] or "")
    if (not ticket or is_parked(ticket)) and not is_among(rule.kept_to_drop, "#" .. m) then
      if is_squeezed(ticket or kept_ticket(u[2])) then squeeze(rule, cost_of(m), -1) end
      redis.call("ZREM", rule.line, m, name, "#" .. m)
    end
  end
end

-- join puts the job into a set, the line or the turns: with its ticket, or behind all
local function join(rule, set, at, now)
  local ticket = rule.ticket and unparked(rule.ticket) or last_ticket(rule)
  if rule.end_turn_rank > 0 and set ~= rule.turns then redis.call("ZREM", rule.turns, rule.member) end
  if rule.ticket and rule.in_turns ~= (set == rule.turns) then redis.call("ZREM", rule.line, rule.in_turns and "#" .. rule.member or rule.member) end
  local first = rule.nobody
  mix(rule)
  enlist(rule, set, ticket, at)
  if not rule.ticket and not first then clear(rule, now) end
end

-- take_place gives the job a place that was promised an instant: in the line, or among the
-- turns while another rule holds it up
local function take_place(rule, among_turns, at, now)
  local set = among_turns and rule.turns or rule.line
  if rule.ticket and not is_parked(rule.ticket) and rule.in_turns == among_turns then
    promise(rule, at)
    if among_turns then -- its turn may be one by another policy
      mix(rule)
      rule.no_turns = false
      redis.call("ZADD", rule.turns, int(rule.ticket), rule.member)
    end
  else
    join(rule, set, at, now)
  end
  extend_life(rule, at, now)
end

-- step_aside parks the job: its ticket stays good and holds up nobody
local function step_aside(rule, at, now)
  if not rule.ticket or is_parked(rule.ticket) then return end
  rule.left_turn = rule.in_turns
  if rule.end_turn_rank > 0 then redis.call("ZREM", rule.turns, rule.member) end
  if rule.in_turns then redis.call("ZREM", rule.line, "#" .. rule.member) end
  redis.call("ZADD", rule.line, int(rule.ticket - PARK_OFFSET), rule.member)
  extend_life(rule, at, now)
end

-- only_turns_delay says that only turns ahead put the job off until an instant: then it does
-- not exist for jobs of other policies, as they do not
local function only_turns_delay(rule, at)
  return rule.by_turns == at and rule.by_ledger < at
end

-- keeps_turn says whether a job has a turn at a rule while the binding rule holds it up. turns says at which of those that admitted it:
-- ALL_TURNS, NO_TURNS, or HELD_TURNS for those at which it has a place and is not parked.
local ALL_TURNS, NO_TURNS, HELD_TURNS = 0, 1, 2
local function keeps_turn(rule, binding_rule, turns)
  if rule.kind.lease or turns == NO_TURNS then return false end
  if turns == HELD_TURNS and not (rule.ticket and not is_parked(rule.ticket)) then return false end
  return rule.group < binding_rule.group or (rule.group == binding_rule.group and not binding_rule.kind.lease)
end

-- take_places gives the job its places while the binding rule holds it up until an instant, and
-- answers in whose line it waits, nil when it only follows turns. In the narrower groups, which admitted it, and in that of the
-- binding rule it keeps its turn, see keeps_turn. A job that waits for a lease keeps no turn at the rates of its key, nor at
-- wider ones.
local function take_places(rules, binding, at, now, turns)
  local binding_rule, waits_at = rules[binding], nil
  for i, rule in ipairs(rules) do
    if i == binding and not only_turns_delay(rule, at) then waits_at = i end
    if i == binding or keeps_turn(rule, binding_rule, turns) then take_place(rule, i ~= waits_at, at, now) else step_aside(rule, at, now) end
  end
  return waits_at
end

-- find_ticket_alone is find_ticket for a rule whose line was not read
local function find_ticket_alone(rule)
  local u = redis.call("ZMSCORE", rule.line, rule.member, "#" .. rule.member)
  rule.ticket = tonumber(u[1] or "") or kept_ticket(u[2])
end

-- first_ticket is that of one before all, also before the turns of all policies
local function first_ticket(rule)
  local ticket
  for _, at in ipairs({ 0, redis.call("ZCOUNT", rule.line, "-inf", PARKED_TO) }) do -- the first parked job, and the first other job
    local m, t = at_rank(rule.line, at)
    if m then ticket = min(ticket or unparked(t), unparked(t)) end
  end
  local function before(first, t)
    if first then ticket = min(ticket or t, t) end
  end
  local first = redis.call("ZRANGEBYSCORE", rule.line, NOTES_TO, KEPT_TO, "WITHSCORES", "LIMIT", "0", "1")
  before(first[1], kept_ticket(first[2]))
  if rule.marked then
    first = redis.call("ZRANGEBYSCORE", rule.line, GRANTED_FROM, "+inf", "WITHSCORES", "LIMIT", "0", "1")
    before(first[1], granted_ticket(first[2]))
  end
  return ticket and ticket_before(rule, rule.want, floor(ticket / ROOM) * ROOM) or 0
end

-- leave_granted takes a job out that is granted, and keeps its ticket, because a later hash slot may refuse. A job that has none gets
-- the last one, when anybody else has a place here, or may come back. Of very many jobs it keeps the last tickets
local function leave_granted(rule)
  if rule.member == "" or rule.nobody then return end
  local many = granted_jobs(rule)
  if many >= GRANTED_MOST then redis.call("ZREMRANGEBYRANK", rule.line, int(-many), int(-GRANTED_MOST)) end
  local ticket = rule.ticket and unparked(rule.ticket) or last_ticket(rule)
  local score = int((ticket + PARK_OFFSET) * 64)
  redis.call("ZADD", rule.line, score, "~" .. rule.member, int(PARK_OFFSET + PROMISE_OFFSET), GRANTED)
  rule.marked = true
  leave(rule)
end

-- ticket_again is the ticket that was kept of a job. Its grant comes back, because a later hash slot refuses. There are two cases in which
-- no ticket was kept. When too many jobs were granted after it, the job goes before all. When nobody had a place here at the grant, all
-- who wait came later. Then the job goes before the line, and behind all turns when the line is empty
local function ticket_again(rule)
  local ticket = rule.marked and granted_ticket(redis.call("ZSCORE", rule.line, "~" .. rule.member))
  if not ticket then return (rule.front or granted_jobs(rule) >= GRANTED_MOST) and first_ticket(rule) or last_ticket(rule) end
  redis.call("ZREM", rule.line, "~" .. rule.member)
  if is_squeezed(ticket) then squeeze(rule, rule.want, 1) end
  return ticket
end

-- join_at puts the job into a set at a ticket. With `parked` the job is parked there
local function join_at(rule, set, ticket, at, now, parked)
  if set ~= rule.turns then redis.call("ZREM", rule.line, "#" .. rule.member) end
  if rule.turns and set ~= rule.turns then redis.call("ZREM", rule.turns, rule.member) end
  if not parked then mix(rule) end
  enlist(rule, set, parked and ticket - PARK_OFFSET or ticket, at)
  extend_life(rule, at, now)
end

return {
  ALL_TURNS = ALL_TURNS, NO_TURNS = NO_TURNS, HELD_TURNS = HELD_TURNS,
  find_ticket_alone = find_ticket_alone, first_ticket = first_ticket, join_at = join_at, leave_granted = leave_granted,
  step_aside = step_aside, take_places = take_places, ticket_again = ticket_again,
}
