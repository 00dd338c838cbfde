-- admit.lua: the long way of acquire.lua: one call, by all rules of its policy,
-- with those who wait.

-- parts_in makes the parts of a call
local function parts_in(F, k, job)
  local P, at, text = {}, F.parts, F.text
  for i = 1, F.count do
    local letter, n, W, more, version, cost, group, closed_us, worth, next_at = string.match(text, PART, at)
    P[i] = part_of(i, k + 3 * (i - 1), F.turns and KEYS[k + 3 * F.count + i] or nil, job, letter, n, W, more, version, cost, group, closed_us, worth)
    at = next_at
  end
  return P
end

-- admit answers a call of the form F, whose keys stand behind KEYS[k]
local function admit(F, k, token, job, now)
  local count, mode, inline, longest, tell = F.count, F.mode, F.inline, F.longest, F.tell
  local G, opening = gate(F.gate), KEYS[k + F.keys]
  local P = parts_in(F, k, job)
  local from, promised, fence = 0, 0, 0

  local function answer(status, part, at, granted, turns)
    turns = missed(P, now, turns or {})
    local reply = { status, part, at, from, promised, fence, #turns / 3 }
    for _, L in ipairs(P) do
      reply[#reply + 1] = granted and L.token == token and L.kind.worth(L) or 0
      reply[#reply + 1] = tell and L.late and L.closed == 0 and not anybody(L) and free(L, now) or 0
    end
    for _, v in ipairs(turns) do reply[#reply + 1] = v end
    return reply
  end

  local failed, which, newer = open_parts(P, now)
  if failed then return answer(failed, which, newer) end
  if G and not G.covers(now) then return answer(6, 0, 0) end
  local held = holds(P[1], token)
  if held and held < 0 then return answer(4, 0, 0) end
  if held then
    from = held
    for _, L in ipairs(P) do
      if L.kind.lease and L.token == token then
        fence = L.fence
      elseif L.kind.lease and (holds(L, token) or -1) > 0 then
        fence = L.kind.anew(L)
      end
    end
    return answer(1, 0, held, true)
  end

  -- read
  for _, L in ipairs(P) do
    look(L, now, false, L.top)
    find(L)
    L.told_me = L.ticket and L.told_me or 0
    rank(L)
    measure(L, now)
    if L.newest > 0 or L.closed > 0 then from = max(from, slot(L, L.closed, L.ahead, L.want)) end
  end
  local widest = count -- the last of the rates, or of all where there is none
  while widest > 1 and P[widest].kind.lease do widest = widest - 1 end
  if P[widest].kind.lease then widest = count end

  -- decide
  local reach = now + (mode == 0 and 0 or inline)
  local function gate_opened(a) return G and G.opened(a) or a end

  -- refuses is the first part from..to who lets nobody pass those who wait
  local function refuses(from_part, to)
    for i = from_part, to do
      if not P[i].ticket and P[i].front then return i end
    end
  end

  local at, by, binding = now, 1, nil
  local refused = false -- mode 3: no place
  local wide, wide_at, wide_by, no_place
  if mode == 3 then wide, wide_at, wide_by, no_place = in_widest(P, widest, now, reach) end
  if gate_opened(now) > reach then
    at, binding = gate_opened(now), 0
  elseif wide then
    at, binding, refused = wide_at, wide_by, no_place
    if not refused then binding = binding or refuses(wide, widest) or widest end
    if gate_opened(at) > at then at, binding = gate_opened(at), 0 end
  else
    local i = 1
    while i <= count and not binding do
      local to = last_of_group(P, i)
      at, by = joint(P, i, to, at, by, reach)
      if at > reach then binding = by else binding = refuses(i, to) end
      i = to + 1
    end
    if gate_opened(at) > at then
      at = gate_opened(at)
      by, binding = 0, (binding or at > reach) and 0
    end
    if not binding and mode >= 2 then binding = widest end
  end

  local bound = binding and P[binding]
  if bound and bound.ticket then
    promised = bound.told_me
  else
    for i = count, 1, -1 do
      if P[i].ticket then promised = P[i].told_me end
    end
  end

  -- write
  local function done()
    for _, L in ipairs(P) do
      outlive(L, now)
      park(L)
    end
  end

  if binding and mode == 0 then
    done()
    return answer(0, binding, at)
  end
  if longest >= 0 and at > now + longest then
    for _, L in ipairs(P) do
      if L.ticket then leave(L) end
    end
    done()
    local turns = {}
    for _, L in ipairs(P) do next_turns(L, now, turns, L.ticket) end
    return answer(3, binding or by, at, false, turns)
  end
  if not binding then
    for _, L in ipairs(P) do grant(L, now, at, token) end
    local turns = {}
    for _, L in ipairs(P) do
      park(L)
      if L.ticket then leave(L) end
      -- who came earlier than it was told leaves its followers behind; and turns may have
      -- been told the end of a lease, which comes nearer whenever one is given back
      local early = P[count].kind.lease and L.turns_last > 0 or L.in_turns and L.told_me > at + 1000
      if L.leader or L.parked > 0 or early or L.missed then next_turns(L, now, turns, early) end
      if L.kind.lease then fence = L.fence end
    end
    return answer(1, 0, at, true, turns)
  end
  if refused or mode == 3 and binding == 0 then
    for _, L in ipairs(P) do
      if L.ticket then leave(L) end
    end
    done()
    return answer(0, binding, at, false, left_behind(P, nil, now))
  end
  if binding == 0 then
    -- when no opening is known nobody waits for one yet: they are told to ask again
    if not P[widest].kind.lease and at < G[2] then at = G.spread(opening, P[widest], at, now) end
    for _, L in ipairs(P) do
      if L.ticket then leave(L) end
    end
    done()
    return answer(2, 0, at, false, left_behind(P, nil, now))
  end
  local keeps = places()(P, binding, at, now)
  done()
  return answer(2, binding, at, false, left_behind(P, keeps, now))
end
