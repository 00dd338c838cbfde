-- acquire.lua: for each of some calls: grant permits of all rules, or book a
-- place in the line of the one that refuses, or refuse. The calls are decided one
-- after another, at one reading of the clock; an error of one is none of the others.
--
-- KEYS[1+] calls      of each: 3 keys a part, then the turns of each part when the policy has several rules, see parts.lua; then, with
--                     a gate, its opening, see gate.lua
-- ARGV[1]  calls      how many, 1 to 64
-- ARGV[2+] call       a byte: its form, from 1; 8 bytes: the token of the attempt, and the same token gets the same grant; then the
--                     job: who waits, or nothing for one who never does. Behind all calls come the forms: what calls have in common:
--                     "o" when the way of one.lua may be taken, "r" when that of ring.lua, else "-"; a digit, the mode; 7 bytes, the
--                     version, and text up to "|", the window, both of the first part; then, each with "|" behind it
--                     count      how many parts, 1 to 16
--                     mode       0 try: now or not at all; 1 acquire: grant or book; 2 book: never grant; 3 book in the line of the
--                                widest rates or not at all: not before the other rules admit it
--                     inline_us  how far in the future a grant may lie
--                     max_us     longest wait that makes sense, -1 for any
--                     gate       when work may run, see gate.lua; "" for always
--                     tell       1: how many permits are left, too
--                     turns      1: the policy has several rules
--                     parts      9 of each, see parts.lua
-- returns  {now_us, then per call: a number: granted at now, and for so many microseconds the ledger would have admitted it, -1 since ever;
--          -2 failed: ask alone; or {status, part, at_us, from_us, promised_us, fence, turns, then per part: worth, free, then per
--          turn: part, at_us, job}}, integers, but for job, which is text; zeros at the end of a call's may be left out
--          status 0 refused, 1 granted, 2 booked, 3 too late, 4 withdrawn, 5 newer schema, 6 now is not
--          covered, 7 an older limit than the ledger's, which is then in at_us; part is the one that refuses, 0 for the gate
local calls, now = tonumber(ARGV[1]), clock()

-- form is what the calls of a form have in common; most of it is read when it is needed
local function form(text)
  local way = string.byte(text)
  return { text = text, one = way == 111, ring = way ~= 45, mode = string.byte(text, 2) - 48 }
end

local function read(F)
  local fields = {}
  for v in string.gmatch(string.sub(F.text, string.find(F.text, "|", 10, true) + 1), "([^|]*)|") do fields[#fields + 1] = v end
  local count = tonumber(fields[1])
  F.fields, F.count, F.parts, F.inline, F.longest, F.gate = fields, count, 8, tonumber(fields[3]), tonumber(fields[4]), fields[5]
  F.tell, F.turns, F.want = fields[6] == "1", fields[7] == "1", tonumber(fields[13])
  F.keys = 3 * count + (F.turns and count or 0) + (F.gate ~= "" and 1 or 0)
  F.short = count == 1 and F.mode < 2 and F.gate == "" and not F.turns and fields[8] ~= "k" and tonumber(fields[15]) <= now
end

local forms, replies, run, rules, admit = {}, {}, nil, nil, nil

-- long and short answer calls; short tells from which on it did not
local function long(F, k, i)
  if not run then run, rules = ledgers() end
  admit = admit or rules()
  local call = ARGV[1 + i]
  replies[i] = admit(F, k, string.sub(call, 2, 9), string.sub(call, 10), now)
end

local function short(F, k, i, last)
  if F.ring then return ring(F, k, i, last, now, replies) end
  if not run then run, rules = ledgers() end
  return run(F, k, i, last, now, replies)
end

-- alone an error is the answer; of one among others it is that of no other
local function safely(f, F, k, i, last)
  if calls == 1 then return true, f(F, k, i, last) end
  return pcall(f, F, k, i, last)
end

local i, k = 1, 0
while i <= calls do
  local byte = string.byte(ARGV[1 + i])
  local F, last = forms[byte] or form(ARGV[1 + calls + byte]), i
  forms[byte] = F
  local ok, answer, only = true, nil, F.one and (i == calls or KEYS[k + 4] ~= KEYS[k + 1])
  if only then ok, answer = safely(one, F, k, string.sub(ARGV[1 + i], 2, 9), now) end
  if answer or not ok then
    replies[i] = ok and answer or -2
    i, k = i + 1, k + 3
  else
    if not F.ring and not F.fields then read(F) end
    if (F.ring or F.short) and not only then -- what one left is for the long way
      while last < calls and string.byte(ARGV[2 + last]) == byte and KEYS[3 * (last - i + 1) + k + 1] == KEYS[k + 1] do last = last + 1 end
      ok, answer = safely(short, F, k, i, last)
      for n = i, ok and 0 or last do replies[n] = -2 end
      if not ok then answer = last + 1 end
      k = k + (F.ring and 3 or F.keys) * (answer - i)
      i = answer
    end
    if i <= last and not F.fields then read(F) end
    while i <= last do
      if not safely(long, F, k, i) then replies[i] = -2 end
      i, k = i + 1, k + F.keys
    end
  end
end
table.insert(replies, 1, now)
return replies
