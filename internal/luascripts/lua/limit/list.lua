-- list.lua: one portion of a key's line in its order, those first who came too late, without changing it.
--
-- KEYS[1]  ledger     string, see ledger.lua
-- KEYS[2]  tokens     sorted set, see tokens.lua
-- KEYS[3]  line       sorted set, see line.lua
-- ARGV[1]  kind       the limit's algorithm, see ledger.lua
-- ARGV[2]  n          permits per window, >= 1
-- ARGV[3]  window_us  length of the window, >= 1000
-- ARGV[4]  more       what only some algorithms have
-- ARGV[5]  version    of the limit, 0 when it is the one in code
-- ARGV[6]  closed_us  until when the rule is closed on all keys, 0 when it is not
-- ARGV[7]  from       first ticket to list, empty for all
-- ARGV[8]  skip       how many of that very ticket were seen, >= 0
-- ARGV[9]  most       how many to list, 1 to 250
-- ARGV[10] hold       1: nothing goes while permits may count that this server has not heard of, see server.lua; else 0
-- returns  {status, now_us, newer, all, listed, then per booking: at_us, job, cost, parked 0|1, ticket}; at_us of one who is parked
--          is the instant that it missed
--          status 1 known, 5 to 8 see ledger.lua, newer is that of 7; integers, but for job, which is text

local clock = require("lib/clock")
local ledger = require("limit/ledger")
local line = require("limit/line")
local rulecall = require("limit/rulecall")
local max, min = math.max, math.min
local limit_of, open = ledger.limit_of, ledger.open
local hold_after_failover, rule_on = rulecall.hold_after_failover, rulecall.rule_on
local cost_of, promised = line.cost_of, line.promised
local charge_ahead, jobs_one_by_one, line_ends, read_line, open_line, count_ahead_of_job =
  line.charge_ahead, line.jobs_one_by_one, line.line_ends, line.read_line, line.open_line, line.count_ahead_of_job

return function(keys, args)
  local first, skip, most = args[7], tonumber(args[8]), tonumber(args[9])

  local now = clock()
  local rule = rule_on(keys[1], keys[2], keys[3], limit_of(args[1], args[2], args[3], args[4], args[5]), "1", args[6], now)
  local status, newer = open(rule, now)
  if status then return { status, now, newer, 0, 0 } end
  open_line(rule, now)
  if args[10] == "1" then hold_after_failover({ rule }, now) end
  read_line(rule, now)
  local from = max(now, rule.closed)
  local index = 0
  if first ~= "" then -- of those who were seen some may have gone
    index = redis.call("ZCOUNT", rule.line, "-inf", "(" .. first) + min(skip, redis.call("ZCOUNT", rule.line, first, first))
  end
  local ends = min(index + most, line_ends(rule))
  local v = index < ends and redis.call("ZRANGE", rule.line, index, ends - 1, "WITHSCORES") or {}
  local reply = { 1, now, 0, rule.end_rank, #v / 2 }

  local goes
  for i = 1, #v, 2 do
    local m, ticket, parked = v[i], tonumber(v[i + 1]), index < rule.first_rank
    local at
    if parked then
      at = promised(rule, m) or 0
    else
      if not goes then
        rule.member, rule.ticket = m, ticket
        count_ahead_of_job(rule)
        goes = jobs_one_by_one(rule, from, charge_ahead(rule, from))
      end
      at = goes(cost_of(m))
    end
    reply[#reply + 1] = at
    reply[#reply + 1] = string.match(m, ":(.*)$")
    reply[#reply + 1] = cost_of(m)
    reply[#reply + 1] = parked and 1 or 0
    reply[#reply + 1] = ticket
    index = index + 1
  end
  return reply
end
