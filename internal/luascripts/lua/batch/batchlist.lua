-- batchlist.lua: elements of a batch in order, or batches of a queue. A script for the same reason as
-- batchpeek.lua.
--
-- KEYS[1]  elements   sorted set of them, unfinished or ahead, score = position; or batches or ended, with a score of theirs
-- ARGV[1]  from       score of the first
-- ARGV[2]  most       how many, 1 to 1000
-- returns  {how many, then per element: id, position}; ids are text

return function(keys, args)
  local elements, from, most = keys[1], args[1], tonumber(args[2])

  local v = redis.call("ZRANGEBYSCORE", elements, from, "+inf", "WITHSCORES", "LIMIT", 0, most)

  local reply = { #v / 2 }
  for i = 1, #v, 2 do
    reply[#reply + 1] = v[i]
    reply[#reply + 1] = tonumber(v[i + 1])
  end
  return reply
end
