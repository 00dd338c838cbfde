-- remember.lua: tokens that are not the newest any more.
--
-- The ledger's header names the newest grant's token. When the next grant takes
-- its place it moves to a sorted set of its own (score = instant of the grant),
-- as long as the grant counts or a copy of its call may still arrive; where the
-- window is shorter than that it is written there at once, because the ledger
-- goes with its window.

local NOBODY = string.rep("\0", 8)

local function forget_old(tokens, lowest, highest, many)
  local old = redis.call("ZRANGEBYSCORE", tokens, lowest, highest, "LIMIT", 0, many or 20)
  if #old > 0 then redis.call("ZREM", tokens, unpack(old)) end
end

-- remember keeps tokens, {score, token ...}, of which the last is of an instant
local function remember(tokens, list, at, W, now)
  if #list == 0 or redis.call("ZADD", tokens, unpack(list)) == 0 then return end -- it was there
  local keep = max(W, COPY)
  forget_old(tokens, "0", int(now - keep), 20 + #list) -- more than are new
  live(tokens, at + keep - now)
end
