-- insert_task.lua: a new task goes into a queue as asynq's own scripts put it there, or is
-- booked. queue are the keys pending, scheduled and due, as enqueue.lua has them.

local numbers = require("lib/numbers")
local taskid = require("lib/taskid")
local deferred = require("queue/deferred")
local NO_WAIT, waiting = deferred.NO_WAIT, deferred.waiting
local ceil, max = math.ceil, math.max
local int, live = numbers.int, numbers.live
local entry, long = taskid.entry, taskid.long
local ANY, read_hw, deferred_as, instant, second_net = deferred.ANY, deferred.read_hw, deferred.deferred_as, deferred.instant, deferred.second_net

local LOOKED_AHEAD = 1000000 -- pools look less far ahead than InlineWait, which is so long at most
local UNTOUCHED = read_hw(nil) -- nothing was written of a new task

-- put_refused is why a task can't be put there, nil when it can; enqueued, by a call
-- that was cut short, is no reason
local function put_refused(task, lock, token)
  local hw = redis.call("HGET", task, "hw")
  if hw and string.find(read_hw(hw).tokens, token, 1, true) then return 1 end
  if lock ~= task and redis.call("EXISTS", lock) == 1 then return -1 end
  return (hw or redis.call("EXISTS", task) == 1) and 0 or nil
end

local function put_booked(queue, now, short, at, record, lock)
  redis.call("ZADD", queue.scheduled, second_net(at), long(short))
  redis.call("ZADD", queue.due, int(at), entry(short, record))
  live(queue.due, max(0, at - now) + 3600000000)
  if lock then redis.call("PEXPIRE", lock, int(redis.call("PTTL", lock) + ceil(max(0, at - now) / 1000))) end
  if not queue.first or at < queue.first then queue.first = at end
end

-- put puts the task whose eight arguments stand from args[a] on, and answers as
-- enqueue.lua does
local function put(args, queue, now, task, lock, a)
  local short, token, msg, state = args[a], args[a + 1], args[a + 2], args[a + 3]
  local at, record, lock_s, reason = args[a + 4], args[a + 5], args[a + 6], args[a + 7]
  local code = put_refused(task, lock, token)
  if code then return code end
  local unique = lock ~= task and lock
  if unique then redis.call("SET", lock, long(short), "EX", lock_s) end
  if state == "booked" then at = instant(tonumber(at), now) end
  local net = state == "booked" and second_net(at) or "0"
  local wait_bytes = state == "booked" and waiting(NO_WAIT, now, reason) or NO_WAIT
  local hw = deferred_as(net, ANY, token, wait_bytes, state == "booked" and record or "", UNTOUCHED)
  redis.call("HSET", task, "msg", msg, "state", state == "booked" and "scheduled" or state, "hw", hw)
  if unique then redis.call("HSET", task, "unique_key", lock) end
  if state == "pending" then
    redis.call("HSET", task, "pending_since", at)
    redis.call("LPUSH", queue.pending, long(short))
  elseif state == "scheduled" then
    redis.call("ZADD", queue.scheduled, at, long(short))
  else
    put_booked(queue, now, short, at, record, unique)
  end
  return 1
end

-- put_and_publish tells pools of a task that comes due before they look again. They will look for each task that is due more
-- than LOOKED_AHEAD from now. Of what is due earlier they may have read already, and then they do not look again for it: it
-- runs, or waits for a worker. Such a task must not keep them from hearing of another
local function put_and_publish(queue, now)
  if queue.first and redis.call("ZCOUNT", queue.due, int(now + LOOKED_AHEAD), "(" .. int(queue.first)) == 0 then
    redis.pcall("PUBLISH", queue.due, int(max(0, queue.first - now))) -- a user who may not publish may enqueue: pools look each second
  end
end

return {
  put = put, put_and_publish = put_and_publish,
}
