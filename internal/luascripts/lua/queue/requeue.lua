-- requeue.lua: tasks that a pool has fetched and did not start go back to the front of pending,
-- where they came from, as asynq does at a shutdown. A copy of the call changes nothing.
--
-- KEYS[1]  pending  asynq's list of tasks to run
-- KEYS[2]  active   asynq's list of running tasks
-- KEYS[3]  lease    asynq's sorted set of leases
-- KEYS[4]  fetched  string, which tasks the last call of this pool took, see fetched.lua
-- ARGV[1]  task     prefix of asynq's task hashes of this queue, which carry the same tag
-- ARGV[2]  call     number of the call that took the tasks
-- ARGV[3]  count    how many tasks, 1 to 1000
-- ARGV[4+] tasks    their ids, the first to run first
-- returns  one integer: how many went back; none when the tasks may be another pool's by now

local fetched = require("queue/fetched")
local last, note = fetched.last, fetched.note

return function(keys, args)
  local pending, active, lease = keys[1], keys[2], keys[3]
  local prefix, call = args[1], tonumber(args[2])
  local before = last(keys[4])
  if not before or before.call ~= call then return { 0 } end
  local taken, back = {}, 0
  for _, id in ipairs(before.ids) do taken[id] = true end
  for i = tonumber(args[3]), 1, -1 do
    local id = args[3 + i]
    if taken[id] and redis.call("LREM", active, 0, id) > 0 then
      redis.call("ZREM", lease, id)
      redis.call("RPUSH", pending, id)
      if redis.call("EXISTS", prefix .. id) == 1 then redis.call("HSET", prefix .. id, "state", "pending") end -- see fetch.lua
      back = back + 1
    end
  end
  note(keys[4], call, {})
  return { back }
end
