-- pairline.lua: how pair.lua begins: who waits. Most calls that can't go that way are told
-- so here, before it makes any function.

local call, key, tokens, wide, wide_tokens, line = redis.call, KEYS[k + 1], KEYS[k + 2], KEYS[k + 4], KEYS[k + 5], KEYS[k + 6]

-- the narrow key, and the turns of both: mine, while the wider key holds me up
local me, there, turn = "1:" .. job, call("EXISTS", KEYS[k + 3], KEYS[k + 7], KEYS[k + 8]), nil
if there > 0 then
  if there ~= 2 or job == "" then return nil end
  if call("ZCARD", KEYS[k + 3]) ~= 1 then return nil end -- others wait
  local mine, told = call("ZRANGE", KEYS[k + 7], "0", "1", "WITHSCORES"), call("ZRANGE", KEYS[k + 3], "0", "0", "WITHSCORES")
  if #mine ~= 2 or mine[1] ~= me or mine[2] % ROOM ~= 0 or #told ~= 2 or told[1] ~= "@" .. me then return nil end
  turn = told[2] - TOLD
  if turn >= PARK then return nil end
end

-- the line of the wider key: my place, and who comes next to go
local ahead, promised, next, next_told = 0, turn or 0, nil, nil
local two = call("ZRANGE", line, "0", "1", "WITHSCORES")
local waits = two[1] ~= nil
if waits then
  if job == "" or call("ZCOUNT", line, NOTED, "+inf") > 0 then return nil end -- I am nobody, or something is noted of it
  local ticket, told = tonumber(two[2]), nil
  if ticket < -PARK / 2 then return nil end -- somebody is parked
  if two[1] == me then
    next = tonumber(two[4] or TOLD) < TOLD and two[3]
    told = call("ZMSCORE", line, "@" .. me, "@" .. (next or me))
  else
    next = two[1]
    told = call("ZMSCORE", line, "@" .. me, "@" .. next, me)
    ticket = tonumber(told[3] or "")
    if not ticket or ticket < -PARK / 2 then return nil end
    ahead = call("ZCOUNT", line, "-inf", "(" .. told[3])
  end
  if not told[1] or ticket >= TOLD or ticket % ROOM ~= 0 then return nil end
  promised = turn or told[1] - TOLD
  if next then
    if not told[2] or string.sub(next, 1, 2) ~= "1:" then return nil end
    next_told = told[2] - TOLD
    if next_told + GRACE < now then return nil end -- it is late
  end
end
