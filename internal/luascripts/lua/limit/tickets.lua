-- tickets.lua: the scores of a line and of turns, see line.lua, and one look at one of the members.

local MIXED, CLOSED = "mixed", "closed"
local SINCE, LAST, IN, SQUEEZED = "closed since", "put off last", "put off in", "squeezed"
local TOLD, WAITING = 2251799813685248, "(2251799813685248" -- above all tickets; those below
local GRACE = 100000 -- how long after its last promise a head keeps its place
local OFFERED = 900000 -- how long, with GRACE, a lease that is free is kept for those to whom it is offered
local LATE = 3600000000 -- how long it stays parked
local PARK = 4503599627370496
local ROOM = 4096 -- tickets a permit: between two places there is room for those who are put off, see close.lua
local PARKED, LIVE = "(-2251799813685248", "-2251799813685248" -- below and above
local NOTED = "6755399441055744" -- PARK + TOLD: from here on stands what is noted of a key, but for when it opens

local function cost_of(member)
  return tonumber(string.match(member, "^%d+"))
end

local function is_parked(ticket)
  return ticket < -PARK / 2
end

-- normal is the ticket without the mark of one who is parked
local function normal(ticket)
  return is_parked(ticket) and ticket + PARK or ticket
end

-- first_of is the member that was read first and its ticket, nil when it does not wait
local function first_of(v)
  local ticket = tonumber(v[2])
  if ticket and ticket < TOLD then return v[1], ticket end
end

-- at_rank is the member at a rank and its ticket, nil where none waits
local function at_rank(set, rank)
  return first_of(redis.call("ZRANGE", set, rank, rank, "WITHSCORES"))
end

-- mark is a member that does not wait, without TOLD
local function mark(rule, name)
  local v = redis.call("ZSCORE", rule.line, name)
  return v and v - TOLD or nil
end

local function told(rule, member)
  return mark(rule, "@" .. member)
end

-- in_time says that a member who was told p keeps its place although it did not come yet
local function in_time(rule, member, p, now)
  return member == rule.me or (p and p + GRACE >= now)
end

return {
  CLOSED = CLOSED, GRACE = GRACE, IN = IN, LAST = LAST, LATE = LATE, LIVE = LIVE, MIXED = MIXED, NOTED = NOTED, OFFERED = OFFERED, PARK = PARK, PARKED = PARKED,
  ROOM = ROOM, SINCE = SINCE, SQUEEZED = SQUEEZED, TOLD = TOLD, WAITING = WAITING, at_rank = at_rank, cost_of = cost_of, first_of = first_of,
  in_time = in_time, is_parked = is_parked, mark = mark, normal = normal, told = told,
}
