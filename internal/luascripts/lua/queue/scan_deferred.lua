-- scan_deferred.lua: one portion of what is deferred on a queue, in the order of the
-- instants, and what each task waits for.
--
-- KEYS[1]  due        sorted set of tasks, see taskid.lua, score = instant in microseconds
-- ARGV[1]  from_us    first instant to list, or -1 for the last of all
-- ARGV[2]  skip       how many of that very instant were seen and left there
-- ARGV[3]  most       how many to list, 1 to 1000
-- ARGV[4]  tasks      prefix of asynq's task hashes of this queue, which carry the same tag, to be told their states; "" for none
-- returns  {now_us, last_us, listed, then per task: at_us, task, record, state, waits}; last_us is the last instant of
--          all tasks, or 0; waits are 8 bytes, see deferred.lua; integers, but task, record, state and waits are text; state is "" when
--          the task was deleted; both state and waits are "" when ARGV[4] is ""

local clock = require("lib/clock")
local numbers = require("lib/numbers")
local taskid = require("lib/taskid")
local read_hw = require("queue/deferred").read_hw
local max, min = math.max, math.min
local int = numbers.int
local long, parted = taskid.long, taskid.parted

return function(keys, args)
  local due = keys[1]
  local from, skip, most, prefix = tonumber(args[1]), tonumber(args[2]), tonumber(args[3]), args[4]

  local now = clock()
  local rank
  if from < 0 then
    rank = max(0, redis.call("ZCARD", due) - most)
  else
    rank = redis.call("ZCOUNT", due, "-inf", "(" .. int(from)) + min(skip, redis.call("ZCOUNT", due, int(from), int(from)))
  end
  local v = redis.call("ZRANGE", due, rank, rank + most - 1, "WITHSCORES")
  local last = redis.call("ZRANGE", due, -1, -1, "WITHSCORES")
  local reply = { now, tonumber(last[2] or "0"), #v / 2 }
  for i = 1, #v, 2 do
    local short, record = parted(v[i])
    local n = #reply
    reply[n + 1], reply[n + 2], reply[n + 3] = tonumber(v[i + 1]), short, record
    reply[n + 4], reply[n + 5] = "", ""
    if prefix ~= "" then
      local h = redis.call("HMGET", prefix .. long(short), "state", "hw")
      reply[n + 4], reply[n + 5] = h[1] or "", h[1] and read_hw(h[2]).wait_bytes or ""
    end
  end
  return reply
end
