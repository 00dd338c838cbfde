-- admit.lua: the long way of acquire.lua: one call, by all rules of its policy,
-- with those who wait.

local form = require("lib/form")
local ledger = require("limit/ledger")
local tickets = require("limit/tickets")
local line = require("limit/line")
local tokens = require("limit/tokens")
local rulecall = require("limit/rulecall")
local places = require("limit/places")
local gate = require("limit/gate")
local in_widest = require("limit/widest")
local max = math.max
local PART, OFFERED = form.PART, tickets.OFFERED
local free, outlive, slot = ledger.free, ledger.outlive, ledger.slot
local anybody, find, leave, look, missed, next_turns, park, rank = line.anybody, line.find, line.leave, line.look, line.missed, line.next_turns, line.park, line.rank
local grant, holds = tokens.grant, tokens.holds
local joint, last_of_group, left_behind, measure, open_parts, part_of = rulecall.joint, rulecall.last_of_group, rulecall.left_behind, rulecall.measure, rulecall.open_parts, rulecall.part_of

-- parts_in makes the parts of a call
local function parts_in(keys, form, k, job)
  local rules, at, text = {}, form.parts, form.text
  for i = 1, form.count do
    local letter, n, W, more, version, cost, group, closed_us, worth, next_at = string.match(text, PART, at)
    rules[i] = part_of(keys, i, k + 3 * (i - 1), form.turns and keys[k + 3 * form.count + i] or nil, job, letter, n, W, more, version, cost, group, closed_us, worth)
    at = next_at
  end
  return rules
end

-- admit answers a call of a form, whose keys stand behind keys[k]
local function admit(keys, form, k, token, job, now)
  local count, mode, inline, longest, tell = form.count, form.mode, form.inline, form.longest, form.tell
  local gate, opening = gate(form.gate), keys[k + form.keys]
  local rules = parts_in(keys, form, k, job)
  local from, promised, fence = 0, 0, 0

  local function answer(status, part, at, granted, turns)
    turns = missed(rules, now, turns or {})
    local reply = { status, part, at, from, promised, fence, #turns / 3 }
    for _, rule in ipairs(rules) do
      reply[#reply + 1] = granted and rule.token == token and rule.kind.worth(rule) or 0
      reply[#reply + 1] = tell and rule.late and rule.closed == 0 and not anybody(rule) and free(rule, now) or 0
    end
    for _, v in ipairs(turns) do reply[#reply + 1] = v end
    return reply
  end

  local failed, which, newer = open_parts(rules, now)
  if failed then return answer(failed, which, newer) end
  if gate and not gate.covers(now) then return answer(6, 0, 0) end
  local held = holds(rules[1], token)
  if held and held < 0 then return answer(4, 0, 0) end
  if held then
    from = held
    for _, rule in ipairs(rules) do
      if rule.kind.lease and rule.token == token then
        fence = rule.fence
      elseif rule.kind.lease and (holds(rule, token) or -1) > 0 then
        fence = rule.kind.anew(rule)
      end
    end
    return answer(1, 0, held, true)
  end

  -- read
  for _, rule in ipairs(rules) do
    look(rule, now, false, rule.top)
    find(rule)
    rule.told_me = rule.ticket and rule.told_me or 0
    rank(rule)
    measure(rule, now)
    if rule.newest > 0 or rule.closed > 0 then from = max(from, slot(rule, rule.closed, rule.ahead, rule.want)) end
  end
  local widest = count -- the last of the rates, or of all where there is none
  while widest > 1 and rules[widest].kind.lease do widest = widest - 1 end
  if rules[widest].kind.lease then widest = count end

  -- decide
  local reach = now + (mode == 0 and 0 or inline)
  local function gate_opened(a) return gate and gate.opened(a) or a end

  -- refuses is the first part from..to who lets nobody pass those who wait
  local function refuses(from_part, to)
    for i = from_part, to do
      if not rules[i].ticket and rules[i].front then return i end
    end
  end

  local at, by, binding = now, 1, nil
  local refused = false -- mode 3: no place
  local wide, wide_at, wide_by, no_place
  if mode == 3 then wide, wide_at, wide_by, no_place = in_widest(rules, widest, now, reach) end
  if gate_opened(now) > reach then
    at, binding = gate_opened(now), 0
  elseif wide then
    at, binding, refused = wide_at, wide_by, no_place
    if not refused then binding = binding or refuses(wide, widest) or widest end
    if gate_opened(at) > at then at, binding = gate_opened(at), 0 end
  else
    local i = 1
    while i <= count and not binding do
      local to = last_of_group(rules, i)
      at, by = joint(rules, i, to, at, by, reach)
      if at > reach then binding = by else binding = refuses(i, to) end
      i = to + 1
    end
    if gate_opened(at) > at then
      at = gate_opened(at)
      by, binding = 0, (binding or at > reach) and 0
    end
    if not binding and mode >= 2 then binding = widest end
  end

  local bound = binding and rules[binding]
  if bound and bound.ticket then
    promised = bound.told_me
  else
    for i = count, 1, -1 do
      if rules[i].ticket then promised = rules[i].told_me end
    end
  end

  -- write
  local function done()
    for _, rule in ipairs(rules) do
      outlive(rule, now)
      park(rule)
    end
  end

  -- offer lets the next in line know of a lease that is free, when it has not heard of it
  local function offer(turns)
    local rule = bound
    local unheard = rule and rule.kind.lease and rule.closed == 0 and rule.front and rule.front ~= rule.me and (rule.front_told or 0) > now + OFFERED
    if unheard and free(rule, now) > 0 then next_turns(rule, now, turns) end
    return turns
  end

  if binding and mode == 0 then
    done()
    return answer(0, binding, at, false, offer({}))
  end
  if longest >= 0 and at > now + longest then
    for _, rule in ipairs(rules) do
      if rule.ticket then leave(rule) end
    end
    done()
    local turns = {}
    for _, rule in ipairs(rules) do next_turns(rule, now, turns, rule.ticket) end
    return answer(3, binding or by, at, false, turns)
  end
  if not binding then
    for _, rule in ipairs(rules) do grant(rule, now, at, token) end
    local turns = {}
    for _, rule in ipairs(rules) do
      park(rule)
      if rule.ticket then leave(rule) end
      -- who came earlier than it was told leaves its followers behind; and turns may have
      -- been told the end of a lease, which comes nearer whenever one is given back
      local early = rules[count].kind.lease and rule.turns_last > 0 or rule.in_turns and rule.told_me > at + 1000
      if rule.leader or rule.parked > 0 or early or rule.missed then next_turns(rule, now, turns, early) end
      if rule.kind.lease then fence = rule.fence end
    end
    return answer(1, 0, at, true, turns)
  end
  if refused or mode == 3 and binding == 0 then
    for _, rule in ipairs(rules) do
      if rule.ticket then leave(rule) end
    end
    done()
    return answer(0, binding, at, false, left_behind(rules, nil, now))
  end
  if binding == 0 then
    -- when no opening is known nobody waits for one yet: they are told to ask again
    if not rules[widest].kind.lease and at < gate[2] then at = gate.spread(opening, rules[widest], at, now) end
    for _, rule in ipairs(rules) do
      if rule.ticket then leave(rule) end
    end
    done()
    return answer(2, 0, at, false, left_behind(rules, nil, now))
  end
  local keeps = places.stand_for(rules, binding, at, now)
  done()
  return answer(2, binding, at, false, offer(left_behind(rules, keeps, now)))
end

return admit
