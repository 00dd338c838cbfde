-- retime.lua: deferred tasks move to another instant without being run.
--
-- KEYS[1]  due        sorted set of tasks, see taskid.lua, score = instant in microseconds; expires an hour after the last
-- KEYS[2]  retry      asynq's sorted set of tasks to try again, score in whole seconds
-- KEYS[3]  scheduled  asynq's sorted set of tasks that start later, score in whole seconds
-- KEYS[4+] tasks      asynq's hash of each task, ARGV[1] of them
-- ARGV[1]  count      how many tasks, 1 to 1000
-- ARGV[2]  earlier    1: only if it is earlier than what is there, and for a task that is still active too
-- ARGV[3+] per task   reason, 2 bytes, see deferred.lua, with 255 for the rule that it waits for already; task, at_us, see instant in
--                     deferred.lua, any: 1 when every pool wakes it, 0 when the one that comes first stays so; and of which entry that
--                     is the instant, by what the task waits for, empty for the one that it has
-- returns  count integers: 1 moved, 0 left alone, 3 deleted, 6 ended: archived or completed

local clock = require("lib/clock")
local numbers = require("lib/numbers")
local taskid = require("lib/taskid")
local deferred = require("queue/deferred")
local max = math.max
local int, live = numbers.int, numbers.live
local entry, long = taskid.entry, taskid.long
local ANY, read_hw, instant, moved_to, score_is_ours, ended, second_net =
  deferred.ANY, deferred.read_hw, deferred.instant, deferred.moved_to, deferred.score_is_ours, deferred.ended, deferred.second_net
local RETIMED, LEFT_ALONE = 1, 0 -- beside what `ended` answers

return function(keys, args)
  local due, set_of_state = keys[1], { retry = keys[2], scheduled = keys[3] }
  local count, earlier = tonumber(args[1]), args[2] == "1"

  local now = clock()
  local reply = {}
  for i = 1, count do
    local task, reason, short, at = keys[3 + i], args[5 * i - 2], args[5 * i - 1], instant(tonumber(args[5 * i]), now)
    local any, record = args[5 * i + 1] == "1", args[5 * i + 2]
    local h = redis.call("HMGET", task, "state", "unique_key", "hw")
    local id, d = long(short), read_hw(h[3])
    local own_entry = entry(short, d.record)
    local old = tonumber(redis.call("ZSCORE", due, own_entry) or "")
    local score = set_of_state[h[1]] and tonumber(redis.call("ZSCORE", set_of_state[h[1]], id) or "")
    reply[i] = ended(h[1]) or LEFT_ALONE
    if record ~= "" and record ~= d.record then
      -- left of one that was deleted, which had this id: wake.lua clears it
    elseif earlier and old and old <= at then
      -- it knows already
    elseif score_is_ours(d, score) then
      redis.call("ZREM", due, "") -- no entry: a write that needs no memory comes first, so that a full Redis lets the others pass
      redis.call("ZADD", set_of_state[h[1]], second_net(at), id)
      redis.call("ZADD", due, int(at), own_entry)
      redis.call("HSET", task, "hw", moved_to(second_net(at), any and ANY or d.pool, now, reason, d))
      live(due, max(0, at - now) + 3600000000)
      local more = tonumber(second_net(at)) - score
      if more > 0 and h[2] and redis.call("GET", h[2]) == id then -- unique while it waits; the lock carries the queue's tag
        redis.call("PEXPIRE", h[2], int(max(0, redis.call("PTTL", h[2])) + more * 1000))
      end
      reply[i] = RETIMED
    elseif earlier and h[1] == "active" then -- not deferred yet: defer.lua will find it
      redis.call("ZADD", due, int(at), own_entry)
      live(due, max(0, at - now) + 3600000000)
      reply[i] = RETIMED
    end
  end
  return reply
end
