-- enqueue.lua: put new tasks into a queue as asynq's own scripts do: pending, or
-- scheduled; or booked: scheduled and due at the instant of a place in a line. A
-- copy of a call changes nothing and gets the same answer.
--
-- KEYS[1]  pending    asynq's list of tasks to run
-- KEYS[2]  scheduled  asynq's sorted set of tasks that start later, score in whole seconds
-- KEYS[3]  due        sorted set of tasks, see taskid.lua, score = instant in microseconds; expires an hour after the last; also the
--                     channel on which its first instant is told, as microseconds from now, when it is a new one
-- KEYS[4]  sent       string, what this call answered, a letter a task; lives for a minute
-- KEYS[5+] tasks      of each: asynq's hash of the task, and its lock, or the hash again when it is not unique
-- ARGV[1]  count      how many tasks, 1 to 100
-- ARGV[2+] per task   its id, see taskid.lua; the token of this enqueueing, 8 bytes; asynq's message; how it is put: "pending",
--                     "scheduled" or "booked"; when: nanoseconds since when it is pending, asynq's score, or the instant in
--                     microseconds; what it waits for, when booked; life of the lock in seconds, 0 for none
-- returns  count integers, asynq's own: 1 enqueued, 0 the task exists, -1 the lock is another's
local pending, scheduled, due, sent = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local count, FIELDS = tonumber(ARGV[1]), 7
local NEVER = deferred(nil)

local now = clock()
local reply = {}
-- a copy may come when the task has run, and is gone
local answered = redis.call("GET", sent) or ""
for i = 1, #answered do reply[i] = string.byte(answered, i) - 98 end
if #reply == count then return reply end

-- refused is why a task can't be put there, nil when it can; enqueued, by a call
-- that was cut short, is no reason
local function refused(task, lock, token)
  local hw = redis.call("HGET", task, "hw")
  if hw and string.find(deferred(hw).tokens, token, 1, true) then return 1 end
  if lock ~= task and redis.call("EXISTS", lock) == 1 then return -1 end
  return (hw or redis.call("EXISTS", task) == 1) and 0 or nil
end

local first
local function book(task, short, at, what, lock)
  redis.call("ZADD", scheduled, second_net(at), long(short))
  redis.call("ZADD", due, int(at), entry(short, what))
  live(due, max(0, at - now) + 3600000000)
  if lock then redis.call("PEXPIRE", lock, int(redis.call("PTTL", lock) + ceil(max(0, at - now) / 1000))) end
  if not first or at < first then first = at end
end

local letters = {}
for i = 1, count do
  local task, lock, a = KEYS[3 + 2 * i], KEYS[4 + 2 * i], FIELDS * (i - 1) + 2
  local short, token, msg, state, at, what, lock_s = ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4], ARGV[a + 5], ARGV[a + 6]
  reply[i] = refused(task, lock, token)
  if not reply[i] then
    local unique = lock ~= task and lock
    if unique then redis.call("SET", lock, long(short), "EX", lock_s) end
    local net = state == "booked" and second_net(tonumber(at)) or "0"
    local hw = deferred_as(net, ANY, token, state == "booked" and what or "", NEVER)
    redis.call("HSET", task, "msg", msg, "state", state == "booked" and "scheduled" or state, "hw", hw)
    if unique then redis.call("HSET", task, "unique_key", lock) end
    if state == "pending" then
      redis.call("HSET", task, "pending_since", at)
      redis.call("LPUSH", pending, long(short))
    elseif state == "scheduled" then
      redis.call("ZADD", scheduled, at, long(short))
    else
      book(task, short, tonumber(at), what, unique)
    end
    reply[i] = 1
  end
  letters[i] = string.char(reply[i] + 98)
end
redis.call("SET", sent, table.concat(letters), "PX", int(life(COPY)))
if first and redis.call("ZRANGE", due, 0, 0, "WITHSCORES")[2] == int(first) then
  redis.pcall("PUBLISH", due, int(max(0, first - now))) -- a user who may not publish may enqueue: pools look each second
end
return reply
