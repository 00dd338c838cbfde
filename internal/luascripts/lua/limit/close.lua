-- close.lua: nothing goes on a key until an instant, or again.
--
-- KEYS[1+] rules      3 of each, then the turns of each when the policy has several, see rulecall.lua
-- ARGV[1]  text       of the rules, see rulecall.lua
-- ARGV[2]  job        who goes first once it is open, or ""
-- ARGV[3]  for_us     how long from now on; 0 opens it
-- ARGV[4]  rule       the rule that is closed: those before are narrower or share its key, those after it share its key
-- returns  {status, rule, now_us, until_us, version, promotions}, integers; see with_promotions in line.lua
--          status 1 done, 5 to 8 see ledger.lua, the version is that of 7; rule is the one that can't be read
--
-- A job that is postponed goes first once the key is open: behind the jobs that were postponed
-- before it in the same closing, and before all others. Their tickets count up by 1.
-- These notes stand in the set `line`, with PARK_OFFSET and PROMISE_OFFSET added, see line.lua:
--
--   SINCE       from when on the key is closed
--   LAST, IN    the ticket of the job that was postponed last, and when that closing began
--   SQUEEZED    what the jobs cost, in units, that stand between two whole ROOMs

local clock = require("lib/clock")
local numbers = require("lib/numbers")
local line = require("limit/line")
local rulecall = require("limit/rulecall")
local places = require("limit/places")
local floor, max, min = math.floor, math.max, math.min
local int, live = numbers.int, numbers.live
local CLOSED, IN, LAST, SINCE, PARK_OFFSET, PROMISE_OFFSET, ROOM, mark =
  line.CLOSED, line.IN, line.LAST, line.SINCE, line.PARK_OFFSET, line.PROMISE_OFFSET, line.ROOM, line.mark
local find_ticket, is_squeezed, read_line, open_line, promote, squeeze, with_promotions =
  line.find_ticket, line.is_squeezed, line.read_line, line.open_line, line.promote, line.squeeze, line.with_promotions
local open_rules, rules_at = rulecall.open_rules, rulecall.rules_at
local first_ticket, join_at = places.first_ticket, places.join_at

return function(keys, args)
  local job, span, closes = args[2], tonumber(args[3]), tonumber(args[4])

  local now = clock()
  local rules = rules_at(args[1], keys, 0, #keys, job, now)
  local failed, which, newer = open_rules(rules, now)
  if failed then return { failed, which, now, 0, newer, 0 } end
  local closed_rule, until_us, promoted = rules[closes], 0, {}

  -- postpone gives the job the ticket behind the job that was postponed last in this closing; were they
  -- so many that there is no room left, that of the last
  local function postpone(rule, since)
    local ticket = first_ticket(rule)
    local v = redis.call("ZMSCORE", rule.line, LAST, IN)
    local last = v[1] and v[1] - PROMISE_OFFSET - PARK_OFFSET
    if last and v[2] and v[2] - PROMISE_OFFSET == since and last >= ticket then
      ticket = min(last + 1, (floor(last / ROOM) + 1) * ROOM - 1)
      if is_squeezed(ticket) then squeeze(rule, rule.want, 1) end
    end
    redis.call("ZADD", rule.line, int(ticket + PARK_OFFSET + PROMISE_OFFSET), LAST, int(since + PROMISE_OFFSET), IN)
    return ticket
  end

  if span > 0 then
    local before = mark(closed_rule, CLOSED) or 0
    local since = before > now and mark(closed_rule, SINCE) or now + PARK_OFFSET
    until_us = max(before, now + span)
    redis.call("ZADD", closed_rule.line, int(until_us + PROMISE_OFFSET), CLOSED, int(since + PROMISE_OFFSET), SINCE)
    live(closed_rule.line, until_us - now + 1000000)
    for _, rule in ipairs(rules) do
      read_line(rule, now)
      find_ticket(rule)
    end
    if job ~= "" and not closed_rule.ticket then
      for i, rule in ipairs(rules) do -- first in all of them: an order that differs between rules would never end
        if not rule.ticket then join_at(rule, i == closes and rule.line or rule.turns, postpone(rule, since), until_us, now, false) end
      end
    end
  else
    redis.call("ZREM", closed_rule.line, CLOSED, SINCE)
    open_line(closed_rule, now)
    promote(closed_rule, now, promoted, true)
  end
  return with_promotions({ 1, 0, now, until_us, 0 }, rules, now, promoted)
end
