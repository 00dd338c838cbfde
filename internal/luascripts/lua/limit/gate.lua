-- gate.lua: when work may run at all, as the caller's calendar has it.
--
-- gate     "covered_from covered_until open close open close ...", "" for none:
--          open from `open` until before `close`, disjoint, in order
-- opening  sorted set, member = instant of an opening, score = permits of those
--          who wait for it: each comes at its place in the widest rule's pace, and not all at once
--
-- It is the body of gate(text) and answers G, nil for none: the numbers of the text, and
-- what can be asked of them.

local KEPT = 3600000000 -- how long after an opening it is known who waited for it

if text == "" then return nil end
local G = {}
for t in string.gmatch(text, "%d+") do G[#G + 1] = tonumber(t) end

function G.covers(now) return G[1] <= now and now < G[2] end

-- interval is the index in G of the interval that holds `at`, or of the next one
local function interval(at)
  for i = 3, #G, 2 do
    if at < G[i + 1] then return i end
  end
end

-- opened is the first instant, not before `at`, at which the gate is open, as far as is known
function G.opened(at)
  local i = interval(at)
  return i and max(at, G[i]) or G[2]
end

-- spread is the instant at which one who waits for an opening comes
function G.spread(opening, L, at, now)
  local member = int(at)
  local before = tonumber(redis.call("ZSCORE", opening, member) or "-1")
  if before < 0 then -- or a busy rule would keep all
    before = 0
    for _, m in ipairs(redis.call("ZRANGE", opening, 0, 19)) do
      if tonumber(m) + KEPT < now then redis.call("ZREM", opening, m) end
    end
  end
  redis.call("ZINCRBY", opening, int(L.want), member)
  local offset, i = floor(before * L.W / L.n), interval(at)
  if i and at < G[i] then i = nil end
  while i and at + offset >= G[i + 1] do
    if not G[i + 2] then
      at, offset = G[2], 0
      break
    end
    offset = offset - (G[i + 1] - at)
    i = i + 2
    at = G[i]
  end
  at = min(at + offset, NEVER)
  live(opening, at - now + KEPT)
  return at
end

return G
