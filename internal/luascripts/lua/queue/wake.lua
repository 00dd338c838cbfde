-- wake.lua: deferred tasks go to the front of pending, in the order given, and
-- behind those that were woken before and still wait there. While workers are
-- scarce one other task goes between them, so that the rest does not starve.
--
-- KEYS[1]  due        sorted set of tasks, see taskid.lua, score = instant in microseconds
-- KEYS[2]  retry      asynq's sorted set of tasks to try again
-- KEYS[3]  pending    asynq's list of tasks to run; asynq pops its right end
-- KEYS[4]  scheduled  asynq's sorted set of tasks that start later: where those are that were booked when they were enqueued
-- KEYS[5+] tasks      asynq's hash of each task, ARGV[4] of them
-- ARGV[1]  now_ns     pending since, as asynq writes it; also the mark of a woken task
-- ARGV[2]  task       prefix of asynq's task hashes of this queue, which carry the same tag
-- ARGV[3]  scarce     1: workers are scarce, and one other task stays in front of these
-- ARGV[4]  count      how many tasks, 1 to 1000
-- ARGV[5+] per task   the first to run first: its id, see taskid.lua, and its record: what it waits for, empty when the caller does
--                     not know that. Of a task that is gone only the entry with this record is removed: one with another record stays,
--                     because waker or sweeper reads in it which places are to be given up
-- returns  count integers: 1 woken, 2 still active (ask again), 3 deleted, 4 not ours any more, 5 not yet: 100 wait in front, 6 ended:
--          archived or completed

local taskid = require("lib/taskid")
local deferred = require("queue/deferred")
local entry, long = taskid.entry, taskid.long
local STATUS, read_hw, score_is_ours, ended, woken_as = deferred.STATUS, deferred.read_hw, deferred.score_is_ours, deferred.ended, deferred.woken_as

-- in_front reads the front of pending. The tasks from front[first] on run first: they were woken before, and the other
-- tasks among them took turns with those. The tasks that are woken now run after them
local function in_front(pending, prefix)
  -- a task that was woken, and only that, has been pending since its mark
  local function woken(id)
    local h = redis.call("HMGET", prefix .. id, "hw_woken", "pending_since")
    return h[1] and h[1] == h[2]
  end
  local front = redis.call("LRANGE", pending, -101, -1)
  local first = #front + 1
  while first > 1 do
    if woken(front[first - 1]) then
      first = first - 1
    elseif first > 2 and woken(front[first - 2]) then
      first = first - 2
    else
      break
    end
  end
  return front, first
end

-- read finds what becomes of each task: `reply`; and what is to be written for it: due `entries` that are removed, `left`: by
-- state the ids that leave asynq's set, `ids` that become pending, and their `hashes`
local function read(keys, args, count, set_of_state, full)
  local found = { reply = {}, entries = {}, left = { retry = {}, scheduled = {} }, ids = {}, hashes = {} }
  local reply, entries, taken = found.reply, found.entries, {}
  for i = count, 1, -1 do
    local task, short, record = keys[4 + i], args[3 + 2 * i], args[4 + 2 * i]
    local h = redis.call("HMGET", task, "state", "hw")
    local state = h[1]
    if state == "active" then
      reply[i] = STATUS.still_active
    elseif full and set_of_state[state] then
      reply[i] = STATUS.not_yet
    elseif record == "" and ended(state) then
      entries[#entries + 1] = short -- the entry without a record; one that has a record stays, see ARGV[5+]
      reply[i] = ended(state)
    else
      local id, d = long(short), read_hw(h[2])
      entries[#entries + 1] = entry(short, record)
      -- the caller does not know what it waits for, and means the task as it is: its own entry goes, too
      if record == "" and d.record ~= "" then
        record = d.record
        entries[#entries + 1] = entry(short, record)
      end
      reply[i] = ended(state) or STATUS.not_ours
      -- another score than ours is a user's own back-off, or later start: it is not ours to end
      if set_of_state[state] and not taken[id] and record == d.record and score_is_ours(d, tonumber(redis.call("ZSCORE", set_of_state[state], id) or "")) then
        taken[id] = true
        table.insert(found.left[state], id)
        table.insert(found.ids, id)
        table.insert(found.hashes, { task, woken_as(d) })
        reply[i] = STATUS.woken
      end
    end
  end
  return found
end

-- push puts the woken tasks to the left of front[first] and those behind it, so they run after these. In the new order that
-- part of the list is `tail`. RPUSH makes the list longer by the last n of it; then the places that front[first] and those
-- behind it had are overwritten with the rest. Nothing to the left of them is touched
local function push(pending, ids, front, first)
  local n, tail = #ids, ids
  for i = first, #front do tail[#tail + 1] = front[i] end
  redis.call("RPUSH", pending, unpack(tail, #tail - n + 1))
  for i = 1, #tail - n do redis.call("LSET", pending, i - #tail - 1, tail[i]) end
end

return function(keys, args)
  local due, pending = keys[1], keys[3]
  local set_of_state = { retry = keys[2], scheduled = keys[4] }
  local now_ns, prefix, scarce, count = args[1], args[2], args[3] == "1", tonumber(args[4])

  -- All is read before anything is written, and each key is written once. While a slot moves to another
  -- node, Redis ends a script that touches a key which its own writes have emptied: half of it would be done
  local front, first = in_front(pending, prefix)
  local found = read(keys, args, count, set_of_state, #front - first >= 99)
  if scarce and first > 1 then first = first - 1 end -- one other task stays in front of these

  if #found.entries > 0 then redis.call("ZREM", due, unpack(found.entries)) end
  for state, ids in pairs(found.left) do
    if #ids > 0 then redis.call("ZREM", set_of_state[state], unpack(ids)) end
  end
  if #found.ids > 0 then push(pending, found.ids, front, first) end
  for _, h in ipairs(found.hashes) do
    redis.call("HSET", h[1], "state", "pending", "pending_since", now_ns, "hw_woken", now_ns, "hw", h[2])
  end
  return found.reply
end
