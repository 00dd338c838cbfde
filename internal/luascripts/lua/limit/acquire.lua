-- acquire.lua: for each of some calls: grant permits of all rules, or book a
-- place in the line of the one that refuses, or refuse. The calls are decided one
-- after another, at one reading of the clock; an error of one is none of the others.
--
-- KEYS[1+] calls      of each: 3 keys a part, then the turns of each part when the policy has several rules, see rulecall.lua; then, with
--                     a gate, its opening, see gate.lua
-- ARGV[1]  calls      how many, 1 to 64
-- ARGV[2+] call       a byte: its form, from 1; 8 bytes: the token of the attempt, and the same token gets the same grant; then the
--                     job: who waits, or nothing for one who never does. Behind all calls come the forms: what calls have in common:
--                     "o" when the way of one.lua may be taken, "r" when that of ring.lua, else "-"; a digit, the mode; for "o" and "r"
--                     numbers of 7, 7, 3, 3, 7 and 7 bytes, of the one part version, window, permits and cost, then inline_us and
--                     1 + max_us; then, each with "|" behind it
--                     count      how many parts, 1 to 16
--                     mode       0 try: now or not at all; 1 acquire: grant or book; 2 book: never grant; 3 book in the line of the
--                                widest rates or not at all: not before the other rules admit it
--                     inline_us  how far in the future a grant may lie
--                     max_us     longest wait that makes sense, -1 for any
--                     gate       when work may run, see gate.lua; "" for always
--                     tell       1: how many permits are left, too
--                     turns      1: the policy has several rules
--                     parts      9 of each, see rulecall.lua
-- returns  {now_us, then per call: a number: granted at now, and for so many microseconds the ledger would have admitted it, -1 since ever;
--          -2 failed: ask alone; or {status, part, at_us, from_us, promised_us, fence, turns, then per part: worth, free, then per
--          turn: part, at_us, member}}, integers, but for member, "cost:job", which is text; zeros at the end of a call's may be left out
--          status 0 refused, 1 granted, 2 booked, 3 too late, 4 withdrawn, 5 newer schema, 6 now is not
--          covered, 7 an older limit than the ledger's, which is then in at_us; part is the one that refuses, 0 for the gate

local clock = require("lib/clock")
local lone = require("limit/lone")

return function(keys, args)
  local now, told = clock()

  -- a call that comes alone takes a short way before there is anything else
  local form = args[1] == "1" and args[2 + 1]
  if form then
    local token, answer = string.sub(args[2], 2, 9), nil
    if string.byte(form) ~= 45 then
      answer = lone(keys, form, token, now, told)
    else
      local by_two = require("limit/pair")
      local rules = by_two.pair_of(form)
      answer = rules and by_two.pair(keys, rules, 0, token, string.sub(args[2], 10), now)
    end
    if answer then return { now, answer } end
  end
  return require("limit/several")(keys, args, tonumber(args[1]), now)
end
