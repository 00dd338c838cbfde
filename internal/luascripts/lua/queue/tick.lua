-- tick.lua: one tick of an entry of a schedule. Whoever comes first enqueues its task,
-- or passes it over, for all; a copy of the call changes nothing.
--
-- KEYS[1]  record   hash of the entry: last, the tick up to which all are decided; held, a tick that waits for the tasks of earlier
--                   ones; open, the ids of up to 32 of those; and of each spec that is in use since when, and when it was seen last
-- KEYS[2]  pending  asynq's list of tasks to run
-- KEYS[3]  task     asynq's hash of the tick's task; the record again when it only looks
-- KEYS[4]  ticks    list of up to 10 ticks that were decided last, for people to read, the newest first: the tick, its code, and when it
--                   was decided, with spaces between them
-- ARGV[1]  spec     names the spec of whoever asks; never last, held or open
-- ARGV[2]  life_us  how long the record lives at least
-- ARGV[3]  at_us    the tick; 0 only looks
-- ARGV[4]  known_us the last tick of those that the caller knows to be decided; 0 when it knows none. Where another was decided last, nothing is done
-- ARGV[5]  by_us    from then on the tick is missed; not for one that is held
-- ARGV[6]  overlap  0 the tasks of earlier ticks do not matter, 1 it is skipped while one is unfinished, 2 it is held then, one at most
-- ARGV[7]  id       of the task
-- ARGV[8]  message  as asynq encodes it; empty to give the tick up
-- ARGV[9]  prefix   of asynq's task hashes
-- returns  {code, now_us, from_us, held_us}, four integers, always; code: 0 looked, or nothing was done: others came first, or it is
--          not the time; 1 enqueued, 2 skipped, 3 held, 4 given up

local clock = require("lib/clock")
local numbers = require("lib/numbers")
local max, min = math.max, math.min
local int, live = numbers.int, numbers.live

return function(keys, args)
  local record, pending, task, ticks = keys[1], keys[2], keys[3], keys[4]
  local spec, lives, at, known, by = args[1], tonumber(args[2]), tonumber(args[3]), tonumber(args[4]), tonumber(args[5])
  local overlap, id, message, prefix = args[6], args[7], args[8], args[9]
  local AWAY, SPECS, OPEN, TICKS_MOST = 300000000, 16, 32, 10 -- a spec that is not seen so long, while another is, is out of use
  local UNFINISHED = { pending = true, active = true, scheduled = true, retry = true, aggregating = true }

  local now = clock()
  local last, held, open, since, seen, newest, others, gone = 0, 0, {}, nil, 0, 0, 0, {}
  local fields = redis.call("HGETALL", record)
  for i = 1, #fields, 2 do
    local name, value = fields[i], fields[i + 1]
    if name == "last" then last = tonumber(value)
    elseif name == "held" then held = tonumber(value)
    elseif name == "open" then for other in string.gmatch(value, "%S+") do open[#open + 1] = other end
    else
      local from, at_us = string.match(value, "^(%d+) (%d+)$")
      if name == spec then
        since, seen = tonumber(from), tonumber(at_us)
      else
        others, newest = others + 1, max(newest, tonumber(at_us))
        if tonumber(at_us) < now - AWAY or others >= SPECS then gone[#gone + 1] = name end
      end
    end
  end
  -- its ticks count from when it came into use; a record that was lost goes on from
  -- where the caller knew it to be
  if #fields == 0 and known > 0 then
    since = min(known, now)
  elseif not since or seen < newest - AWAY then
    since = now
  end

  local function busy()
    local still = {}
    for _, other in ipairs(open) do
      if UNFINISHED[redis.call("HGET", prefix .. other, "state")] then still[#still + 1] = other end
    end
    open = still
    return #open > 0
  end

  -- note keeps what was decided; of a tick that was held it replaces that
  local function note(waited, code)
    local text = string.format("%.0f %d %.0f", at, code, now)
    if not waited then
      redis.call("LPUSH", ticks, text)
      redis.call("LTRIM", ticks, 0, TICKS_MOST - 1)
      return
    end
    for i, other in ipairs(redis.call("LRANGE", ticks, 0, -1)) do
      if tonumber(string.match(other, "^%d+")) == at then redis.call("LSET", ticks, i - 1, text) end
    end
  end

  local code, from = 0, max(last, since)
  local mine = at > 0 and (at == held or at > from and known == from and now >= at and now < by)
  if mine then
    local waited = at == held
    if not waited then last = at end
    if message == "" then
      code = 4
    elseif overlap == "1" and not waited and (held > 0 or busy()) or overlap == "2" and not waited and held > 0 then
      code = 2
    elseif overlap ~= "0" and busy() then
      code, held = 3, at
    else
      code = 1
    end
    if waited and code ~= 3 then held = 0 end
    if not waited or code ~= 3 then note(waited, code) end
  end

  if code == 1 then
    if redis.call("EXISTS", task) == 0 then -- the record may have been lost, and not the task
      redis.call("HSET", task, "msg", message, "state", "pending", "pending_since", int(now * 1000))
      redis.call("LPUSH", pending, id)
    end
    open[#open + 1] = id
    if #open > OPEN then table.remove(open, 1) end
  end
  redis.call("HSET", record, "last", int(last), "held", int(held), "open", table.concat(open, " "),
    spec, string.format("%.0f %.0f", since, now))
  for _, name in ipairs(gone) do redis.call("HDEL", record, name) end
  live(record, lives)
  live(ticks, lives)
  return { code, now, max(last, since), held }
end
