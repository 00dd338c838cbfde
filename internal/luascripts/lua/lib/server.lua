-- server.lua: since when this server knows of each grant, for functions alone: a script that
-- EVALSHA runs remembers nothing. See HoldAfterFailover of throttle.Config.
--
-- A server that was promoted lacks the last grants of the one before; one that has begun again
-- may have lost some. Such grants were made before the first call that we see here, or a little later
-- by clients that had not heard of the new master.

local max, match = math.max, string.match

local SECOND = 1000000
local BELIEVED = 1000 -- how long what INFO said is believed: no server becomes a replica and a master again so soon
local AHEAD = SECOND -- a grant may lie so far in the future, see InlineWait
local OVERLAP = SECOND -- how long clients may go on with the master before
local FORGETS = 3600 * SECOND -- after so long without replicas Redis forgets that it was promoted, see repl-backlog-ttl

local history, began, asked_at = nil, 0, 0 -- the replication id of this server, from when on it knows of each grant, and when INFO was asked last

-- first_began is from when on a server knows of each grant that says that it never followed another:
-- since its process began, unless it may have forgotten that it did
local function first_began(now)
  local up = tonumber(match(redis.call("INFO", "server"), "uptime_in_seconds:(%d+)")) * SECOND -- in whole seconds
  if up >= FORGETS then return now + OVERLAP + AHEAD end
  return now - max(0, up - SECOND) + AHEAD
end

-- ask is the replication id of this server, and from when on it knows of each grant if this is the first call that
-- sees that id; nil and a text when nobody knows that
local function ask(now)
  local info = redis.pcall("INFO", "replication")
  local id = type(info) == "string" and match(info, "master_replid:(%x+)")
  if not id then return nil, "HoldAfterFailover needs master_replid of INFO replication, and the right +info" end
  if id == history then return id, began end
  local followed = not match(info, "master_replid2:0+%s")
  if followed or history and now - asked_at >= FORGETS then return id, now + OVERLAP + AHEAD end -- nobody says when it was promoted: we see it now
  if not history then return id, first_began(now) end
  return id, began
end

-- since is from when on this server knows of each grant; nil and a text when nobody knows that
local function since(now)
  if history and now >= asked_at and now - asked_at < BELIEVED then return began end
  local id, from = ask(now)
  if not id then return nil, from end
  history, began, asked_at = id, from, now
  return began
end

-- read_since is what since would say now, for a script that only reads. It remembers nothing: a reader may come to a server long
-- before those who take permits do, and their hold has to begin with them. nil when nobody knows it
local function read_since(now)
  local id, from = ask(now)
  return id and from
end

return { read_since = read_since, since = since }
