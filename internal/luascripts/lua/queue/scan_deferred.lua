-- scan_deferred.lua: one portion of what is deferred on a queue, in the order of the
-- instants, and what each task waits for.
--
-- KEYS[1]  due        sorted set of tasks, see taskid.lua, score = instant in microseconds
-- ARGV[1]  from_us    first instant to list
-- ARGV[2]  skip       how many of that very instant were seen and left there
-- ARGV[3]  most       how many to list, 1 to 1000
-- returns  {now_us, last_us, listed, then per task: at_us, task, for}; last_us is the last instant of all, 0 when
--          there is none; integers, but for task and for, which are text

local clock = require("lib/clock")
local numbers = require("lib/numbers")
local taskid = require("lib/taskid")
local min = math.min
local int = numbers.int
local parted = taskid.parted

return function(keys, args)
  local due = keys[1]
  local from, skip, most = tonumber(args[1]), tonumber(args[2]), tonumber(args[3])

  local now = clock()
  local rank = redis.call("ZCOUNT", due, "-inf", "(" .. int(from)) + min(skip, redis.call("ZCOUNT", due, int(from), int(from)))
  local v = redis.call("ZRANGE", due, rank, rank + most - 1, "WITHSCORES")
  local last = redis.call("ZRANGE", due, -1, -1, "WITHSCORES")
  local reply = { now, tonumber(last[2] or "0"), #v / 2 }
  for i = 1, #v, 2 do
    reply[#reply + 1] = tonumber(v[i + 1])
    reply[#reply + 1], reply[#reply + 2] = parted(v[i])
  end
  return reply
end
