-- gate.lua: when work may run at all, as the caller's calendar has it.
--
-- gate     "covered_from covered_until open close open close ...", "" for none:
--          open from `open` until before `close`, disjoint, in order
-- opening  sorted set, member = instant of an opening, score = permits of those
--          who wait for it: each comes at its place in the widest rule's pace, and not all at once
--
-- gate(text) answers nil for none: the numbers of the text, and
-- what can be asked of them.

local numbers = require("lib/numbers")
local ledger = require("limit/ledger")
local floor, max, min = math.floor, math.max, math.min
local int, live = numbers.int, numbers.live
local NEVER = ledger.NEVER

local function gate(text)
  local KNOWN_FOR = 3600000000 -- how long after an opening it is known who waited for it

  if text == "" then return nil end
  local gate = {}
  for t in string.gmatch(text, "%d+") do gate[#gate + 1] = tonumber(t) end
  gate.covered_until = gate[2]

  function gate.covers(now) return gate[1] <= now and now < gate.covered_until end

  -- interval is the index in gate of the interval that holds `at`, or of the next one
  local function interval(at)
    for i = 3, #gate, 2 do
      if at < gate[i + 1] then return i end
    end
  end

  -- opened is the first instant, not before `at`, at which the gate is open, as far as is known
  function gate.opened(at)
    local i = interval(at)
    return i and max(at, gate[i]) or gate.covered_until
  end

  -- spread is the instant at which a job that waits for an opening comes. A job that would come after `latest` does not wait
  function gate.spread(opening, rule, at, now, latest)
    local member = int(at)
    local before = tonumber(redis.call("ZSCORE", opening, member) or "-1")
    local offset, i = floor(max(0, before) * rule.W / rule.n), interval(at)
    if i and at < gate[i] then i = nil end
    while i and at + offset >= gate[i + 1] do
      if not gate[i + 2] then
        at, offset = gate.covered_until, 0
        break
      end
      offset = offset - (gate[i + 1] - at)
      i = i + 2
      at = gate[i]
    end
    at = min(at + offset, NEVER)
    if at > latest then return at end
    if before < 0 then -- the first job that waits for an opening clears old openings: otherwise a busy rule would keep all
      for _, m in ipairs(redis.call("ZRANGE", opening, 0, 19)) do
        if tonumber(m) + KNOWN_FOR < now then redis.call("ZREM", opening, m) end
      end
    end
    redis.call("ZINCRBY", opening, int(rule.want), member)
    live(opening, at - now + KNOWN_FOR)
    return at
  end

  return gate
end

return gate
