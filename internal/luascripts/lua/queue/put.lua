-- put.lua: a new task goes into a queue as asynq's own scripts put it there, or is
-- booked. Q are the keys pending, scheduled and due, as enqueue.lua has them.

local UNTOUCHED = deferred(nil) -- nothing was written of a new task

-- put_refused is why a task can't be put there, nil when it can; enqueued, by a call
-- that was cut short, is no reason
local function put_refused(task, lock, token)
  local hw = redis.call("HGET", task, "hw")
  if hw and string.find(deferred(hw).tokens, token, 1, true) then return 1 end
  if lock ~= task and redis.call("EXISTS", lock) == 1 then return -1 end
  return (hw or redis.call("EXISTS", task) == 1) and 0 or nil
end

local function put_booked(Q, now, short, at, what, lock)
  redis.call("ZADD", Q.scheduled, second_net(at), long(short))
  redis.call("ZADD", Q.due, int(at), entry(short, what))
  live(Q.due, max(0, at - now) + 3600000000)
  if lock then redis.call("PEXPIRE", lock, int(redis.call("PTTL", lock) + ceil(max(0, at - now) / 1000))) end
  if not Q.first or at < Q.first then Q.first = at end
end

-- put puts the task whose seven arguments stand from ARGV[a] on, and answers as
-- enqueue.lua does
local function put(Q, now, task, lock, a)
  local short, token, msg, state, at, what, lock_s = ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4], ARGV[a + 5], ARGV[a + 6]
  local code = put_refused(task, lock, token)
  if code then return code end
  local unique = lock ~= task and lock
  if unique then redis.call("SET", lock, long(short), "EX", lock_s) end
  local net = state == "booked" and second_net(tonumber(at)) or "0"
  local hw = deferred_as(net, ANY, token, state == "booked" and what or "", UNTOUCHED)
  redis.call("HSET", task, "msg", msg, "state", state == "booked" and "scheduled" or state, "hw", hw)
  if unique then redis.call("HSET", task, "unique_key", lock) end
  if state == "pending" then
    redis.call("HSET", task, "pending_since", at)
    redis.call("LPUSH", Q.pending, long(short))
  elseif state == "scheduled" then
    redis.call("ZADD", Q.scheduled, at, long(short))
  else
    put_booked(Q, now, short, tonumber(at), what, unique)
  end
  return 1
end

-- put_told tells pools of a new first instant
local function put_told(Q, now)
  if Q.first and redis.call("ZRANGE", Q.due, 0, 0, "WITHSCORES")[2] == int(Q.first) then
    redis.pcall("PUBLISH", Q.due, int(max(0, Q.first - now))) -- a user who may not publish may enqueue: pools look each second
  end
end
