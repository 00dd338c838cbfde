-- acquire.lua: for each of some calls: grant permits of all rules, or book a
-- place in the line of the one that refuses, or refuse. The calls are decided one
-- after another, at one reading of the clock; an error of one is none of the others.
-- decide.lua reads each ledger once, when a call needs it first, and writes it when all are decided, but for: the first grant
-- that takes a job out of a line (see charge), those of shortcut.lua, and a ledger that is read again under other numbers.
--
-- KEYS[1+] calls      of each: 3 keys a rule, then the turns of each rule when the policy has several, see rulecall.lua; then, with
--                     a gate, its opening, see gate.lua. A call that comes alone may have two more keys a rule: the stored limit, see
--                     setlimit.lua, and the closing, see closerule.lua
-- ARGV[1]  calls      how many, 1 to 64
-- ARGV[2+] call       a byte: its template, from 1; 8 bytes: the token of the ask, and the same token gets the same grant; then the
--                     job that waits, or nothing for a caller that never waits. Behind all calls come the templates: what calls have in
--                     common, each field with "|" after it:
--                     mode       0 TRY: now or not at all; 1 GRANT_OR_BOOK; 2 BOOK: never grant; 3 BOOK_LAST_RULE: book in the line of
--                                the widest rates or not at all, and not before the other rules admit it; 4 ANEW: let the grant of the
--                                token count from now on. When that is refused, or no such grant is known, it stays as it is. Comes alone
--                     inline_us  how far in the future a grant may lie
--                     max_us     longest wait that makes sense, -1 for any
--                     gate       when work may run, see gate.lua; "" for always
--                     want_left  1: how many permits are left, too
--                     turns      1: the policy has several rules
--                     later      1: some of them are in a later hash slot, which may refuse what is granted here
--                     hold       1: not while permits may count that this server has not heard of, see server.lua
--                     wait       1: a WAIT comes after the call
--                     rules      9 of each, see rulecall.lua
--                     Behind the template of a call with stored limits come for each rule the versions of the limit and of the closing, as
--                     the caller knows them, 0 for none. Where another is stored the answer is 7, without a version
-- returns  {now_us, then the answer to each call}, integers, but for a member, "cost:job", which is text. An answer is one of
--            n from 0 on    granted at now; the ledger would have admitted it n microseconds ago
--            -1             granted at now, and nothing had been spent
--            -2             failed: ask alone
--            {status, rule, at_us, from_us, promised_us, fence, promoted, then per rule: worth, left, then per promotion: rule, at_us,
--                           member}; zeros at its end may be left out
--          status 0 refused, 1 granted, 2 booked, 3 too late, 4 withdrawn, 5 to 8 see ledger.lua, the
--          version of 7 is then in at_us; rule is the one that refuses, 0 for the gate

local clock = require("lib/clock")
local memo = require("lib/memo")
local numbers = require("lib/numbers")
local complete_since = require("lib/server").since
local rulecall = require("limit/rulecall")
local gate = require("limit/gate")
local decisions = require("limit/decide")
local shortcut = require("limit/shortcut")
local RESENT_WITHIN = numbers.RESENT_WITHIN
local counts_until = rulecall.counts_until
local ANEW, BOOK, decide, put_all = decisions.ANEW, decisions.BOOK, decisions.decide, decisions.put_all

local call, byte, sub, match, ceil, max = redis.call, string.byte, string.sub, string.match, math.ceil, math.max
local TEMPLATE = "^([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|()"

-- close_after_failover closes the rules of a template until what this server may have forgotten has stopped to count.
-- Where nobody can say how long that is, the template has a text in `failover_fault`, and its calls fail
local function close_after_failover(template, now)
  local since, fault = complete_since(now)
  template.failover_fault = fault
  if fault then
    template.short = false
    return
  end
  local any_closed = false
  for i, rule in ipairs(template.rules) do
    local opens = counts_until(rule, since)
    any_closed = any_closed or opens > now
    rule.rule_closed = max(template.closings[i], opens)
  end
  template.short = template.may_be_short and not any_closed
end

-- A template is what calls share. Beside what the text says it has:
--   keys                 how many keys a call has
--   later                true when a later hash slot may refuse what is granted here
--   worthy               true when an answer says what a permit is worth
--   first_grants         true when a key without a ledger is granted by one write of its kind
--   may_be_short         true when shortcut.lua may answer; short: and nothing is closed now, see close_after_failover
--   closings             until when each rule is closed, as the text says
--   hold_after_failover  true when nothing is granted while permits may count that this server has not heard of
--   replicated           true when a WAIT comes after the call
--   failover_fault       why nobody can tell until when the rules are to be closed
--   once                 true when a text like this hardly comes again, see memo.lua
local read_template = memo(function(text)
  local mode, inline, longest, open, want_left, turns, later, hold, wait, rules_start = match(text, TEMPLATE)
  local template = {
    mode = tonumber(mode), inline = tonumber(inline), longest = tonumber(longest), gate = gate(open), want_left = want_left == "1",
    turns = turns == "1", later = later == "1", hold_after_failover = hold == "1", replicated = wait == "1",
    rules = rulecall.read_rules(text, rules_start), keys = 0, worthy = false, short = false, may_be_short = false, closings = {}, failover_fault = nil,
    first_grants = false, once = tonumber(longest) > 0 or tonumber(mode) == ANEW,
  }
  template.keys = (template.turns and 4 or 3) * #template.rules + (template.gate and 1 or 0)
  for _, rule in ipairs(template.rules) do template.worthy = template.worthy or rule.kind.worth ~= nil or rule.kind.lease ~= nil end
  local first = template.rules[1]
  template.first_grants = first.kind.first_grant and first.want == 1 and first.W >= RESENT_WITHIN -- its first token is in the ledger alone
  template.may_be_short = #template.rules == 1 and template.mode < BOOK and first.rule_closed == 0
    and not (template.gate or template.want_left or first.kind.lease)
  template.short = template.may_be_short
  for i, rule in ipairs(template.rules) do template.closings[i] = rule.rule_closed end
  return template
end)

local function template_of(text, now)
  local template = read_template(text)
  if template.hold_after_failover then close_after_failover(template, now) end
  return template
end

-- check_keys_of_all finds for several calls whether anybody waits in any of their lines, whether
-- any of their first rules remembers a token, and whether any of these has a ledger
local function check_keys_of_all(script, templates, keys)
  local lines, tokens, ledgers, k, n, before = {}, {}, {}, 0, 0, nil
  for _, template in ipairs(templates) do
    local key = keys[k + 1]
    if key ~= before then
      n = n + 1
      ledgers[n], tokens[n] = key, keys[k + 2]
    end
    if key ~= before or #template.rules > 1 then
      for j = 1, #template.rules do lines[#lines + 1] = keys[k + 3 * j] end
    end
    k, before = k + template.keys, key
  end
  script.lines = { some = call("EXISTS", unpack(lines)) > 0 }
  script.no_tokens = call("EXISTS", unpack(tokens)) == 0
  script.fresh = script.no_tokens and templates[1].short and call("EXISTS", unpack(ledgers)) == 0
end

-- ask_tokens finds which tokens of several calls may be remembered in which set
local function ask_tokens(templates, keys, args)
  local askers, k = {}, 0
  for i, template in ipairs(templates) do
    local list = askers[keys[k + 2]]
    if not list then
      list = {}
      askers[keys[k + 2]] = list
    end
    list[#list + 1] = sub(args[1 + i], 2, 9)
    k = k + template.keys
  end
  return askers
end

-- last_alike is the last of the calls from i on that are of its template and on its key
local function last_alike(templates, keys, k, i)
  local last, template = i, templates[i]
  while templates[last + 1] == template and keys[k + template.keys * (last + 1 - i) + 1] == keys[k + 1] do last = last + 1 end
  return last
end

-- repeats: ledgers of grants that were made before; opened: ledgers by their keys; lines: `some` says that a line of the script
-- may have somebody, and lines[key] of one line whether it has, nil when it was not looked at yet; dirty: ledgers to write; fresh: no
-- call has a ledger or tokens, but for those of granted
local function new_script(now)
  return {
    now = now, repeats = nil, opened = nil, lines = nil, no_tokens = false, askers = nil, dirty = {}, wrote = false, names = {},
    fresh = false, granted = {},
  }
end

-- changed is the first rule whose stored limit or closing is not the one that the caller knows; nil for none
local function changed(keys, args, template)
  for i = 1, #keys - template.keys do
    local stored = call("GET", keys[template.keys + i])
    local version = stored and (match(stored, "^[1-9]%d*") or "unreadable") or "0"
    if version ~= args[3 + i] then return ceil(i / 2) end
  end
end

-- touch writes the ledgers of grants that were made before, so that a WAIT after this script waits until replicas
-- have them. It comes last: to touch needs no memory, and a full Redis refuses only what a script writes first
local function touch(script)
  for _, key in ipairs(script.repeats or {}) do
    local left = call("PTTL", key)
    if left > 0 then call("PEXPIRE", key, numbers.int(left)) end
  end
end

local alone = { now = 0, no_tokens = false, fresh = false, granted = {}, replies = { 0 } } -- of each call that comes alone: a table costs as much as a command

-- answer_one answers a call that comes alone
local function answer_one(now, keys, args)
  local template = template_of(args[2 + byte(args[2])], now)
  if #keys > template.keys then
    local index = changed(keys, args, template)
    if index then return { now, { 7, index } } end
    keys = { unpack(keys, 1, template.keys) }
  end
  if template.short then
    local script, replies = alone, alone.replies
    local existing = template.rules[1].n == 1 and call("EXISTS", unpack(keys)) or #keys -- most keys of one permit are fresh
    script.now, script.fresh, script.no_tokens = now, existing == 0, existing == 0
    if shortcut(script, template, keys, 0, args, 1, 1, replies, existing) > 1 then return { now, replies[1] } end
  end
  local script = new_script(now)
  local answer = decide(script, template, keys, 0, args[2])
  put_all(script)
  touch(script)
  return { now, answer }
end

-- answer_all answers several calls, in their order
local function answer_all(script, templates, keys, args)
  local answers, i, k, count = {}, 1, 0, #templates
  while i <= count do
    local template, last, next = templates[i], i, i
    if template.short then
      last = last_alike(templates, keys, k, i)
      if not script.lines.some and not script.opened[keys[k + 1]] then
        local ok, from = pcall(shortcut, script, template, keys, k, args, i, last, answers)
        next = ok and from or last + 1
        if not ok then
          for n = i, last do answers[n] = -2 end
        end
      end
      k = k + template.keys * (next - i)
    end
    if next > i then
      i = next
    else
      script.fresh = false
      if not script.no_tokens and not script.askers then script.askers = ask_tokens(templates, keys, args) end
      while i <= last do
        local ok, answer = pcall(decide, script, template, keys, k, args[1 + i])
        answers[i] = ok and answer or -2
        i, k = i + 1, k + template.keys
      end
    end
  end
  return answers
end

return function(keys, args)
  local now, count = clock(), tonumber(args[1])
  if count == 1 then return answer_one(now, keys, args) end

  local script, templates = new_script(now), {}
  for i = 1, count do templates[i] = template_of(args[1 + count + byte(args[1 + i])], now) end
  script.opened = {}
  check_keys_of_all(script, templates, keys)
  local answers = answer_all(script, templates, keys, args)
  if not pcall(put_all, script) then -- a full Redis: each may be refused by itself, or need no memory
    for i = 1, count do answers[i] = -2 end
  end
  touch(script)
  table.insert(answers, 1, now)
  return answers
end
