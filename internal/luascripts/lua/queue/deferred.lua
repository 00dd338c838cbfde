-- deferred.lua: what a deferral, or the enqueueing, writes into asynq's hash of a
-- task, the field `hw`: a byte, 5 and 16 more for each token; asynq's score as we wrote
-- it, its lowest 4 bytes, zeros when it is not ours; 4 bytes for the pool that comes
-- first to wake it, zeros for all; the tokens of the last eight of these calls, 8 bytes
-- each; 8 bytes that tell a person how it waits; and what the task waits for, which names
-- its entry in due, see taskid.lua.
--
-- Those 8 bytes are since when it waits, 4 bytes in seconds; how often its instant was
-- changed since, 2 bytes; and why it has this one, 2 bytes: a letter, see Cause in
-- internal/queuescripts, and which of the rules it waits for, counted from 1, 0 when that is
-- none of them. They are zeros while it waits for nothing.

local ANY = "\0\0\0\0" -- all pools
local NOT_OURS = "\0\0\0\0"
local NO_WAIT = "\0\0\0\0\0\0\0\0"

-- asynq's whole-second score of a task that is due at an instant: 5 s later
-- asynq's own forwarder may take it, should every waker be gone
local function second_net(at)
  return string.format("%.0f", math.floor(at / 1000000) + 5)
end

local function score_bytes(score)
  local high = math.floor(score / 65536)
  return string.char(math.floor(high / 256) % 256, high % 256, math.floor(score / 256) % 256, score % 256)
end

-- has_form says that a field has the form that is written here: its low 4 bits are 5
local function has_form(hw)
  return hw and #hw > 0 and string.byte(hw, 1) % 16 == 5
end

-- read_hw takes the field apart
local function read_hw(hw)
  if not has_form(hw) then return { score = NOT_OURS, pool = ANY, tokens = "", wait_bytes = NO_WAIT, record = "" } end
  local ends = 9 + (string.byte(hw, 1) - 5) / 2
  return {
    score = string.sub(hw, 2, 5), pool = string.sub(hw, 6, 9), tokens = string.sub(hw, 10, ends), wait_bytes = string.sub(hw, ends + 1, ends + 8),
    record = string.sub(hw, ends + 9),
  }
end

local function field(score, pool, tokens, wait_bytes, record)
  return string.char(5 + 2 * #tokens) .. score .. pool .. tokens .. wait_bytes .. record
end

-- waiting are the 8 bytes of a task whose instant is set now, for a reason of 2 bytes; one
-- that has no rule keeps the rule before
local function waiting(before, now, reason)
  if before == NO_WAIT then return score_bytes(math.floor(now / 1000000)) .. "\0\0" .. reason end
  local moved = math.min(65535, 256 * string.byte(before, 5) + string.byte(before, 6) + 1)
  local rule = string.sub(reason, 2)
  if rule == "\255" then rule = string.sub(before, 8) end
  return string.sub(before, 1, 4) .. string.char(math.floor(moved / 256), moved % 256) .. string.sub(reason, 1, 1) .. rule
end

-- deferred_as is the field after a call; before is what it was, taken apart
local function deferred_as(score, pool, token, wait_bytes, record, before)
  return field(score_bytes(tonumber(score)), pool, token .. string.sub(before.tokens, 1, 56), wait_bytes, record)
end

-- moved_to is the field with another score and pool, for a reason
local function moved_to(score, pool, now, reason, d)
  return field(score_bytes(tonumber(score)), pool, d.tokens, waiting(d.wait_bytes, now, reason), d.record)
end

-- woken_as is the field of a task that was woken: it may have to wait again
local function woken_as(d)
  return field(NOT_OURS, ANY, d.tokens, d.wait_bytes, "")
end

-- ended_as is the field of a task that has waited
local function ended_as(d)
  return field(NOT_OURS, ANY, d.tokens, NO_WAIT, "")
end

-- pool_of is the pool in the field, of any task
local function pool_of(hw)
  return has_form(hw) and string.sub(hw, 6, 9) or ANY
end

-- with_pool is the field of a task with another pool in it; nil where the task has no such field
local function with_pool(pool, hw)
  return has_form(hw) and string.sub(hw, 1, 5) .. pool .. string.sub(hw, 10) or nil
end

-- score_is_ours says that a score of asynq is the one that we wrote
local function score_is_ours(d, score)
  return score and score % 1 == 0 and d.score ~= NOT_OURS and d.score == score_bytes(score)
end

-- instant is at, in microseconds since 1970. At or below 0 it is so long from now: its caller
-- knows it by the clock of another server, or by none
local function instant(at, now)
  return at > 0 and at or now - at
end

-- what scripts answer of a task; internal/queuescripts has the same words in Go
local STATUS = { woken = 1, still_active = 2, deleted = 3, not_ours = 4, not_yet = 5, ended = 6 }

-- ended is the status of a task in such a state that never runs again by itself; else nil
local function ended(state)
  return not state and STATUS.deleted or (state == "archived" or state == "completed") and STATUS.ended or nil
end

return {
  STATUS = STATUS, ANY = ANY, NOT_OURS = NOT_OURS, NO_WAIT = NO_WAIT, with_pool = with_pool, read_hw = read_hw, deferred_as = deferred_as,
  ended_as = ended_as, instant = instant, moved_to = moved_to, score_is_ours = score_is_ours, ended = ended,
  pool_of = pool_of, second_net = second_net, waiting = waiting, woken_as = woken_as,
}
