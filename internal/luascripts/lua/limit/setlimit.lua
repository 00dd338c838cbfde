-- setlimit.lua: store the limit of a rule, which goes before the one in code,
-- or take it away.
--
-- KEYS[1]  stored     string "version_us limit", without an end unless one was asked for; also the channel on
--                     which each change is told. Taken away, it is "version_us " for an hour. When a policy file
--                     had the limit, the limits that it replaced stand after it, each after a newline
-- ARGV[1]  limit      its text, or "" to take it away
-- ARGV[2]  absent     1: only if none is stored
-- ARGV[3]  ttl_us     how long it is to be stored, 0 for ever
-- ARGV[4]  replaced   "" for an operator's limit. For one that a policy file has: a newline and a limit for each that
--                     it replaced, the newest first
-- ARGV[5]  version    of what was read before the file's limit is stored: only if that is stored still; 0 for nothing
-- returns  {done 0|1, version_us}, two integers, always; the version of what is stored now

local clock = require("lib/clock")
local numbers = require("lib/numbers")
local max = math.max
local int, life = numbers.int, numbers.life

return function(keys, args)
  local stored, limit, absent, ttl, replaced, read = keys[1], args[1], args[2] == "1", tonumber(args[3]), args[4], tonumber(args[5])
  local TRACE = 3600000000 -- so long everybody can see that it was taken away

  local now = clock()
  local value = redis.call("GET", stored)
  local before, old = string.match(value or "", "^(%d+) (.*)$")
  local there = value and old ~= ""

  before = tonumber(before or "0")
  if absent and there or limit == "" and not there then return { 0, before } end
  if replaced ~= "" and before ~= read then return { 0, before } end

  -- a clock that went back must not make an older version of a newer one
  local version = max(now, before + 1)
  version = version + version % 2 -- the odd ones are of limits that a function gave for one key
  if limit == "" then ttl = TRACE end
  if ttl > 0 then
    redis.call("SET", stored, int(version) .. " " .. limit .. replaced, "PX", int(life(ttl)))
  else
    redis.call("SET", stored, int(version) .. " " .. limit .. replaced)
  end
  redis.pcall("PUBLISH", stored, int(version)) -- a user who may not publish may set: everybody looks for themselves too
  return { 1, version }
end
