-- remember.lua: tokens that are not the newest any more.
--
-- The ledger's header names the newest grant's token. When the next grant takes
-- its place it moves to a sorted set of its own (score = instant of the grant), for
-- as long as a copy of its call may still arrive, however long the grant counts: who
-- corrects it later tells its instant, see correct.lua. Where the window is shorter
-- than that it is written there at once, because the ledger goes with its window.

local numbers = require("lib/numbers")
local COPY, int, live = numbers.COPY, numbers.int, numbers.live

local NOBODY = "\0\0\0\0\0\0\0\0"

local function forget_old(tokens, lowest, highest, many)
  local old = redis.call("ZRANGEBYSCORE", tokens, lowest, highest, "LIMIT", "0", many or 20)
  if #old > 0 then redis.call("ZREM", tokens, unpack(old)) end
end

-- remember keeps tokens, {score, token ...}, of which the last is of an instant. Who
-- is known keeps its score: of a bill that says more than its instant
local function remember(tokens, list, at, now)
  if #list == 0 or redis.call("ZADD", tokens, "NX", unpack(list)) == 0 then return end -- it was there
  forget_old(tokens, "0", int(now - COPY), 20 + #list) -- more than are new
  live(tokens, at + COPY - now)
end

return {
  NOBODY = NOBODY, forget_old = forget_old, remember = remember,
}
