-- fetch.lua: take tasks from the front of pending and make them active, as asynq's own script
-- does with one. The answer is kept: a copy of the call, or the call sent again because its
-- answer was lost, gets the same tasks.
--
-- KEYS[1]  pending  asynq's list of tasks to run
-- KEYS[2]  paused   exists while the queue is paused
-- KEYS[3]  active   asynq's list of running tasks
-- KEYS[4]  lease    asynq's sorted set of leases, score in whole seconds
-- KEYS[5]  fetched  string, which tasks the last call of this pool took, see fetched.lua
-- ARGV[1]  task     prefix of asynq's task hashes of this queue, which carry the same tag
-- ARGV[2]  call     number of the call; each call of a pool about a queue has a higher one
-- ARGV[3]  expires  when asynq's lease on the tasks ends
-- ARGV[4]  most     how many tasks at most, 0 to 1000; none when only the answer of the last call is wanted
-- ARGV[5]  again    "1" when the call may have been sent before, "0" otherwise. Its number is then noted also when it takes
--          nothing: the first copy may still be on its way, and would take tasks for a pool that does not wait for it.
--          A call that is sent once notes nothing when it takes nothing, so a poll of an empty queue writes nothing.
-- returns  {tasks, then per task, the first to run first: message, how}, an integer and texts: asynq's message; and a byte, "1" when an
--          operator lets it run now, see run_now.lua, with the 8 bytes that tell how it waited, see deferred.lua, or an empty text
--          when there is neither; no tasks when a later call of the pool has been answered

local deferred = require("queue/deferred")
local fetched = require("queue/fetched")
local NO_WAIT, read_hw = deferred.NO_WAIT, deferred.read_hw
local last, note = fetched.last, fetched.note

local function how(now, hw)
  local wait_bytes = hw and read_hw(hw).wait_bytes or NO_WAIT
  if not now and wait_bytes == NO_WAIT then return "" end
  return (now and "1" or "0") .. wait_bytes
end

return function(keys, args)
  local pending, paused, active, lease = keys[1], keys[2], keys[3], keys[4]
  local prefix, call, expires = args[1], tonumber(args[2]), args[3]

  local reply = { 0 }
  -- add answers a task, and says whether it is there
  local function add(task)
    local h = redis.call("HMGET", task, "msg", "hw_now", "hw")
    if not h[1] then return false end
    reply[1] = reply[1] + 1
    reply[#reply + 1] = h[1]
    reply[#reply + 1] = how(h[2], h[3])
    return true
  end

  local before = last(keys[5])
  if before and call < before.call then return reply end
  if before and call == before.call then
    note(keys[5], call, before.ids)
    for _, id in ipairs(before.ids) do
      -- XX: what has ended since has no lease any more
      redis.call("ZADD", lease, "XX", "GT", expires, id)
      add(prefix .. id)
    end
    return reply
  end

  local most, ids = tonumber(args[4]), {}
  if redis.call("EXISTS", paused) == 1 then most = 0 end
  for i = 1, most do
    local id = redis.call("RPOPLPUSH", pending, active)
    if not id then break end
    local task = prefix .. id
    -- A task that is not there was deleted, or is on another node by now, while the slot moves there. A hash with
    -- nothing but a state would be in the way of it. asynq recovers the task when its lease has ended.
    if add(task) then
      redis.call("HSET", task, "state", "active")
      redis.call("HDEL", task, "pending_since")
    end
    redis.call("ZADD", lease, expires, id)
    ids[i] = id
  end
  if #ids > 0 or args[5] == "1" then note(keys[5], call, ids) end
  return reply
end
