-- decide.lua: one call of acquire.lua, by all rules of its policy, with those who wait.

local numbers = require("lib/numbers")
local ledger = require("limit/ledger")
local line = require("limit/line")
local tokens = require("limit/tokens")
local rulecall = require("limit/rulecall")
local places = require("limit/places")
local max = math.max
local free, outlive, earliest, worth = ledger.free, ledger.outlive, ledger.earliest, ledger.worth
local COPY, OFFERED = numbers.COPY, line.OFFERED
local anybody, closed, find, leave, look, missed, promote, park, rank, told =
  line.anybody, line.closed, line.find, line.leave, line.look, line.missed, line.promote, line.park, line.rank, line.told
local holds, put, spend = tokens.holds, tokens.put, tokens.spend
local joint, last_of_group, left_behind, measure, open_rule, set_job, set_keys =
  rulecall.joint, rulecall.last_of_group, rulecall.left_behind, rulecall.measure, rulecall.open_rule, rulecall.set_job, rulecall.set_keys

local NONE = {} -- stands for the late ones where nobody waits; never written to
local REFUSED, GRANTED, BOOKED, TOO_LATE, WITHDRAWN, NOT_COVERED = 0, 1, 2, 3, 4, 6 -- statuses; those of a ledger are in ledger.lua
local GATE = 0 -- as the part that refuses

-- put_all writes the ledgers that were spent on
local function put_all(script)
  local dirty = script.dirty
  script.dirty = {}
  for _, of in ipairs(dirty) do
    if of.dirty then put(of, script.now) end -- not one that was written and opened again under other numbers
  end
end

-- in_widest is for mode 3 of acquire.lua: a place with the widest rates, which share a key, or
-- none. The rule `widest` is the last of these rates. The results:
--   1  the first of these rates; nil where there are no rates, or I wait in another line
--   2  the instant at which I am admitted
--   3  the rule that admits me so late, nil when that is within reach
--   4  true when I get no place: I have none yet, and the rule of result 3 is not one of these rates
-- A lease admits late only while it is closed: whoever has one now will not have it then.
local function in_widest(rules, widest, now, reach)
  if rules[widest].kind.lease then return nil end
  local from, placed, elsewhere = widest, false, false
  while from > 1 and rules[from - 1].group == rules[widest].group do from = from - 1 end
  for i, rule in ipairs(rules) do
    if i >= from and i <= widest then placed = placed or rule.ticket else elsewhere = elsewhere or rule.ticket end
  end
  if elsewhere and not placed then return nil end

  local at, by = joint(rules, from, widest, now, nil, reach)
  local later, which = at, nil
  for i, rule in ipairs(rules) do
    local other = i < from and rule.by_turns or i > widest and rule.closed or 0
    if other > later then later, which = other, i end
  end
  if which and not placed then return from, later, which, true end
  return from, at, at > reach and by or nil, false
end

-- refuses is the first rule from..to in whose line somebody is ahead of me
local function refuses(rules, from, to)
  for i = from, to do
    if rules[i].held_up or not rules[i].ticket and rules[i].front then return i end
  end
end

local function opened(gate, at) return gate and gate.opened(at) or at end

-- offer_unheard lets the next in line know of a lease that is free, when it has not heard of it
local function offer_unheard(rule, now, promoted)
  local unheard = rule and rule.kind.lease and rule.closed == 0 and rule.front and rule.front ~= rule.me and (rule.front_told or 0) > now + OFFERED
  if unheard and free(rule, now) > 0 then promote(rule, now, promoted) end
  return promoted
end

local function leave_all(rules)
  for _, rule in ipairs(rules) do
    if rule.ticket then leave(rule) end
  end
end

-- done writes what a call leaves that spends nothing
local function done(rules, now)
  for _, rule in ipairs(rules) do
    outlive(rule, now)
    park(rule)
  end
end

-- look_alone finds for a call that comes alone whether anybody waits, and whether the first
-- rule may remember tokens: the ledger of a key that nobody used for so long says that only
-- those are there that were withdrawn
local function look_alone(script, rules)
  if script.opened then return end -- for all calls of the script, see acquire.lua
  local first, keys = rules[1], script.names
  local of = first.ledger
  local quiet = of and of.newest + COPY <= script.now
  for i, rule in ipairs(rules) do keys[i] = rule.line end
  if quiet then keys[#rules + 1] = first.tokens end
  local some = redis.call("EXISTS", unpack(keys, 1, #rules + (quiet and 1 or 0))) > 0
  script.lines, script.no_tokens = { some = some }, quiet and not some
end

-- charge spends permits of all rules. The ledgers are written when all calls are decided. But the
-- first write of a script has to be one that needs memory: then a full Redis refuses the script
-- before it has changed anything. To leave a line needs none
local function charge(script, rules, at, token, later)
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
  if not later and not script.wrote then
    put_all(script)
    script.wrote = true
  end
end

-- answer is the reply to a call; zeros at its end are left out
local function answer(call, status, part, at, promoted)
  local rules, from, promised, fence = call.rules, call.from, call.promised, call.fence
  promoted = missed(rules, call.now, promoted or {})
  if #promoted == 0 and status ~= GRANTED and promised == 0 and not call.tell then return { status, part, at, from } end
  local reply = { status, part, at, from, promised, fence, #promoted / 3 }
  for _, rule in ipairs(rules) do
    reply[#reply + 1] = status == GRANTED and rule.ledger.token == call.token and worth(rule) or 0
    reply[#reply + 1] = call.tell and rule.to_park and rule.closed == 0 and (rule.nobody or not anybody(rule)) and free(rule, call.now) or 0
  end
  for _, v in ipairs(promoted) do reply[#reply + 1] = v end
  return reply
end

-- repeated answers a copy of a call as the call was answered
local function repeated(call, held)
  call.from = held
  for _, rule in ipairs(call.rules) do
    if rule.kind.lease and rule.ledger.token == call.token then
      call.fence = rule.ledger.fence
    elseif rule.kind.lease and (holds(rule, call.token) or -1) > 0 then
      call.fence = rule.kind.anew(rule.ledger)
    end
  end
  return answer(call, GRANTED, 0, held)
end

-- decide answers a call of a form whose keys stand behind keys[k]
local function decide(script, form, keys, k, text)
  if form.unheld then error(form.unheld) end
  local now, rules, gate, mode, longest = script.now, form.rules, form.gate, form.mode, form.longest
  local count, token, nobody = #rules, string.sub(text, 2, 9), true

  -- read
  local failed, which, newer
  for i = 1, count do
    local rule = rules[i]
    set_keys(rule, keys, k + 3 * (i - 1), form.turns and keys[k + 3 * count + i] or nil, now)
    if not failed then
      failed, newer = open_rule(rule, now, script.opened)
      which = i
    end
  end
  look_alone(script, rules)
  for i = 1, count do
    local rule = rules[i]
    rule.seen, rule.no_tokens, rule.askers = script.lines, i == 1 and script.no_tokens, i == 1 and script.askers or nil
    if not failed then
      closed(rule, now)
      nobody = nobody and rule.nobody
    end
  end
  local held = not failed and holds(rules[1], token)

  -- nobody waits in any line, and all ledgers admit the job
  local reach = now + (mode == 0 and 0 or form.inline)
  if nobody and not failed and not held and mode < 2 then
    local at, from = now, 0
    for i = 1, count do
      local rule = rules[i]
      at = max(at, earliest(rule, max(now, rule.closed), 0, rule.want))
      if rule.ledger.newest > 0 or rule.closed > 0 then from = max(from, earliest(rule, rule.closed, 0, rule.want)) end
    end
    if at <= reach and (longest < 0 or at <= now + longest) and (not gate or gate.covers(now) and gate.opened(at) == at) then
      charge(script, rules, at, token, true)
      if at == now and not form.tell and not form.worthy then return from == 0 and -1 or now - from end
      for i = 1, count do rules[i].missed, rules[i].to_park = nil, NONE end
      local fence = rules[count].kind.lease and rules[count].ledger.fence or 0
      return answer({ rules = rules, now = now, token = token, tell = form.tell, from = from, promised = 0, fence = fence }, GRANTED, 0, at)
    end
  end

  local job = string.sub(text, 10)
  for i = 1, count do set_job(rules[i], job) end
  local call = { rules = rules, now = now, token = token, tell = form.tell, from = 0, promised = 0, fence = 0 }
  if failed then return answer(call, failed, which, newer) end
  if gate and not gate.covers(now) then return answer(call, NOT_COVERED, 0, 0) end
  if held and held < 0 then return answer(call, WITHDRAWN, 0, 0) end
  if held then
    if form.waits then
      script.repeats = script.repeats or {}
      for i = 1, count do table.insert(script.repeats, rules[i].key) end
    end
    return repeated(call, held)
  end

  for _, rule in ipairs(rules) do
    look(rule, now, false, rule.top)
    find(rule)
    rule.told_me = rule.ticket and rule.told_me or 0
    rank(rule)
    measure(rule, now)
    if rule.ledger.newest > 0 or rule.closed > 0 then call.from = max(call.from, earliest(rule, rule.closed, rule.ahead, rule.want)) end
  end
  local widest = count -- the last of the rates, or of all where there is none
  while widest > 1 and rules[widest].kind.lease do widest = widest - 1 end
  if rules[widest].kind.lease then widest = count end

  -- decide
  local at, by, binding = now, 1, nil
  local refused = false -- mode 3: no place
  local wide, wide_at, wide_by, no_place
  if mode == 3 then wide, wide_at, wide_by, no_place = in_widest(rules, widest, now, reach) end
  if opened(gate, now) > reach then
    at, binding = opened(gate, now), GATE
  elseif wide then
    at, binding, refused = wide_at, wide_by, no_place
    if not refused then binding = binding or refuses(rules, wide, widest) or widest end
    if opened(gate, at) > at then at, binding = opened(gate, at), GATE end
  else
    local i = 1
    while i <= count and not binding do
      local to = last_of_group(rules, i)
      at, by = joint(rules, i, to, at, by, reach)
      if at > reach then binding = by else binding = refuses(rules, i, to) end
      i = to + 1
    end
    if opened(gate, at) > at then
      at = opened(gate, at)
      by, binding = GATE, (binding or at > reach) and GATE
    end
    if not binding and mode >= 2 then binding = widest end
  end

  local bound = binding and rules[binding]
  if bound and bound.ticket then
    call.promised = bound.told_me
  else
    for i = count, 1, -1 do
      if rules[i].ticket then call.promised = rules[i].told_me end
    end
  end

  -- write
  if binding and mode == 0 then
    done(rules, now)
    return answer(call, REFUSED, binding, at, offer_unheard(bound, now, {}))
  end
  if longest >= 0 and at > now + longest then
    leave_all(rules)
    done(rules, now)
    local promoted = {}
    for _, rule in ipairs(rules) do promote(rule, now, promoted, rule.ticket) end
    return answer(call, TOO_LATE, binding or by, at, promoted)
  end
  if not binding then
    charge(script, rules, at, token, false)
    local promoted = {}
    for _, rule in ipairs(rules) do
      park(rule)
      if rule.ticket then leave(rule) end
      -- who came earlier than it was told leaves its followers behind; and turns may have
      -- been told the end of a lease, which comes nearer whenever one is given back
      local early = rules[count].kind.lease and rule.turns_last > 0 or rule.in_turns and rule.told_me > at + 1000
      if rule.leader or rule.parked > 0 or early or rule.missed then promote(rule, now, promoted, early) end
      if rule.kind.lease then call.fence = rule.ledger.fence end
    end
    return answer(call, GRANTED, 0, at, promoted)
  end
  if refused or mode == 3 and binding == GATE then
    leave_all(rules)
    done(rules, now)
    return answer(call, REFUSED, binding, at, left_behind(rules, nil, now))
  end
  if binding == GATE then
    -- when no opening is known nobody waits for one yet: they are told to ask again
    if not rules[widest].kind.lease and at < gate[2] then at = gate.spread(keys[k + form.keys], rules[widest], at, now) end
    leave_all(rules)
    done(rules, now)
    return answer(call, BOOKED, GATE, at, left_behind(rules, nil, now))
  end
  local keeps = places.stand_for(rules, binding, at, now)
  done(rules, now)
  local promoted = offer_unheard(bound, now, left_behind(rules, keeps, now))
  if #promoted > 0 and bound.kind.lease then at = told(bound, bound.me) end -- it may be one of those who were just told when a lease ends
  return answer(call, BOOKED, binding, at, promoted)
end

return { decide = decide, put_all = put_all }
