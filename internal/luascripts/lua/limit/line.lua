-- line.lua: who waits on a key, in which order, and what they were promised.
--
-- line      sorted set. A job that waits is the member "cost:job", and its score is its ticket
-- turns     sorted set of the jobs of one policy that another of its rules holds up, with the same members and scores. Each keeps
--           its turn among the jobs of that policy, and does not exist for others. When another policy asks for such a job, it
--           finds the ticket among `kept`. So a job may be among the turns of several policies, with one ticket
--
-- Tickets order the line. A ticket is that of the job before, plus ROOM for each permit of that job; see ticket_behind for
-- large limits and long lines. A job that comes too late is parked: its ticket is PARK_OFFSET lower then, so it holds up
-- nobody and finds its turn again.
--
-- The set `line` holds more than jobs. A score says what its member is. From the lowest score to the highest:
--
--   member                 score                                    range
--   jobs that are parked   ticket - PARK_OFFSET                     up to PARKED_TO
--   jobs that are not      ticket                                   from UNPARKED_FROM up to TICKETS_TO
--   promises, CLOSED       an instant + PROMISE_OFFSET              from PROMISE_OFFSET on
--   other notes            a value + PARK_OFFSET + PROMISE_OFFSET   from NOTES_FROM up to NOTES_TO
--   kept                   (ticket + PARK_OFFSET) * 8               from NOTES_TO up to GRANTED_FROM
--   granted                (ticket + PARK_OFFSET) * 64              from GRANTED_FROM on
--
-- promises  "@cost:job": the instant that each job was promised last. A job keeps its place until GRACE after it. A job to
--           which a lease is offered is promised OFFERED_FOR from now, or keeps an earlier promise
-- CLOSED    the instant until which the key is closed
-- MIXED     is there when costs in the line or among turns differ, or did
-- GRANTED   is there when any job is `granted`, or was
-- kept      "#cost:job": the ticket of each job that keeps a turn. A job among turns that has no such member, or another
--           ticket there, does not wait there any more
-- granted   "~cost:job": the ticket of a job that was granted here, and that a later hash slot may refuse. It is no place. When the grant is given
--           back the job gets this ticket again. Newcomers get tickets behind it. Nobody tells it that the later hash slot has granted
-- and the notes of close.lua: SINCE, LAST, IN and SQUEEZED. LAST may lie a little below NOTES_FROM. From the year 2112 on
-- promises lie among the notes.
--
-- "The job" is the one that the call is about, rule.member. See rulecall.lua for what a rule has.

local numbers = require("lib/numbers")
local ledger = require("limit/ledger")
local ceil, max, min = math.ceil, math.max, math.min
local int, life, live = numbers.int, numbers.life, numbers.live
local NEVER, UNITS_MOST, earliest = ledger.NEVER, ledger.UNITS_MOST, ledger.earliest

local MIXED, CLOSED, GRANTED = "mixed", "closed", "granted"
local SINCE, LAST, IN, SQUEEZED = "closed since", "postponed last", "postponed in", "squeezed"

-- what is added to a value to make it a score, or taken off it
local PROMISE_OFFSET = 2251799813685248
local PARK_OFFSET = 4503599627370496

-- bounds of ranges of scores, as Redis reads them: "(" leaves the bound itself out
local PARKED_TO, UNPARKED_FROM = "(-2251799813685248", "-2251799813685248"
local TICKETS_TO = "(2251799813685248" -- PROMISE_OFFSET
local NOTES_FROM = "6755399441055744" -- PARK_OFFSET + PROMISE_OFFSET
local NOTES_TO = "18014398509481984"
local GRANTED_FROM, KEPT_TO = "144115188075855872", "(144115188075855872" -- (PARK_OFFSET - PROMISE_OFFSET) * 64

-- how tickets count up, see ticket_behind
local ROOM = 4096 -- between two tickets: jobs that are put off stand there, see close.lua
local COARSE_START, COARSE_UNITS = 1125899906842624, 1024 -- from this ticket on a ROOM stands for so many units

-- times, in microseconds
local GRACE = 100000 -- how long after its last promise the first job of a line keeps its place
local OFFERED_FOR = 900000 -- how long, with GRACE, a lease that is free is kept for those to whom it is offered
local PARKED_FOR = 3600000000 -- how long a job stays parked
local REFUSED_WITHIN = 5000000 -- how long the tickets of jobs that were granted are kept when nobody else is there

-- what is counted at most
local WHOLE_JOBS = 32 -- where costs differ, so many of the jobs ahead are looked at one by one
local PERMITS_AHEAD_MOST = 4503599627370496

local function cost_of(member)
  return tonumber(string.match(member, "^%d+"))
end

local function is_parked(ticket)
  return ticket < -PARK_OFFSET / 2
end

-- unparked is a ticket as it was before its job was parked, or as it is
local function unparked(ticket)
  return is_parked(ticket) and ticket + PARK_OFFSET or ticket
end

-- first_of is the member that was read first and its ticket, nil when it does not wait
local function first_of(v)
  local ticket = tonumber(v[2])
  if ticket and ticket < PROMISE_OFFSET then return v[1], ticket end
end

-- at_rank is the member at a rank and its ticket, nil where none waits
local function at_rank(set, rank)
  return first_of(redis.call("ZRANGE", set, rank, rank, "WITHSCORES"))
end

-- mark is the score of a member of the line's set, less PROMISE_OFFSET; nil when it is not there
local function mark(rule, name)
  local v = redis.call("ZSCORE", rule.line, name)
  return v and v - PROMISE_OFFSET or nil
end

local function promised(rule, member)
  return mark(rule, "@" .. member)
end

-- kept_score is the score of a ticket that is kept, and kept_ticket the ticket of such a score, nil of none
local function kept_score(ticket)
  return int((ticket + PARK_OFFSET) * 8)
end

local function kept_ticket(score)
  return score and score / 8 - PARK_OFFSET or nil
end

-- in_time says whether a job that was promised the instant p still keeps its place. The job of the call does: it has come
local function in_time(rule, member, p, now)
  return member == rule.member or (p and p + GRACE >= now)
end

-- line_ends is the rank after the last job that has a ticket in the line, counted once
local function line_ends(rule)
  rule.end_rank = rule.end_rank or redis.call("ZCOUNT", rule.line, "-inf", TICKETS_TO)
  return rule.end_rank
end

local NONE = {} -- stands for the late ones where nobody is, as of most calls; never written to

local function found_late(rule, member, ticket)
  if rule.to_park == NONE then rule.to_park = {} end
  rule.to_park[#rule.to_park + 1] = int(ticket - PARK_OFFSET)
  rule.to_park[#rule.to_park + 1] = member
end

-- read_turns is read_line for the turns of the call's policy
local function read_turns(rule, now)
  local v = redis.call("ZRANGE", rule.turns, "0", "1", "WITHSCORES") -- where there is one at most, that is all
  rule.end_turn_rank = #v < 4 and #v / 2 or redis.call("ZCARD", rule.turns)
  rule.no_turns = rule.end_turn_rank == 0
  local m, ticket = v[1], tonumber(v[2])
  rule.first_turn = m
  while m do
    local u = redis.call("ZMSCORE", rule.line, "@" .. m, "#" .. m)
    local p = u[1] and u[1] - PROMISE_OFFSET
    local keeps = kept_ticket(u[2]) == ticket
    if rule.first_turn_rank == 20 or keeps and in_time(rule, m, p, now) then
      rule.turn_front, rule.turn_ticket, rule.turn_promised = m, ticket, p
      break
    end
    if rule.dead_turns == NONE then rule.dead_turns, rule.kept_to_drop = {}, {} end
    if m ~= rule.member then rule.dead_turns[#rule.dead_turns + 1] = m end -- the job may get that turn now
    if keeps then
      found_late(rule, m, ticket)
      rule.kept_to_drop[#rule.kept_to_drop + 1] = "#" .. m
    end
    rule.first_turn_rank = rule.first_turn_rank + 1
    m, ticket = at_rank(rule.turns, rule.first_turn_rank)
  end
end

-- read_line finds the jobs that wait. It sets these fields of the rule:
--   parked          how many jobs are parked: they stand before all others
--   first_unparked  the first job that is not parked, late or not
--   first_rank      the rank of the first job that is neither parked nor late; up to line_ends the jobs wait
--   front           that job; front_promised is its promise
--   first_turn_rank, end_turn_rank, turn_front, turn_promised  the same of the turns: ranks from the first to the second - 1 wait
--   turn_ticket     the ticket of turn_front
--   first_turn      the first of the turns, late or not
--   to_park         up to 20 late jobs of each set, as arguments of a ZADD that parks them
--   dead_turns      the first turns, as far as they hold up nobody: their jobs are late, or do not keep them any more. At most 20
--   kept_to_drop    the members of kept, "#cost:job", of those among the dead turns that are late. The others have none to drop
--   in_line, in_kept, last_promise  the job's ticket in the line, that of its turn by whatever policy, and the instant that it was promised last
-- A job is late when its last promise is more than GRACE ago. The job's own place and promise are read in the
-- same call as those of first_unparked. With only_line the turns are not read, and count as none. v is the first
-- job of the line, if the caller has read it and nothing was written since.
local function read_line(rule, now, only_line, v)
  rule.parked, rule.first_rank, rule.end_rank, rule.to_park, rule.first_unparked, rule.front = 0, 0, 0, NONE, nil, nil
  rule.first_turn_rank, rule.end_turn_rank, rule.dead_turns, rule.turn_front = 0, 0, NONE, nil
  rule.turn_promised, rule.in_line, rule.in_kept, rule.last_promise, rule.first_turn, rule.kept_to_drop = nil, nil, nil, nil, nil, NONE
  if rule.nobody then return end
  v = v or redis.call("ZRANGE", rule.line, "0", "0", "WITHSCORES")
  local m, ticket = first_of(v)
  if m then rule.end_rank = nil end
  if m and is_parked(ticket) then
    rule.parked = redis.call("ZCOUNT", rule.line, "-inf", PARKED_TO)
    rule.first_rank = rule.parked
    m, ticket = at_rank(rule.line, rule.first_rank)
  end
  local p
  if rule.member == "" or rule.member == m then
    p = m and promised(rule, m)
    if rule.member == m then rule.in_line, rule.last_promise = ticket, p end
  else
    local u = redis.call("ZMSCORE", rule.line, rule.member, "@" .. rule.member, "@" .. (m or rule.member), "#" .. rule.member)
    rule.in_line, rule.last_promise, p = tonumber(u[1] or ""), u[2] and u[2] - PROMISE_OFFSET, u[3] and u[3] - PROMISE_OFFSET
    rule.in_kept = kept_ticket(u[4])
  end
  rule.first_unparked = m
  while m do
    if #rule.to_park == 40 or in_time(rule, m, p, now) then
      rule.front, rule.front_promised = m, p
      break
    end
    found_late(rule, m, ticket)
    rule.first_rank = rule.first_rank + 1
    m, ticket = at_rank(rule.line, rule.first_rank)
    p = m and promised(rule, m)
  end
  if not only_line and rule.turns and not rule.no_turns then read_turns(rule, now) end
end

-- park parks the jobs that read_line found to be late. Those of them that wait for a lease are in rule.missed afterwards
local function park(rule)
  if #rule.dead_turns > 0 then redis.call("ZREM", rule.turns, unpack(rule.dead_turns)) end
  if #rule.to_park == 0 then return end
  redis.call("ZADD", rule.line, unpack(rule.to_park))
  if rule.kind.lease then
    rule.missed = rule.missed or {}
    for i = 2, #rule.to_park, 2 do rule.missed[#rule.missed + 1] = rule.to_park[i] end
  end
  if #rule.kept_to_drop > 0 then redis.call("ZREM", rule.line, unpack(rule.kept_to_drop)) end
  live(rule.line, PARKED_FOR) -- a parked job keeps its place so long from now on
end

-- find_ticket finds the job's ticket, and whether it is one of a turn, by whatever policy
local function find_ticket(rule)
  rule.ticket, rule.in_turns = rule.in_line or rule.in_kept, not rule.in_line and rule.in_kept ~= nil
end

-- below counts the members of a set with a ticket under this one, who are not parked
local function below(set, ticket)
  return redis.call("ZCOUNT", set, UNPARKED_FROM, "(" .. int(ticket))
end

-- units_of is how many units (of limit.unit permits) a job of this cost takes, UNITS_MOST at most. Each has a ROOM, as far as COARSE_START
local function units_of(rule, cost)
  return min(ceil(cost / rule.limit.unit), UNITS_MOST)
end

-- ticket_behind is the ticket behind a job of this cost, which has a ticket. Tickets count up as long as a line is never
-- empty, and must stay below PROMISE_OFFSET. So from COARSE_START on a ROOM stands for COARSE_UNITS units
local function ticket_behind(rule, cost, ticket)
  local at_end = ticket + units_of(rule, cost) * ROOM
  local over = at_end - max(ticket, COARSE_START)
  return over > 0 and max(ticket, COARSE_START) + ceil(over / ROOM / COARSE_UNITS) * ROOM or at_end
end

-- ticket_before is the last ticket, of whole ROOMs, from which a job of this cost ends at a ticket, or before it
local function ticket_before(rule, cost, ticket)
  local units = units_of(rule, cost)
  local coarse = min(max(0, ticket - COARSE_START) / ROOM, ceil(units / COARSE_UNITS))
  return ticket - (coarse + max(0, units - coarse * COARSE_UNITS)) * ROOM
end

-- units_between is how many units lie between two tickets
local function units_between(from_ticket, end_ticket)
  return ceil((end_ticket - from_ticket) / ROOM) + ceil((max(end_ticket, COARSE_START) - max(from_ticket, COARSE_START)) / ROOM) * (COARSE_UNITS - 1)
end

-- permits_by_count is how many permits so many of the jobs ahead want, where all costs are equal
local function permits_by_count(rule, jobs)
  return jobs * cost_of(rule.waiting > 0 and rule.front or rule.turn_front)
end

-- permits_by_tickets is how many permits the jobs ahead want at most that have this ticket or a later one. It is for mixed costs. No two
-- jobs have tickets that overlap, see last_ticket. So the tickets bound it from above, with the costs of the jobs that were squeezed in between
local function permits_by_tickets(rule, from_ticket)
  local end_ticket = -PARK_OFFSET
  if rule.waiting > 0 then
    local m, ticket = at_rank(rule.line, rule.first_rank + rule.waiting - 1)
    end_ticket = ticket_behind(rule, cost_of(m), ticket)
  end
  if rule.turns_ahead > 0 then
    local m, ticket = at_rank(rule.turns, rule.first_turn_rank + rule.turns_ahead - 1)
    end_ticket = max(end_ticket, ticket_behind(rule, cost_of(m), ticket))
  end
  return (units_between(from_ticket, end_ticket) + (mark(rule, SQUEEZED) or PARK_OFFSET) - PARK_OFFSET) * rule.limit.unit
end

-- permits_from is how many permits a turn ahead and the jobs between it and the job want. `turns` is how many of these are turns
local function permits_from(rule, ticket, turns)
  if rule.mixed then return permits_by_tickets(rule, ticket) end
  local waiting = rule.waiting > 0 and max(0, rule.waiting - max(0, rule.parked + below(rule.line, ticket) - rule.first_rank)) or 0
  return permits_by_count(rule, waiting + turns)
end

-- first_costs finds, of a line with mixed costs, what the first jobs ahead cost, in their order, and their sum; the ticket of the
-- job after these; and, as rule.front_index, which of these costs is that of `front`
local function first_costs(rule)
  local waiting_jobs, turn_jobs, first, first_turn = NONE, NONE, rule.first_rank, rule.first_turn_rank
  local last, last_turn = first + min(rule.waiting, WHOLE_JOBS + 1) - 1, first_turn + min(rule.turns_ahead, WHOLE_JOBS + 1) - 1
  if rule.waiting > 0 then waiting_jobs = redis.call("ZRANGE", rule.line, first, last, "WITHSCORES") end
  if rule.turns_ahead > 0 then turn_jobs = redis.call("ZRANGE", rule.turns, first_turn, last_turn, "WITHSCORES") end
  local costs, sum, i, j = {}, 0, 1, 1
  while true do
    local ticket, other = tonumber(waiting_jobs[i + 1]), tonumber(turn_jobs[j + 1])
    if #costs == WHOLE_JOBS or not (ticket or other) then return costs, sum, ticket and other and min(ticket, other) or ticket or other end
    if ticket and (not other or ticket <= other) then
      rule.front_index = rule.front_index or #costs + 1
      costs[#costs + 1], i = cost_of(waiting_jobs[i]), i + 2
    else
      costs[#costs + 1], j = cost_of(turn_jobs[j]), j + 2
    end
    sum = sum + costs[#costs]
  end
end

-- count_permits finds how many permits go before those of the job, and what the first jobs of these cost, when
-- earliest must be told whole jobs
local function count_permits(rule)
  local many = rule.waiting + rule.turns_ahead
  local cost = cost_of(rule.waiting > 0 and rule.front or rule.turn_front)
  if rule.mixed then
    local next_ticket
    rule.costs, rule.ahead, next_ticket = first_costs(rule)
    if next_ticket then rule.ahead = rule.ahead + permits_by_tickets(rule, next_ticket) end
  else
    rule.ahead = permits_by_count(rule, many)
    if rule.kind.scratch and (cost > 1 or rule.want > 1) then
      rule.costs = {}
      for i = 1, min(many, WHOLE_JOBS) do rule.costs[i] = cost end
    end
  end
  rule.ahead = min(rule.ahead, PERMITS_AHEAD_MOST)
end

-- charge_ahead is the ledger of a rule as it will be when the first jobs ahead are granted, each as a whole and as early as it can be.
-- It is a copy when something had to be charged. The other results are how many permits still go before the job then, and the instant at which `front` goes
local function charge_ahead(rule, now)
  local costs, kind, limit, left, front_at = rule.costs, rule.kind, rule.limit, rule.ahead, nil
  if not costs then return rule.ledger, left end
  if not kind.scratch then
    if rule.front_index then
      for i = 1, rule.front_index - 1 do front_at = (front_at or 0) + costs[i] end
      front_at = kind.earliest(limit, rule.ledger, now, front_at or 0, costs[rule.front_index])
    end
    return rule.ledger, left, front_at
  end
  local of = kind.scratch(rule.ledger)
  for i, cost in ipairs(costs) do
    local at = kind.earliest(limit, of, now, 0, cost)
    if i == rule.front_index then front_at = at end
    kind.charge(limit, of, at, cost)
    left = left - cost
  end
  return of, max(0, left), front_at
end

-- jobs_one_by_one returns a function. Each call of it says when the next job goes, of those that come one by one behind
-- the jobs that charge_ahead let go
local function jobs_one_by_one(rule, now, of, left)
  local kind, limit, more = rule.kind, rule.limit, WHOLE_JOBS - #(rule.costs or NONE)
  if rule.kind.scratch and of == rule.ledger then of = kind.scratch(of) end
  return function(cost)
    local at = min(kind.earliest(limit, of, now, left, cost), NEVER)
    if left == 0 and more > 0 and kind.scratch and (rule.mixed or cost > 1) then
      kind.charge(limit, of, at, cost)
      more = more - 1
    else
      left = left + cost
    end
    return at
  end
end

-- count_ahead_of_job counts the permits that go before the job, or before a newcomer: they are `ahead`. `costs` are the costs of the
-- first jobs among them. Turns have instants of their own. `promised_turns` has those of the first and of the last turn ahead, each
-- with the number of permits from that turn up to the job: {instant, permits} or {instant, permits, instant, permits}. From each follows
-- when the job goes at the earliest, if that turn goes as it was promised. The first turn has the most permits behind it, and the last
-- was mostly promised the latest instant. All turns would cost a look at each. Where one in between puts the job off for longer, the
-- job comes too early. Then it is granted only if there are permits for all turns, too, as `ahead` counts them; else it is told a later instant
local function count_ahead_of_job(rule)
  rule.waiting, rule.turns_ahead, rule.ahead, rule.promised_turns, rule.costs, rule.front_index = 0, rule.end_turn_rank - rule.first_turn_rank, 0, nil, nil, nil
  if rule.ticket then
    local ticket = unparked(rule.ticket)
    if rule.front and rule.front ~= rule.member then rule.waiting = max(0, rule.parked + below(rule.line, ticket) - rule.first_rank) end
    local first = rule.turn_front == rule.member and rule.turn_ticket == ticket
    if rule.turns_ahead > 0 then rule.turns_ahead = first and 0 or max(0, below(rule.turns, ticket) - rule.first_turn_rank) end
  elseif rule.front then
    rule.waiting = line_ends(rule) - rule.first_rank
  end
  if rule.waiting + rule.turns_ahead == 0 then return end
  -- who came to the line by another policy did not see these turns
  if rule.waiting > 0 and rule.turns_ahead > 0 and cost_of(rule.front) ~= cost_of(rule.turn_front) then rule.mixed = true end
  count_permits(rule)
  if rule.turns_ahead == 0 then return end
  rule.promised_turns = { rule.turn_promised or 0, permits_from(rule, rule.turn_ticket, rule.turns_ahead) }
  if rule.turns_ahead > 1 then
    local m, ticket = at_rank(rule.turns, rule.first_turn_rank + rule.turns_ahead - 1)
    rule.promised_turns[3], rule.promised_turns[4] = promised(rule, m) or 0, permits_from(rule, ticket, 1)
  end
end

-- squeeze adds the cost of one who stands between two whole ROOMs to what such jobs cost in
-- all, in units, or with -1 takes it off
local function squeeze(rule, cost, sign)
  local sum = (mark(rule, SQUEEZED) or PARK_OFFSET) + sign * units_of(rule, cost)
  if sum > PARK_OFFSET then redis.call("ZADD", rule.line, int(sum + PROMISE_OFFSET), SQUEEZED) else redis.call("ZREM", rule.line, SQUEEZED) end
end

local function is_squeezed(ticket)
  return ticket and ticket % ROOM ~= 0
end

-- any_promise says whether any job has a place: in the line, or among the turns of some policy. Beside
-- promises at most seven members have scores from PROMISE_OFFSET on and below the kept tickets: CLOSED, SINCE, MIXED, GRANTED, SQUEEZED, LAST, IN
local function any_promise(rule)
  for _, m in ipairs(redis.call("ZRANGEBYSCORE", rule.line, int(PROMISE_OFFSET), "+inf", "LIMIT", "0", "8")) do
    if string.sub(m, 1, 1) == "@" then return true end
  end
  return false
end

-- leave takes the job out of the line and the turns. The first write needs no memory: a full Redis lets a job leave
local function leave(rule)
  redis.call("ZREM", rule.line, rule.member, "@" .. rule.member, "#" .. rule.member)
  if rule.turns and not rule.no_turns then redis.call("ZREM", rule.turns, rule.member) end
  if is_squeezed(rule.ticket) then squeeze(rule, rule.want, -1) end
  if not rule.marked then return end
  rule.end_rank = nil
  if line_ends(rule) > 0 or any_promise(rule) then return end
  redis.call("ZREM", rule.line, MIXED, SQUEEZED, LAST, IN)
  if rule.closed > 0 then return end
  redis.call("ZREM", rule.line, CLOSED, SINCE) -- the closing is over
  redis.call("PEXPIRE", rule.line, int(life(REFUSED_WITHIN))) -- what is left are tickets of jobs that were granted
end

-- open_line is the first to read a line. It finds until when nothing goes on the key: the key is closed, or its
-- rule is; whether anybody has a place; and what is noted beside promises. What it read of the line is for read_line
local function open_line(rule, now)
  rule.mixed, rule.marked, rule.top = nil, false, nil
  local at, seen = rule.rule_closed, rule.seen
  rule.closed = at > now and at or 0
  if seen and not (seen[rule.line] or seen.some and seen[rule.line] == nil) then -- the script has looked
    rule.nobody = true
    return
  end
  local v = redis.call("ZRANGE", rule.line, "0", "0", "WITHSCORES")
  rule.nobody = not v[1] -- a turn has its promise there
  if rule.nobody and seen then seen[rule.line] = false end
  if not rule.nobody and redis.call("ZCOUNT", rule.line, NOTES_FROM, NOTES_TO) > 0 then -- beside CLOSED there is SINCE
    rule.marked = true
    local u = redis.call("ZMSCORE", rule.line, CLOSED, MIXED)
    at, rule.mixed = max(at, u[1] and u[1] - PROMISE_OFFSET or 0), u[2]
  end
  rule.closed, rule.top = at > now and at or 0, v
end

-- anybody says that somebody waits, late or not
local function anybody(rule)
  return redis.call("ZCOUNT", rule.line, UNPARKED_FROM, TICKETS_TO) > 0
end

-- tell appends to a list that a member may come at an instant: {rule, at, member}.
-- Whoever reads it re-times that job, and takes the place away of one that is gone
local function tell(rule, at, member, promoted)
  promoted[#promoted + 1] = rule.index
  promoted[#promoted + 1] = at
  promoted[#promoted + 1] = member
end

-- sooner tells a job that it may come earlier, if its instant is now before p, which it was promised
local function sooner(rule, now, member, p, promoted)
  local at = earliest(rule, max(now, rule.closed), 0, cost_of(member))
  if (p or 0) - at > 1000 then tell(rule, at, member, promoted) end
end

-- tell_missed tells those who were parked to come: their notice may have been lost with a process,
-- and what they know otherwise may be an instant far ahead
local function tell_missed(rules, now, promoted)
  for _, rule in ipairs(rules) do
    for _, m in ipairs(rule.missed or NONE) do tell(rule, now, m, promoted) end
  end
  return promoted
end

-- with_promotions ends a reply with its promotions: how many jobs may come earlier than they were promised, and
-- of each {rule, at_us, member}, of which the member, "cost:job", is text. Those who were parked for a lease are among them
local function with_promotions(reply, rules, now, promoted)
  tell_missed(rules, now, promoted)
  reply[#reply + 1] = #promoted / 3
  for _, v in ipairs(promoted) do reply[#reply + 1] = v end
  return reply
end

-- promote tells jobs that they may come earlier than promised: the first that waits and, when
-- asked for, the first turn; of leases, see offer. A turn of the call's own job is not told: its caller has an answer, and
-- where a rule in another hash slot holds the job up this rule would tell it to come at once
local function promote(rule, now, promoted, turn_too)
  local member = rule.member
  rule.member = ""
  read_line(rule, now, not (turn_too or rule.kind.lease))
  if rule.kind.lease and #rule.to_park + #rule.dead_turns > 0 then -- or the next call would tell them again
    park(rule)
    read_line(rule, now)
  end
  rule.member = member
  if rule.front and rule.kind.lease then rule.kind.offer(rule, now, promoted) end
  if rule.front and not rule.kind.lease then sooner(rule, now, rule.front, rule.front_promised, promoted) end
  if turn_too and rule.turn_front and rule.turn_front ~= member then sooner(rule, now, rule.turn_front, rule.turn_promised, promoted) end
end

return {
  CLOSED = CLOSED, GRACE = GRACE, GRANTED = GRANTED, GRANTED_FROM = GRANTED_FROM, IN = IN, KEPT_TO = KEPT_TO, LAST = LAST, NOTES_TO = NOTES_TO,
  PARKED_FOR = PARKED_FOR, MIXED = MIXED, NONE = NONE, OFFERED_FOR = OFFERED_FOR, PARK_OFFSET = PARK_OFFSET,
  PARKED_TO = PARKED_TO, ROOM = ROOM, SINCE = SINCE, PROMISE_OFFSET = PROMISE_OFFSET, anybody = anybody, at_rank = at_rank,
  charge_ahead = charge_ahead, cost_of = cost_of, find_ticket = find_ticket, jobs_one_by_one = jobs_one_by_one,
  is_parked = is_parked, kept_score = kept_score, kept_ticket = kept_ticket, is_squeezed = is_squeezed,
  leave = leave, line_ends = line_ends, mark = mark, tell_missed = tell_missed, unparked = unparked, open_line = open_line, park = park, promote = promote,
  count_ahead_of_job = count_ahead_of_job, read_line = read_line, squeeze = squeeze, tell = tell, ticket_before = ticket_before, ticket_behind = ticket_behind,
  promised = promised, with_promotions = with_promotions,
}
