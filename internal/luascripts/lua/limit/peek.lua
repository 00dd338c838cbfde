-- peek.lua: what a key looks like, without changing it; who is late is not in the line.
--
-- KEYS[1]  ledger     string, see ledger.lua
-- KEYS[2]  tokens     sorted set, see tokens.lua
-- KEYS[3]  line       sorted set, see line.lua
-- ARGV[1]  kind       the limit's algorithm, see ledger.lua
-- ARGV[2]  n          permits per window, >= 1
-- ARGV[3]  window_us  length of the window, >= 1000
-- ARGV[4]  more       what only some algorithms have
-- ARGV[5]  version    of the limit, 0 when it is the one in code
-- ARGV[6]  cost       permits of the newcomer whose instant is asked for, >= 1
-- ARGV[7]  most       how many of the line to list, 0 to 250
-- ARGV[8]  closed_us  until when the rule is closed on all keys, 0 when it is not
-- ARGV[9]  spent      how many of the newest grants to list, 0 to 250
-- ARGV[10] hold       1: nothing goes while permits may count that this server has not heard of, see server.lua; else 0
-- returns  {status, now_us, free, next_us, life_ms, closed_us, own_us, held_us, waiting, listed, spent, then per booking: at_us, job,
--          cost, and per grant, the newest first: at_us, permits}; of a kind that only counts, at_us is the last of so many; of a lease it
--          is its end. closed_us is until when the key or its rule is closed, own_us until when the key itself is; held_us is until when
--          a job of this cost is held, -1 when nobody knows it; each is 0 for not
--          status 1 known, 5 to 8 see ledger.lua, the version of 7 is in next_us; integers, but for job, which is text

local clock = require("lib/clock")
local ledger = require("limit/ledger")
local line = require("limit/line")
local rulecall = require("limit/rulecall")
local max, min = math.max, math.min
local free, limit_of, open, spent = ledger.free, ledger.limit_of, ledger.open, ledger.spent
local hold_after_failover, rule_on = rulecall.hold_after_failover, rulecall.rule_on
local CLOSED, cost_of, mark = line.CLOSED, line.cost_of, line.mark
local charge_ahead, find_ticket, jobs_one_by_one, line_ends, read_line, open_line, count_ahead_of_job =
  line.charge_ahead, line.find_ticket, line.jobs_one_by_one, line.line_ends, line.read_line, line.open_line, line.count_ahead_of_job

return function(keys, args)
  local most = tonumber(args[7])

  local now = clock()
  local rule = rule_on(keys[1], keys[2], keys[3], limit_of(args[1], args[2], args[3], args[4], args[5]), args[6], args[8], now)
  local status, newer = open(rule, now)
  if status then return { status, now, 0, newer, 0, 0, 0, 0, 0, 0, 0 } end
  open_line(rule, now)
  local closed, own = rule.closed, rule.marked and mark(rule, CLOSED) or 0
  local held = args[10] == "1" and hold_after_failover({ rule }, now)[1] or 0
  read_line(rule, now)
  find_ticket(rule)
  count_ahead_of_job(rule)
  local waiting = line_ends(rule) - rule.first_rank
  local known_ms = max(0, redis.call("PTTL", rule.key))
  local none = waiting > 0 or rule.closed > 0
  local from = max(now, rule.closed)
  local next_us = jobs_one_by_one(rule, from, charge_ahead(rule, from))(rule.want)
  local reply = { 1, now, none and 0 or free(rule, now), next_us, known_ms, closed, own > now and own or 0, held, waiting, 0, 0 }

  local many = min(most, waiting)
  local members = many > 0 and redis.call("ZRANGE", rule.line, rule.first_rank, rule.first_rank + many - 1) or {}
  rule.costs = nil
  local goes = jobs_one_by_one(rule, from, rule.ledger, 0)
  for _, m in ipairs(members) do
    reply[#reply + 1] = goes(cost_of(m))
    reply[#reply + 1] = string.match(m, ":(.*)$")
    reply[#reply + 1] = cost_of(m)
  end
  reply[10] = #members
  local grants = spent(rule, now, tonumber(args[9]))
  for i = 1, #grants do reply[#reply + 1] = grants[i] end
  reply[11] = #grants / 2
  return reply
end
