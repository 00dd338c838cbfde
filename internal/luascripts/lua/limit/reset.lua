-- reset.lua: forget what was spent on a key, also what can't be read; who waits keeps its place.
--
-- KEYS[1]  ledger     string, see ledger.lua
-- KEYS[2]  tokens     sorted set, see tokens.lua
-- KEYS[3]  line       sorted set, see line.lua
-- ARGV[1]  kind       the limit's algorithm, see ledger.lua
-- ARGV[2]  n          permits per window, >= 1
-- ARGV[3]  window_us  length of the window, >= 1000
-- ARGV[4]  more       what only some algorithms have
-- ARGV[5]  version    of the limit, 0 when it is the one in code
-- returns  {status, now_us, version, promotions}, integers; see with_promotions in line.lua
--          status 1 done, 5, 6, 7 see ledger.lua, the version is that of 7

local clock = require("lib/clock")
local ledger = require("limit/ledger")
local line = require("limit/line")
local rulecall = require("limit/rulecall")
local CORRUPT, limit_of, open = ledger.CORRUPT, ledger.limit_of, ledger.open
local rule_on = rulecall.rule_on
local open_line, promote, with_promotions = line.open_line, line.promote, line.with_promotions

return function(keys, args)
  local now = clock()
  local rule = rule_on(keys[1], keys[2], keys[3], limit_of(args[1], args[2], args[3], args[4], args[5]), "1", "0", now)
  local readable, status, newer = pcall(open, rule, now) -- the key may be of another type
  if readable and status and status ~= CORRUPT then return { status, now, newer, 0 } end

  redis.call("UNLINK", rule.key, rule.tokens)
  open(rule, now)
  open_line(rule, now)
  local promoted = {}
  promote(rule, now, promoted)
  return with_promotions({ 1, now, 0 }, { rule }, now, promoted)
end
