-- acquire.lua: for each of some calls: grant permits of all rules, or book a
-- place in the line of the one that refuses, or refuse. The calls are decided one
-- after another, at one reading of the clock; an error of one is none of the others.
-- Each ledger is read once, when a call needs it first, and written once, when all are decided.
--
-- KEYS[1+] calls      of each: 3 keys a rule, then the turns of each rule when the policy has several, see rulecall.lua; then, with
--                     a gate, its opening, see gate.lua
-- ARGV[1]  calls      how many, 1 to 64
-- ARGV[2+] call       a byte: its form, from 1; 8 bytes: the token of the attempt, and the same token gets the same grant; then the
--                     job: who waits, or nothing for one who never does. Behind all calls come the forms: what calls have in
--                     common, with "|" behind each:
--                     mode       0 try: now or not at all; 1 acquire: grant or book; 2 book: never grant; 3 book in the line of the
--                                widest rates or not at all: not before the other rules admit it
--                     inline_us  how far in the future a grant may lie
--                     max_us     longest wait that makes sense, -1 for any
--                     gate       when work may run, see gate.lua; "" for always
--                     tell       1: how many permits are left, too
--                     turns      1: the policy has several rules
--                     rules      9 of each, see rulecall.lua
-- returns  {now_us, then per call: a number: granted at now, and for so many microseconds the ledger would have admitted it, -1 since ever;
--          -2 failed: ask alone; or {status, part, at_us, from_us, promised_us, fence, turns, then per part: worth, free, then per
--          turn: part, at_us, member}}, integers, but for member, "cost:job", which is text; zeros at the end of a call's may be left out
--          status 0 refused, 1 granted, 2 booked, 3 too late, 4 withdrawn, 5 newer schema, 6 now is not
--          covered, 7 an older limit than the ledger's, which is then in at_us; part is the one that refuses, 0 for the gate

local clock = require("lib/clock")
local kept = require("lib/form")
local rulecall = require("limit/rulecall")
local gate = require("limit/gate")
local decisions = require("limit/decide")
local decide, put_all = decisions.decide, decisions.put_all

local FORM = "^([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|()"

local form_of = kept(function(text)
  local mode, inline, longest, open, tell, turns, from = string.match(text, FORM)
  local form = {
    mode = tonumber(mode), inline = tonumber(inline), longest = tonumber(longest), gate = gate(open), tell = tell == "1", turns = turns == "1",
    rules = rulecall.read_rules(text, from), keys = 0, worthy = false, once = tonumber(longest) > 0,
  }
  form.keys = (form.turns and 4 or 3) * #form.rules + (form.gate and 1 or 0)
  for _, rule in ipairs(form.rules) do form.worthy = form.worthy or rule.kind.worth ~= nil or rule.kind.lease ~= nil end
  return form
end)

-- look_around finds for several calls whether anybody waits in any of their lines, and whether
-- any of their first rules remembers a token
local function look_around(script, forms, keys, args)
  local lines, tokens, k = {}, {}, 0
  for i, form in ipairs(forms) do
    tokens[i] = keys[k + 2]
    for j = 1, #form.rules do lines[#lines + 1] = keys[k + 3 * j] end
    k = k + form.keys
  end
  script.lines = { some = redis.call("EXISTS", unpack(lines)) > 0 }
  script.no_tokens = redis.call("EXISTS", unpack(tokens)) == 0
  if script.no_tokens then return end
  local askers = {} -- the tokens of the calls, by where they are remembered
  for i, key in ipairs(tokens) do
    local list = askers[key]
    if not list then
      list = {}
      askers[key] = list
    end
    list[#list + 1] = string.sub(args[1 + i], 2, 9)
  end
  script.askers = askers
end

return function(keys, args)
  local now, count = clock(), tonumber(args[1])
  -- opened: ledgers by their keys; lines: what is known of each, see line.lua; dirty: ledgers to write
  local script = { now = now, opened = nil, lines = nil, no_tokens = false, askers = nil, dirty = {}, wrote = false, names = {} }
  if count == 1 then
    local call = args[2]
    local answer = decide(script, form_of(args[2 + string.byte(call)]), keys, 0, call)
    put_all(script)
    return { now, answer }
  end

  local forms, replies, k = {}, { now }, 0
  for i = 1, count do forms[i] = form_of(args[1 + count + string.byte(args[1 + i])]) end
  script.opened = {}
  look_around(script, forms, keys, args)
  for i, form in ipairs(forms) do
    local ok, answer = pcall(decide, script, form, keys, k, args[1 + i])
    replies[1 + i] = ok and answer or -2
    k = k + form.keys
  end
  if not pcall(put_all, script) then -- a full Redis: each may be refused by itself, or need no memory
    for i = 1, count do replies[1 + i] = -2 end
  end
  return replies
end
