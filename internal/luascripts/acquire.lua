-- acquire.lua: grant permits of all rules, or book a place in the line of the one
-- that refuses, or refuse.
--
-- KEYS[1+] parts      4 of each, then the turns of each when the policy has several rules, see parts.lua; then, with a gate, its
--                     opening, see gate.lua
-- ARGV[1]  count      how many parts, 1 to 16
-- ARGV[2]  token      8 bytes, the attempt; the same token gets the same grant
-- ARGV[3]  job        who waits, or "" for one who never does
-- ARGV[4]  mode       0 try: now or not at all; 1 acquire: grant or book; 2 book: never grant
-- ARGV[5]  inline_us  how far in the future a grant may lie
-- ARGV[6]  max_us     longest wait that makes sense, -1 for any
-- ARGV[7]  gate       when work may run, see gate.lua; "" for always
-- ARGV[8]  tell       1: how many permits are left, too
-- ARGV[9+] parts      9 of each, see parts.lua
-- returns  {status, part, at_us, from_us, now_us, promised_us, fence, turns, then per part: worth, free, then per turn: part,
--          at_us, job}, integers, but for job, which is text
--          status 0 refused, 1 granted, 2 booked, 3 too late, 4 withdrawn, 5 newer schema, 6 now is not covered, 7 an older limit
--          than the ledger's, which is then in at_us; part is the one that refuses, 0 for the gate
local count, token, job, mode = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])
local inline, longest, tell = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[8] == "1"
local G, opening = read_gate(ARGV[7]), KEYS[#KEYS]

local now = clock()
local P = read_parts(count, 9, job, G and #KEYS - 1)
local from, promised, fence = 0, 0, 0

local function answer(status, part, at, granted, turns)
  turns = missed(P, now, turns or {})
  local reply = { status, part, at, from, now, promised, fence, #turns / 3 }
  for _, L in ipairs(P) do
    reply[#reply + 1] = granted and L.token == token and L.kind.worth(L) or 0
    reply[#reply + 1] = tell and L.last and L.closed == 0 and not anybody(L) and free(L, now) or 0
  end
  for _, v in ipairs(turns) do reply[#reply + 1] = v end
  return reply
end

local failed, which, newer = open_parts(P, now)
if failed then return answer(failed, which, newer) end
if G and not gate_covers(G, now) then return answer(6, 0, 0) end
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
  look(L, now)
  find(L)
  rank(L)
  measure(L, now)
  if L.newest > 0 or L.closed > 0 then from = max(from, slot(L, L.closed, L.ahead, L.want)) end
end
local widest = count -- the last of the rates, or of all where there is none
while widest > 1 and P[widest].kind.lease do widest = widest - 1 end
if P[widest].kind.lease then widest = count end

-- decide
local reach = now + (mode == 0 and 0 or inline)
local function gate_opened(a) return G and opened(G, a) or a end

-- refuses is the first part from..to who lets nobody pass those who wait
local function refuses(from_part, to)
  for i = from_part, to do
    if not P[i].ticket and P[i].first < P[i].last then return i end
  end
end

local at, by, binding = now, 1, nil
if gate_opened(now) > reach then
  at, binding = gate_opened(now), 0
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
  if not binding and mode == 2 then binding = widest end
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
    -- who came earlier than it was told leaves its followers behind
    local early = L.in_turns and (L.told_me or 0) > at + 1000
    if L.last > 0 or early or L.missed then next_turns(L, now, turns, early) end
    if L.kind.lease then fence = L.fence end
  end
  return answer(1, 0, at, true, turns)
end
if binding == 0 then
  -- when no opening is known nobody waits for one yet: they are told to ask again
  if not P[widest].kind.lease and at < G[2] then at = spread(G, opening, P[widest], at, now) end
  for _, L in ipairs(P) do
    if L.ticket then leave(L) end
  end
  done()
  return answer(2, 0, at, false, left_behind(P, nil, now))
end
local keeps = stand_for(P, binding, at, now)
done()
return answer(2, binding, at, false, left_behind(P, keeps, now))
