-- renew.lua: a lease goes on for its length from now.
--
-- KEYS[1]  ledger     string, see leases.lua
-- KEYS[2]  tokens     sorted set, the leases, see leases.lua
-- ARGV[1]  window_us  length of a lease
-- ARGV[2]  token      8 bytes
-- returns  {held, now_us}, two integers, always; held 0: it has ended, and may be another's by now

local clock = require("lib/clock")
local numbers = require("lib/numbers")
local binary = require("lib/binary")
local max = math.max
local int, live = numbers.int, numbers.live
local unpack_at = binary.unpack_at

return function(keys, args)
  local ledger, tokens, length, token = keys[1], keys[2], tonumber(args[1]), args[2]

  local now = clock()
  local ends = tonumber(redis.call("ZSCORE", tokens, token) or "")
  local value = redis.call("GET", ledger) or ""
  local newest = string.sub(value, 1, 1) == "k" and #value == 48 and unpack_at(">d", value, 17) or 0
  -- somebody may have been granted ahead what comes back when this one ends
  if not ends or ends <= now or (newest > now and ends <= newest) then return { 0, now } end
  redis.call("ZADD", tokens, int(max(ends, now + length)), token)
  live(tokens, length)
  live(ledger, length)
  return { 1, now }
end
