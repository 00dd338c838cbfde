-- deferred.lua: what a deferral, or the enqueueing, writes into asynq's hash of a
-- task, the field `hw`: "\2", asynq's score as we wrote it in 10 digits, zero when it
-- is not ours, 4 bytes for the pool that comes first to wake it, zeros for any, and
-- the tokens of the last eight of these calls, 8 bytes each.

local ANY = "\0\0\0\0" -- all pools

-- deferred_as is that field; before is the field as it was
local function deferred_as(retry_s, pool, token, before)
  return string.format("\2%010.0f", tonumber(retry_s)) .. pool .. token .. string.sub(before, 16, 71)
end

-- moved_to is that field with another score and pool
local function moved_to(retry_s, pool, before)
  return string.format("\2%010.0f", tonumber(retry_s)) .. pool .. string.sub(before, 16)
end

-- scored is the score in that field, nil when there is none
local function scored(hw)
  return hw and string.byte(hw, 1) == 2 and tonumber(string.sub(hw, 2, 11)) or nil
end
