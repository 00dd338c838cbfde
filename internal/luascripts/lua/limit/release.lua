-- release.lua: a lease ends before its time, and who is next hears of it.
--
-- KEYS[1]  ledger     string, see leases.lua
-- KEYS[2]  tokens     sorted set, the leases, see leases.lua
-- KEYS[3]  line       sorted set, see line.lua
-- ARGV[1]  n          leases at once, >= 1
-- ARGV[2]  window_us  length of a lease
-- ARGV[3]  version    of the limit, 0 when it is the one in code
-- ARGV[4]  token      8 bytes
-- ARGV[5]  closed_us  until when the rule is closed on all keys, 0 when it is not
-- returns  {status, released, now_us, version, promotions}, integers; see with_promotions in line.lua
--          released 0: it had ended; status 1 known, 5, 7, 8 see ledger.lua, the version is that of 7

local clock = require("lib/clock")
local ledger = require("limit/ledger")
local line = require("limit/line")
local rulecall = require("limit/rulecall")
local limit_of, open = ledger.limit_of, ledger.open
local rule_on = rulecall.rule_on
local open_line, promote, with_promotions = line.open_line, line.promote, line.with_promotions

return function(keys, args)
  local now = clock()
  local rule = rule_on(keys[1], keys[2], keys[3], limit_of("k", args[1], args[2], "", args[3]), "1", args[5], now)
  local ends = tonumber(redis.call("ZSCORE", rule.tokens, args[4]) or "-1")
  local released = ends > now and 1 or 0
  if ends >= 0 then redis.call("ZREM", rule.tokens, args[4]) end -- whatever became of the limit; a token that was withdrawn refuses on
  local status, newer = open(rule, now)
  if status then return { status, released, now, newer, 0 } end
  open_line(rule, now)
  local promoted = {}
  promote(rule, now, promoted)
  return with_promotions({ 1, released, now, 0 }, { rule }, now, promoted)
end
