-- due.lua: what is due on a queue for the pool that asks, and when to ask again. What
-- is every pool's becomes its own by that: the others leave it to that one.
--
-- KEYS[1]  due        sorted set of tasks, see taskid.lua, score = instant in microseconds
-- ARGV[1]  task       prefix of asynq's task hashes of this queue, which carry the same tag
-- ARGV[2]  lead_us    how long before its instant a task is due
-- ARGV[3]  room       how many of those that can be woken to list, 0 to 1000; others beside, at most 100
-- ARGV[4]  free       how many workers wait for a task: so many of the first become this pool's own; the others stay every pool's
-- ARGV[5]  pool       who asks, 4 bytes; zeros for nobody, to whom all are listed
-- ARGV[6]  others_us  how long after its instant a task is due to a pool that does not come first to wake it
-- returns  {now_us, again_us, more, listed, then per task: at_us, task, state, record, pool}; again_us is when the next is due to that
--          pool, 0 when there is none, or when too many tasks in front of it can't be woken; more is 1 when another task is due now, and
--          there was no room for it; pool is the one that was to wake it first, before this call; integers, but task, state, record and pool are text

local clock = require("lib/clock")
local taskid = require("lib/taskid")
local deferred = require("queue/deferred")
local min = math.min
local long, parted = taskid.long, taskid.parted
local ANY, with_pool, pool_of = deferred.ANY, deferred.with_pool, deferred.pool_of

return function(keys, args)
  local due, prefix, lead, room = keys[1], args[1], tonumber(args[2]), tonumber(args[3])
  local free, asker, others = tonumber(args[4]), args[5], tonumber(args[6])
  local BESIDE = 100 -- so many that are not to be woken are passed by

  local now = clock()
  -- wakeable: how many of those that can be woken are listed; passed: how many others are passed by, listed or not
  local reply, wakeable, passed, again, more = { now, 0, 0, 0 }, 0, 0, nil, 0

  -- note_again notes when one that is not due yet will be due to the asker
  local function note_again(at)
    if not again or at < again then again = at end
  end

  local function list(at, short, state, record, pool)
    local n = #reply
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4], reply[n + 5] = at, short, state, record, pool
  end

  -- consider lists one entry or leaves it for later, and answers whether to go on
  local function consider(e, at)
    if at > now + lead then
      note_again(at - lead)
      return false
    end
    local short, record = parted(e)
    local task = prefix .. long(short)
    local h = redis.call("HMGET", task, "state", "hw")
    local state, pool = h[1] or "", pool_of(h[2])
    if state == "" or state == "active" or state == "archived" or state == "completed" then
      list(at, short, state, record, pool)
      passed = passed + 1
    elseif asker ~= ANY and pool ~= ANY and pool ~= asker and now - at < others then
      note_again(at + others)
      passed = passed + 1
    elseif wakeable == room then
      more = 1
      return false
    else
      local hw = pool == ANY and asker ~= ANY and wakeable < free and with_pool(asker, h[2])
      if hw then redis.pcall("HSET", task, "hw", hw) end -- a Redis that is full may refuse it: then all pools have it
      list(at, short, state, record, pool)
      wakeable = wakeable + 1
    end
    return passed < BESIDE
  end

  local rank, going = 0, true
  while going do
    local n = min(room - wakeable, BESIDE) + 4
    local v = redis.call("ZRANGE", due, rank, rank + n - 1, "WITHSCORES")
    for i = 1, #v, 2 do
      going = consider(v[i], tonumber(v[i + 1]))
      if not going then break end
    end
    rank = rank + n
    going = going and #v == 2 * n
  end
  if passed == BESIDE and wakeable > 0 then more = 1 end
  reply[2], reply[3], reply[4] = again or 0, more, (#reply - 4) / 5
  return reply
end
