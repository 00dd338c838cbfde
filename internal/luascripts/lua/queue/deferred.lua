-- deferred.lua: what a deferral, or the enqueueing, writes into asynq's hash of a
-- task, the field `hw`: a byte, 3 and 16 more for each token; asynq's score as we wrote
-- it, its lowest 4 bytes, zeros when it is not ours; 4 bytes for the pool that comes
-- first to wake it, zeros for all; the tokens of the last eight of these calls, 8 bytes
-- each; and what the task waits for, which names its entry in due, see taskid.lua.

local ANY = "\0\0\0\0" -- all pools
local NOT_OURS = "\0\0\0\0"

-- asynq's whole-second score of a task that is due at an instant: 5 s later
-- asynq's own forwarder may take it, should every waker be gone
local function second_net(at)
  return string.format("%.0f", math.floor(at / 1000000) + 5)
end

local function score_bytes(score)
  local high = math.floor(score / 65536)
  return string.char(math.floor(high / 256) % 256, high % 256, math.floor(score / 256) % 256, score % 256)
end

-- deferred takes the field apart, also one that an older version wrote
local function deferred(hw)
  local first = hw and string.byte(hw, 1) or 0
  if first % 16 == 3 then
    local ends = 9 + (first - 3) / 2
    return { score = string.sub(hw, 2, 5), pool = string.sub(hw, 6, 9), tokens = string.sub(hw, 10, ends), what = string.sub(hw, ends + 1) }
  end
  if first == 2 then
    return { score = score_bytes(tonumber(string.sub(hw, 2, 11))), pool = string.sub(hw, 12, 15), tokens = string.sub(hw, 16, 79), what = "" }
  end
  return { score = NOT_OURS, pool = ANY, tokens = "", what = "" }
end

local function field(score, pool, tokens, what)
  return string.char(3 + 2 * #tokens) .. score .. pool .. tokens .. what
end

-- deferred_as is the field after a call; before is what it was, taken apart
local function deferred_as(score, pool, token, what, before)
  return field(score_bytes(tonumber(score)), pool, token .. string.sub(before.tokens, 1, 56), what)
end

-- moved_to is the field with another score and pool
local function moved_to(score, pool, d)
  return field(score_bytes(tonumber(score)), pool, d.tokens, d.what)
end

-- woken_as is the field of a task that waits for nothing any more
local function woken_as(d)
  return field(NOT_OURS, ANY, d.tokens, "")
end

-- pool_of is the pool in the field, of any task
local function pool_of(hw)
  local first = hw and string.byte(hw, 1) or 0
  return first % 16 == 3 and string.sub(hw, 6, 9) or first == 2 and string.sub(hw, 12, 15) or ANY
end

-- claimed_by is the field with another pool, nil where there is none
local function claimed_by(pool, hw)
  local first = hw and string.byte(hw, 1) or 0
  local before = first % 16 == 3 and 5 or first == 2 and 11
  return before and string.sub(hw, 1, before) .. pool .. string.sub(hw, before + 5)
end

-- ours says that a score of asynq is the one that we wrote
local function ours(d, score)
  return score and score % 1 == 0 and d.score ~= NOT_OURS and d.score == score_bytes(score)
end

-- instant is at, in microseconds since 1970. At or below 0 it is so long from now: its caller
-- knows it by the clock of another server, or by none
local function instant(at, now)
  return at > 0 and at or now - at
end

-- over is what a script answers of a task in such a state that never runs again by
-- itself: 3 when it was deleted, 6 when it is archived or completed; else nil
local function over(state)
  return not state and 3 or (state == "archived" or state == "completed") and 6 or nil
end

return {
  ANY = ANY, NOT_OURS = NOT_OURS, claimed_by = claimed_by, deferred = deferred, deferred_as = deferred_as, instant = instant, moved_to = moved_to, ours = ours,
  over = over,
  pool_of = pool_of, second_net = second_net, woken_as = woken_as,
}
