-- decide.lua: one call of acquire.lua, by all rules of its policy, with those who wait.

local numbers = require("lib/numbers")
local ledger = require("limit/ledger")
local line = require("limit/line")
local tokens = require("limit/tokens")
local rulecall = require("limit/rulecall")
local places = require("limit/places")
local max = math.max
local free, outlive, earliest, worth = ledger.free, ledger.outlive, ledger.earliest, ledger.worth
local RESENT_WITHIN, NONE, OFFERED_FOR = numbers.RESENT_WITHIN, line.NONE, line.OFFERED_FOR
local anybody, leave, tell_missed, open_line, promote, park, promised =
  line.anybody, line.leave, line.tell_missed, line.open_line, line.promote, line.park, line.promised
local admits_anew, granted, held_at, put, spend, take_out =
  tokens.admits_anew, tokens.granted, tokens.held_at, tokens.put, tokens.spend, tokens.take_out
local joint, last_of_group, promote_in_lines_left, find_and_measure, open_rule, set_job, set_keys =
  rulecall.joint, rulecall.last_of_group, rulecall.promote_in_lines_left, rulecall.find_and_measure, rulecall.open_rule, rulecall.set_job, rulecall.set_keys

local REFUSED, GRANTED, BOOKED, TOO_LATE, WITHDRAWN = 0, 1, 2, 3, 4 -- statuses; ledger.lua has the others
local TRY, BOOK, BOOK_LAST_RULE, ANEW = 0, 2, 3, 4 -- modes, see acquire.lua
local GATE = 0 -- in place of the index of the rule that refuses

-- put_all writes the ledgers that were spent on
local function put_all(script)
  local dirty = script.dirty
  script.dirty = {}
  for _, of in ipairs(dirty) do
    if of.dirty then put(of, script.now) end -- not one that was written and opened again under other numbers
  end
end

-- in_widest is for BOOK_LAST_RULE: a place with the widest rates, which share a key, or
-- none. The rule `widest` is the last of these rates. The results:
--   1  the first of these rates; nil where there are no rates, or the job waits in another line
--   2  the instant at which the job is admitted
--   3  the rule that makes it wait; nil when it is admitted within reach
--   4  true when it gets no place: it has none yet, and the rule of result 3 is not one of these rates
-- A lease admits late only while it is closed: whoever has one now will not have it then.
local function in_widest(rules, widest, now, reach)
  if rules[widest].kind.lease then return nil end
  local first_rule, placed, elsewhere = widest, false, false
  while first_rule > 1 and rules[first_rule - 1].group == rules[widest].group do first_rule = first_rule - 1 end
  for i, rule in ipairs(rules) do
    if i >= first_rule and i <= widest then placed = placed or rule.ticket else elsewhere = elsewhere or rule.ticket end
  end
  if elsewhere and not placed then return nil end

  local at, delayed_by = joint(rules, first_rule, widest, now, nil, reach)
  local later, outside = at, nil -- the rule beside these rates that admits the job last, if that is after them
  for i, rule in ipairs(rules) do
    local admits_at = i < first_rule and rule.by_turns or i > widest and rule.closed or 0
    if admits_at > later then later, outside = admits_at, i end
  end
  if outside and not placed then return first_rule, later, outside, true end
  return first_rule, at, at > reach and delayed_by or nil, false
end

-- refuses is the first rule of first_rule..last_rule that the job must not pass: somebody waits there and it has no ticket, or the first in line
-- goes before it
local function refuses(rules, first_rule, last_rule)
  for i = first_rule, last_rule do
    if rules[i].behind_front or not rules[i].ticket and rules[i].front then return i end
  end
end

local function opened(gate, at) return gate and gate.opened(at) or at end

-- free_before_closing says that a job waits for a lease that may be given back while the gate is open. The end of the lease,
-- which the job is told, may lie in an hour when the gate is closed. Who asks shortly before the opening, within reach, is like one
-- who asks then. Who tries does not wait.
local function free_before_closing(call, rule)
  if not (rule and rule.kind.lease) or call.template.mode == TRY then return false end
  local soonest = max(call.now, rule.closed)
  local opens = opened(call.template.gate, soonest)
  return opens == soonest or opens <= call.reach
end

-- offer_unheard lets the next in line know of a lease that is free, when it has not heard of it
local function offer_unheard(rule, now, promoted)
  local unheard = rule and rule.kind.lease and rule.closed == 0 and rule.front and rule.front ~= rule.member and (rule.front_promised or 0) > now + OFFERED_FOR
  if unheard and free(rule, now) > 0 then promote(rule, now, promoted) end
  return promoted
end

local function leave_all(rules)
  for _, rule in ipairs(rules) do
    rule.left_turn = rule.in_turns
    if rule.ticket then leave(rule) end
  end
end

-- end_without_grant writes what a call that spends nothing has to write of each rule, beside its places: the ledger lives on, and
-- the late jobs are parked
local function end_without_grant(rules, now)
  for _, rule in ipairs(rules) do
    outlive(rule, now)
    park(rule)
  end
end

-- check_keys_of_one finds for a call that comes alone whether anybody waits. When the newest grant is older than RESENT_WITHIN, there
-- are probably no tokens: then it asks for them in the same command, and without any no rule has to look for one
local function check_keys_of_one(script, rules)
  if script.opened then return end -- for all calls of the script, see acquire.lua
  local first, keys = rules[1], script.names
  local of = first.ledger
  local quiet = of and of.newest + RESENT_WITHIN <= script.now
  for i, rule in ipairs(rules) do keys[i] = rule.line end
  if quiet then keys[#rules + 1] = first.tokens end
  local some = redis.call("EXISTS", unpack(keys, 1, #rules + (quiet and 1 or 0))) > 0
  script.lines, script.no_tokens = { some = some }, quiet and not some
end

-- charge spends permits of all rules. The ledgers are written when all calls are decided, so one that several calls spend on is written
-- once. `leaves` says that the job leaves its lines afterwards. Then the ledgers are written here, if the script has written nothing yet.
-- A full Redis refuses a command that needs memory, but not after the script has written something. To leave a line needs no memory: it would
-- succeed, and so would all writes after it. With a ledger as the first write, a full Redis refuses the script before it has changed anything
local function charge(script, rules, at, token, leaves)
  local now, dirty = script.now, script.dirty
  for i = 1, #rules do
    local rule = rules[i]
    if rule.kind.lease then
      rule.kind.lease(rule, at, now, token)
      script.wrote, script.no_tokens = true, false
    end
  end
  for i = 1, #rules do
    local rule = rules[i]
    if not rule.ledger.dirty then dirty[#dirty + 1] = rule.ledger end
    spend(rule, now, at, token)
  end
  if leaves and not script.wrote then
    put_all(script)
    script.wrote = true
  end
end

-- answer is the reply to a call; zeros at its end are left out
local function answer(call, status, index, at, promoted)
  local rules, admits_since, before, fence = call.rules, call.admits_since, call.promised, call.fence
  promoted = tell_missed(rules, call.now, promoted or {})
  if #promoted == 0 and status ~= GRANTED and before == 0 and not call.want_left then return { status, index, at, admits_since } end
  local reply = { status, index, at, admits_since, before, fence, #promoted / 3 }
  for _, rule in ipairs(rules) do
    reply[#reply + 1] = status == GRANTED and rule.ledger.token == call.token and worth(rule) or 0
    reply[#reply + 1] = call.want_left and rule.to_park and rule.closed == 0 and (rule.nobody or not anybody(rule)) and free(rule, call.now) or 0
  end
  for _, v in ipairs(promoted) do reply[#reply + 1] = v end
  return reply
end

-- repeated answers a copy of a call as the call was answered
local function repeated(call, held)
  call.admits_since = held
  for _, rule in ipairs(call.rules) do
    if rule.kind.lease and rule.ledger.token == call.token then
      call.fence = rule.ledger.fence
    elseif rule.kind.lease and (held_at(rule, call.token) or -1) > 0 then
      call.fence = rule.kind.anew(rule.ledger)
    end
  end
  return answer(call, GRANTED, 0, held)
end

-- grant_anew moves a grant to this instant. Its caller got the answer too late to act on it. The jobs that wait behind the grant wait that
-- much longer. If a rule does not admit the grant now, the answer is REFUSED, and nothing changes
local function grant_anew(script, call, first)
  local rules, now, token = call.rules, call.now, call.token
  if opened(call.template.gate, now) > now then return answer(call, REFUSED, GATE, now) end
  local newest = {}
  for i, rule in ipairs(rules) do
    rule.stated_at = 0
    rule.found = max(0, granted(rule, token, first) or 0)
    newest[i] = rule.ledger.newest
    if rule.closed > now or not admits_anew(rule, now, rule.found, token) then return answer(call, REFUSED, i, now) end
  end
  for _, rule in ipairs(rules) do
    if not rule.kind.lease then take_out(rule, now, rule.found, token) end
  end
  charge(script, rules, now, token, false)
  for i, rule in ipairs(rules) do
    if rule.kind.lease then
      rule.ledger.newest = max(newest[i], now) -- somebody may have been granted ahead
      call.fence = rule.ledger.fence
    end
  end
  return answer(call, GRANTED, 0, now)
end

-- read opens the ledgers of a call whose keys stand after keys[k]. The results:
--   nobody  true when all ledgers can be used and nobody waits in any line
--   failed  the status of a ledger that can't be used; nil when all can
--   which   the index of its rule
--   newer   what that status tells, as the version of a newer limit
local function read(script, template, keys, k)
  local now, rules, count = script.now, template.rules, #template.rules
  local failed, which, newer
  for i = 1, count do
    local rule = rules[i]
    set_keys(rule, keys, k + 3 * (i - 1), template.turns and keys[k + 3 * count + i] or nil, now)
    if not failed then
      failed, newer = open_rule(rule, now, script.opened)
      which = i
    end
  end
  check_keys_of_one(script, rules)
  local nobody = not failed
  for i = 1, count do
    local rule = rules[i]
    rule.seen, rule.no_tokens, rule.askers = script.lines, i == 1 and script.no_tokens, i == 1 and script.askers or nil
    if not failed then
      open_line(rule, now)
      nobody = nobody and rule.nobody
    end
  end
  return nobody, failed, which, newer
end

-- grant_at_once answers a call before which nobody waits, when all ledgers admit it; nil when
-- they do not
local function grant_at_once(script, template, token, reach)
  local now, rules, gate, count = script.now, template.rules, template.gate, #template.rules
  local at, admits_since = now, 0
  for i = 1, count do
    local rule = rules[i]
    at = max(at, earliest(rule, max(now, rule.closed), 0, rule.want))
    if rule.ledger.newest > 0 or rule.closed > 0 then admits_since = max(admits_since, earliest(rule, rule.closed, 0, rule.want)) end
  end
  if at > reach or template.longest >= 0 and at > now + template.longest then return nil end
  if gate and not (gate.covers(now) and gate.opened(at) == at) then return nil end

  charge(script, rules, at, token, false)
  if at == now and not template.want_left and not template.worthy then return admits_since == 0 and -1 or now - admits_since end
  for i = 1, count do rules[i].missed, rules[i].to_park = nil, NONE end
  local fence = rules[count].kind.lease and rules[count].ledger.fence or 0
  local call = { rules = rules, now = now, token = token, want_left = template.want_left, admits_since = admits_since, promised = 0, fence = fence }
  return answer(call, GRANTED, 0, at)
end

-- find_places looks up, in the line of each rule, the place of the call's job and the jobs ahead of it
local function find_places(call)
  local now = call.now
  find_and_measure(call.rules, now)
  for _, rule in ipairs(call.rules) do
    rule.last_promise = rule.ticket and rule.last_promise or 0
    if rule.ledger.newest > 0 or rule.closed > 0 then call.admits_since = max(call.admits_since, earliest(rule, rule.closed, rule.ahead, rule.want)) end
  end
end

-- widest_of is the index of the last rule that is a rate. When all rules are leases, it is that of the last one
local function widest_of(rules)
  for i = #rules, 1, -1 do
    if not rules[i].kind.lease then return i end
  end
  return #rules
end

-- instant is when a call is admitted. The results:
--   at          the instant
--   binding     the index of the rule that holds the job up, or GATE; nil when the job is granted at the instant
--   delayed_by  only without a binding: the index of the rule that makes the instant so late, or GATE; nil when the instant is now
--   no_place    true when BOOK_LAST_RULE gives the job no place
local function instant(call)
  local rules, gate, mode, now, reach = call.rules, call.template.gate, call.template.mode, call.now, call.reach
  local at, delayed_by, binding = now, nil, nil
  local widest = widest_of(rules)
  if opened(gate, now) > reach then return opened(gate, now), GATE, nil, mode == BOOK_LAST_RULE end
  if mode == BOOK_LAST_RULE then
    local wide, wide_at, wide_binding, no_place = in_widest(rules, widest, now, reach)
    if wide then
      at, binding = wide_at, wide_binding
      if not no_place then binding = binding or refuses(rules, wide, widest) or widest end
      if opened(gate, at) > at then return opened(gate, at), GATE, nil, true end
      return at, binding, nil, no_place
    end
  end

  local i = 1
  while i <= #rules and not binding do
    local to = last_of_group(rules, i)
    at, delayed_by = joint(rules, i, to, at, delayed_by, reach)
    if at > reach then binding = delayed_by else binding = refuses(rules, i, to) end
    i = to + 1
  end
  if opened(gate, at) > at and not free_before_closing(call, rules[binding]) then
    at = opened(gate, at)
    if binding or at > reach then binding = GATE end
    delayed_by = GATE
  end
  if not binding and mode >= BOOK then binding = widest end
  if binding then delayed_by = nil end
  return at, binding, delayed_by, mode == BOOK_LAST_RULE and binding == GATE
end

-- promised_before is the instant that was promised to a call when it came the last time
local function promised_before(rules, binding)
  local binding_rule = binding and rules[binding]
  if binding_rule and binding_rule.ticket then return binding_rule.last_promise end
  for _, rule in ipairs(rules) do
    if rule.ticket then return rule.last_promise end
  end
  return 0
end

-- grant spends the permits of a call and takes it out of its lines. Where a later hash slot may refuse, its tickets are kept
local function grant(script, call, at)
  local now, rules, promoted = call.now, call.rules, {}
  charge(script, rules, at, call.token, true)
  for _, rule in ipairs(rules) do
    if call.template.later then places.leave_granted(rule) end -- before `park`: the ticket of a newcomer goes by the line as it was read
    park(rule)
    if rule.ticket and not call.template.later then leave(rule) end
    -- the next turn may have been told to come far in the future, after a job that another rule held up, for instance until the end of a
    -- lease. Leases are given back before they end, and so that job may have gone long ago
    local turns = rule.end_turn_rank - rule.first_turn_rank > (rule.in_turns and 1 or 0)
    if rule.first_unparked or rule.parked > 0 or turns or rule.missed then promote(rule, now, promoted, turns) end
    if rule.kind.lease then call.fence = rule.ledger.fence end
  end
  return answer(call, GRANTED, 0, at, promoted)
end

-- at_most says that an instant is told by a lease that ends then, and may be given back before, when its key is open
local function at_most(rule, latest) return rule and rule.kind.lease and rule.closed <= latest end

-- give_up answers a call that would have to wait for longer than it can
local function give_up(call, at, index)
  local now, promoted = call.now, {}
  leave_all(call.rules)
  end_without_grant(call.rules, now)
  for _, rule in ipairs(call.rules) do promote(rule, now, promoted, rule.ticket) end
  return answer(call, TOO_LATE, index, at, promoted)
end

-- keep_no_place answers a call that waits in no line
local function keep_no_place(call, status, binding, at)
  leave_all(call.rules)
  end_without_grant(call.rules, call.now)
  return answer(call, status, binding, at, promote_in_lines_left(call.rules, nil, call.now))
end

-- book gives a call its place in the lines
local function book(call, binding, at)
  local rules, binding_rule, now = call.rules, call.rules[binding], call.now
  -- a job keeps no turn until an hour when the gate is closed: the jobs behind it would have to wait for the next opening
  local turns = opened(call.template.gate, at) > at and places.NO_TURNS or places.ALL_TURNS
  local waits_at = places.take_places(rules, binding, at, now, turns)
  end_without_grant(rules, now)
  local promoted = offer_unheard(binding_rule, now, promote_in_lines_left(rules, waits_at, now))
  -- the job may be one of those that were just promised the end of a lease
  if #promoted > 0 and binding_rule.kind.lease then at = promised(binding_rule, binding_rule.member) end
  return answer(call, BOOKED, binding, at, promoted)
end

-- decide answers a call of a template whose keys stand after keys[k]
local function decide(script, template, keys, k, text)
  if template.failover_fault then error(template.failover_fault) end
  local now, rules, gate, mode, longest = script.now, template.rules, template.gate, template.mode, template.longest
  local token = string.sub(text, 2, 9)

  -- read
  local nobody, failed, which, newer = read(script, template, keys, k)
  local held = not failed and held_at(rules[1], token)
  local reach = now + (mode == TRY and 0 or template.inline)
  if nobody and not held and mode < BOOK then
    local reply = grant_at_once(script, template, token, reach)
    if reply then return reply end
  end
  local job = string.sub(text, 10)
  for _, rule in ipairs(rules) do set_job(rule, job) end
  local call = {
    template = template, rules = rules, now = now, reach = reach, token = token, want_left = template.want_left, admits_since = 0, promised = 0, fence = 0,
  }
  if failed then return answer(call, failed, which, newer) end
  if gate and not gate.covers(now) then return answer(call, ledger.NOT_COVERED, 0, 0) end
  if held and held < 0 or mode == ANEW and not held then return answer(call, WITHDRAWN, 0, 0) end
  if mode == ANEW then return grant_anew(script, call, held) end
  if held then
    if template.replicated then
      script.repeats = script.repeats or {}
      for _, rule in ipairs(rules) do table.insert(script.repeats, rule.key) end
    end
    return repeated(call, held)
  end
  find_places(call)

  -- decide
  local at, binding, delayed_by, no_place = instant(call)
  call.promised = promised_before(rules, binding)

  -- write
  if binding and mode == TRY then
    end_without_grant(rules, now)
    return answer(call, REFUSED, binding, at, offer_unheard(rules[binding], now, {}))
  end
  local latest = longest >= 0 and now + longest or ledger.NEVER
  if at > latest and not (longest > 0 and at_most(rules[binding], latest)) then return give_up(call, at, binding or delayed_by) end
  if not binding then return grant(script, call, at) end
  if no_place then return keep_no_place(call, REFUSED, binding, at) end
  if binding == GATE then
    -- when no opening is known nobody waits for one yet: they are told to ask again
    local widest = rules[widest_of(rules)]
    if not widest.kind.lease and at < gate.covered_until then at = gate.spread(keys[k + template.keys], widest, at, now, latest) end
    if at > latest then return give_up(call, at, GATE) end
    return keep_no_place(call, BOOKED, GATE, at)
  end
  return book(call, binding, at)
end

return { ANEW = ANEW, BOOK = BOOK, decide = decide, put_all = put_all }
