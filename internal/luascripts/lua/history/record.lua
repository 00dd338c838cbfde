-- record.lua: what a process saw of a rule in the last seconds joins what others saw.
--
-- A value of minutes and hours is "name:count name:count ...;limit". Counts of one name are
-- added up; peak, the permits that the busiest key got, is the highest.
--
-- KEYS[1]  minutes      hash of an hour, field = minute, value as above; expires 25 hours after it was made
-- KEYS[2]  hours        hash of a day, field = hour, value as above; expires 32 days after it was made
-- KEYS[3]  minute_keys  sorted set of the ids that were granted most in this minute, score = permits; expires after two minutes
-- KEYS[4]  hour_keys    the same for this hour; expires after two hours
-- KEYS[5]  waiting      sorted set of ids, score = instant in microseconds at which the last job starts that was deferred on it; expires with the last
-- ARGV[1]  minute       field of minutes
-- ARGV[2]  hour         field of hours
-- ARGV[3]  limit        in force, empty for a gate
-- ARGV[4]  counts       "name:count name:count ..."
-- ARGV[5]  keep         how many ids each sorted set keeps
-- ARGV[6]  busy         how many ids and permits follow, then come ids and instants
-- ARGV[7+] ids          id, permits or at_us
-- returns  {permits of the busiest key in this minute, the same in this hour}

local clock = require("lib/clock")
local numbers = require("lib/numbers")
local int, live = numbers.int, numbers.live

-- joined is a value with more counts
local function joined(value, counts, limit, peak)
  local names, sums = {}, {}
  local function add(text)
    for name, n in string.gmatch(text, "([a-z0-9]+):(%d+)") do
      if not sums[name] then names[#names + 1] = name end
      sums[name] = (sums[name] or 0) + tonumber(n)
    end
  end
  add(value and string.match(value, "^[^;]*") or "")
  add(counts)
  if peak > 0 then
    if not sums.peak then names[#names + 1] = "peak" end
    sums.peak = math.max(sums.peak or 0, peak)
  end
  local all = {}
  for i, name in ipairs(names) do all[i] = name .. ":" .. int(sums[name]) end
  return table.concat(all, " ") .. ";" .. limit
end

return function(keys, args)
  local minutes, hours, minute_keys, hour_keys, waiting = keys[1], keys[2], keys[3], keys[4], keys[5]
  local minute, hour, limit, counts, keep, busy = args[1], args[2], args[3], args[4], tonumber(args[5]), tonumber(args[6])

  local now = clock()
  local reply = {}
  for s, sorted in ipairs({ minute_keys, hour_keys }) do
    for i = 1, busy do redis.call("ZINCRBY", sorted, args[6 + 2 * i], args[5 + 2 * i]) end
    redis.call("ZREMRANGEBYRANK", sorted, 0, -keep - 1)
    reply[s] = tonumber(redis.call("ZRANGE", sorted, -1, -1, "WITHSCORES")[2] or "0")
  end
  redis.call("HSET", minutes, minute, joined(redis.call("HGET", minutes, minute), counts, limit, reply[1]))
  redis.call("HSET", hours, hour, joined(redis.call("HGET", hours, hour), counts, limit, reply[2]))
  for i = 7 + 2 * busy, #args, 2 do
    redis.call("ZADD", waiting, "GT", args[i + 1], args[i])
  end
  redis.call("ZREMRANGEBYSCORE", waiting, "-inf", int(now))
  redis.call("ZREMRANGEBYRANK", waiting, 0, -keep - 1)

  live(minute_keys, 120000000)
  live(hour_keys, 7200000000)
  live(minutes, 90000000000)
  live(hours, 2764800000000)
  local last = tonumber(redis.call("ZRANGE", waiting, -1, -1, "WITHSCORES")[2] or "0")
  if last > now then live(waiting, last - now) end
  return reply
end
