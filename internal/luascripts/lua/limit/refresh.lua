-- refresh.lua: the current instants of some bookings, which become their last promises.
-- They are answered one after another, at one reading of the clock; an error of one is
-- none of the others.
--
-- KEYS[1+] rules      of each booking: 3 of each rule, then the turns of each when the policy has several rules, see rulecall.lua
-- ARGV[1]  bookings   how many, 1 to 8
-- ARGV[2]  hold       1: nothing goes while permits may count that this server has not heard of, see server.lua; else 0
-- ARGV[3]  text       of the rules, see rulecall.lua: those of all bookings, which differ in nothing but keys
-- ARGV[4+] jobs       of each: who waits
-- returns  {now_us, then per booking: {status, rule, at_us, before, promotions}}, integers; see with_promotions in line.lua; before counts
--          the permits ahead of it in the line of the rule by which it waits; promotions are of lines that it left, and of leases
--          status 0 unknown, 2 booked, 5 to 8 see ledger.lua, the version of 7 is in at_us, -1 failed: ask alone

local clock = require("lib/clock")
local ledger = require("limit/ledger")
local line = require("limit/line")
local rulecall = require("limit/rulecall")
local places = require("limit/places")
local outlive = ledger.outlive
local park, with_promotions = line.park, line.with_promotions
local find_place, hold_after_failover, promote_in_lines_left, open_rules, rules_at =
  rulecall.find_place, rulecall.hold_after_failover, rulecall.promote_in_lines_left, rulecall.open_rules, rulecall.rules_at
local take_places, ALL_TURNS, HELD_TURNS = places.take_places, places.ALL_TURNS, places.HELD_TURNS

return function(keys, args)
  local bookings = tonumber(args[1])

  local now = clock()
  local width = #keys / bookings

  -- An instant that is past is not promised anew: the job shall see how late it is. A job that a narrower
  -- rule holds up now gets its place there, and is parked in the wider lines. A parked job gets its place in
  -- the line again: nobody would tell it otherwise that it may come earlier. Of a job that waits for a lease this script
  -- does not know whether the gate is closed when the lease ends. Then decide.lua gave it no turns, and it gets none here
  local function refresh(i)
    local rules = rules_at(args[3], keys, width * (i - 1), width, args[3 + i], now)
    local failed, which, newer = open_rules(rules, now)
    if failed then return { failed, which, newer, 0, 0 } end
    if args[2] == "1" then hold_after_failover(rules, now) end
    local place, at, delayed_by = find_place(rules, now)
    if not place then return { 0, 0, 0, 0, 0 } end

    local promoted = {}
    local moves = at > now
    local waits_at = moves and take_places(rules, delayed_by, at, now, rules[delayed_by].kind.lease and HELD_TURNS or ALL_TURNS)
    for _, rule in ipairs(rules) do
      park(rule)
      outlive(rule, now)
    end
    if moves then promoted = promote_in_lines_left(rules, waits_at, now) end
    return with_promotions({ 2, at > now and delayed_by or place, at, rules[place].ahead }, rules, now, promoted)
  end

  if bookings == 1 then return { now, refresh(1) } end
  local replies = { now }
  for i = 1, bookings do
    local ok, reply = pcall(refresh, i)
    replies[1 + i] = ok and reply or { -1, 0, 0, 0, 0 }
  end
  return replies
end
