-- feed.lua: elements of a batch become tasks of its queue, each put there as
-- enqueue.lua does, and never more of them than its window; or are refused. Only who
-- holds the batch's lease feeds it. A copy of a call changes nothing and gets the same answer.
--
-- KEYS[1]  pending    asynq's list of tasks to run
-- KEYS[2]  scheduled  asynq's sorted set of tasks that start later, score in whole seconds
-- KEYS[3]  due        as enqueue.lua has it
-- KEYS[4]  sent       string, what this call answered, a letter for its end and one an element; lives for a minute
-- KEYS[5]  record     hash of the batch
-- KEYS[6]  unfinished sorted set of its elements that were enqueued and have not ended, score = position
-- KEYS[7]  ahead      sorted set of its elements that are settled, enqueued or refused, and not before the cursor, score = position; some before
--                     it too, until they are taken out
-- KEYS[8]  batches    sorted set of the ids of batches that have not ended
-- KEYS[9]  ended      sorted set of the ids of those that have, score = until when their records are kept
-- KEYS[10+] tasks     of each: asynq's hash of the task, and its lock, or the hash again when it is not unique
-- ARGV[1]  id         of the batch
-- ARGV[2]  owner      who feeds it, 8 bytes
-- ARGV[3]  cursor     position before which all is settled once these elements are
-- ARGV[4]  mark       of the source for that position
-- ARGV[5]  end        1: the source has no more, and these are the last that were not settled
-- ARGV[6]  pace_at    from when on its pace allows the next, in microseconds
-- ARGV[7]  calls      how many calls the feeder knows to have been done: a record with less has forgotten some
-- ARGV[8]  count      how many elements, 0 to 100
-- ARGV[9+] elements   of each: its position; its id; then as enqueue.lua has them: task, token, message, how it is put, when, what it
--                     waits for, life of the lock. An empty message: it is refused, and why stands where it says what it waits for
-- returns  {status, now_us, unfinished, 1 when the batch ended by this, then count codes}, integers; status: 1 done; nothing was done: -1 the
--          batch is another's, or gone, or calls are forgotten; -2 it does not run; 5 it is of a newer schema. Codes: as
--          enqueue.lua's, of which 0 and -1 count as refused; 2 no room, not settled: then the cursor stays; 3 was settled
--          before; 4 refused

local clock = require("lib/clock")
local numbers = require("lib/numbers")
local insert_task = require("queue/insert_task")
local batch = require("batch/batch")
local floor, max, min = math.floor, math.max, math.min
local RESENT_WITHIN, int, life = numbers.RESENT_WITHIN, numbers.int, numbers.life
local put, put_and_publish = insert_task.put, insert_task.put_and_publish
local NEWER, finish, newer = batch.NEWER, batch.finish, batch.newer

return function(keys, args)
  local queue, sent = { pending = keys[1], scheduled = keys[2], due = keys[3] }, keys[4]
  local batch = { record = keys[5], unfinished = keys[6], ahead = keys[7], batches = keys[8], ended = keys[9], id = args[1] }
  local owner, cursor, mark, over, pace_at = args[2], tonumber(args[3]), args[4], args[5] == "1", args[6]
  local count, FIELDS = tonumber(args[8]), 10
  local WHY = { [0] = "id taken", [-1] = "duplicate" } -- by code, as internal/batchscripts has them
  local DROPS = 500 -- so many elements before the cursor a call takes out: all at once may be four of the largest windows

  local now = clock()
  local reply = { 1, now, 0, 0 }
  local answered = redis.call("GET", sent) or ""
  if #answered == count + 1 then
    reply[3] = redis.call("ZCARD", batch.unfinished)
    for i = 0, count do reply[4 + i] = string.byte(answered, i + 1) - 98 end
    return reply
  end
  if newer(batch) then return { NEWER, now, 0, 0 } end
  local h = redis.call("HMGET", batch.record, "owner", "state", "window", "weight", "cursor", "calls")
  if h[1] ~= owner or tonumber(h[6] or "0") < tonumber(args[7]) then return { -1, now, 0, 0 } end
  if h[2] ~= "running" then return { -2, now, redis.call("ZCARD", batch.unfinished), 0 } end
  local room = max(1, floor(h[3] * h[4] / 100)) - redis.call("ZCARD", batch.unfinished)
  local from = tonumber(h[5])

  -- settle is what becomes of an element, whose arguments stand from args[a] on
  local function settle(task, lock, a)
    local position, element = tonumber(args[a]), args[a + 1]
    local there = tonumber(redis.call("ZSCORE", batch.ahead, element) or "")
    if position < from or there == position then return 3 end
    if there and there >= from then return 0 end -- an id that comes again
    if args[a + 4] == "" then return 4 end
    if room < 1 then return 2 end
    local code = put(args, queue, now, task, lock, a + 2)
    if code == 1 then
      room = room - 1
      redis.call("HINCRBY", batch.record, "enqueued", redis.call("ZADD", batch.unfinished, int(position), element))
    end
    return code
  end

  local letters, settled, refused, full = { "b" }, {}, {}, false
  for i = 1, count do
    local a = FIELDS * (i - 1) + 9
    local code = settle(keys[8 + 2 * i], keys[9 + 2 * i], a)
    reply[4 + i], letters[1 + i] = code, string.char(code + 98)
    if code == 2 then
      full = true
    elseif code ~= 3 then
      settled[#settled + 1] = args[a]
      settled[#settled + 1] = args[a + 1]
      local reason = WHY[code] or code == 4 and args[a + 7]
      if reason then refused[reason] = (refused[reason] or 0) + 1 end
    end
  end
  if #settled > 0 then redis.call("ZADD", batch.ahead, "GT", unpack(settled)) end
  -- not one more than there are: this may be a copy of a call that is older than what it answered
  redis.call("HSET", batch.record, "pace_at", pace_at, "calls", int(max(tonumber(h[6] or "0"), args[7] + 1)))
  for reason, n in pairs(refused) do
    redis.call("HINCRBY", batch.record, "refused", n)
    redis.call("HINCRBY", batch.record, "refused:" .. reason, n)
  end
  if cursor >= from and not full then
    redis.call("HSET", batch.record, "cursor", int(cursor), "mark", mark)
    local before = min(DROPS, redis.call("ZCOUNT", batch.ahead, "-inf", "(" .. int(cursor)))
    if before > 0 then redis.call("ZREMRANGEBYRANK", batch.ahead, 0, before - 1) end -- what is left goes by the next calls
  end
  reply[3] = redis.call("ZCARD", batch.unfinished)
  if over and not full then
    redis.call("HSET", batch.record, "end", "1")
    if finish(batch, now) then
      reply[4], letters[1] = 1, "c"
    end
  end
  redis.call("SET", sent, table.concat(letters), "PX", int(life(RESENT_WITHIN)))
  put_and_publish(queue, now)
  return reply
end
