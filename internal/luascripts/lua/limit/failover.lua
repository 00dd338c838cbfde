-- failover.lua: for calls that want it, which come by function alone, nothing is granted after a failover until permits that
-- this server may not have heard of have stopped to count. See HoldAfterFailover of
-- throttle.Config.
--
-- A server that was promoted, or has begun again, may lack the last grants of the one before.
-- They were made before its first call, or within OVERLAP of it. So they count no longer than one that was
-- granted then: until that has stopped to count each rule is closed.

local max, ceil, match = math.max, math.ceil, string.match

local LOOK = 1000 -- how long what INFO said is believed: no server becomes a replica and a master again so soon
local SECOND = 1000000
local OVERLAP = SECOND -- how long the master before may go on, until its clients have heard of the new one

local history, began, looked = nil, 0, 0 -- the replication id of this server's data, and from when on it has decided about them

-- since is from when on this server knows of each grant. One that never followed another does since
-- its process began. When another one was promoted nobody says: it is the first time that we
-- see its id.
local function since(now)
  if history and now >= looked and now - looked < LOOK then return began end
  local info = redis.call("INFO", "replication")
  local id = match(info, "master_replid:(%x+)")
  if not id then error("HoldAfterFailover needs master_replid of INFO replication") end
  if id ~= history then
    local first = match(info, "master_replid2:0+%s")
    if not first then
      began = now + OVERLAP
    elseif not history then
      local up = tonumber(match(redis.call("INFO", "server"), "uptime_in_seconds:(%d+)")) -- in whole seconds
      began = now - max(0, up - 1) * SECOND
    end
    history = id
  end
  looked = now
  return began
end

-- counts_until is until when a permit of a limit may count that was granted at an instant
local function counts_until(limit, at)
  local kind = limit.kind
  if kind.covered then return kind.earliest(limit, { newest = at, used = limit.n }, at, 0, 1) end -- the next window of the calendar
  return at + limit.W * max(1, ceil((limit.burst or 0) / limit.n))
end

-- hold closes the rules of a form for so long
local function hold(form, now)
  local from, held = since(now), false
  for i, rule in ipairs(form.rules) do
    local open = counts_until(rule.limit, from)
    held = held or open > now
    rule.rule_closed = max(form.closings[i], open)
  end
  form.short = form.may_be_short and not held
end

return hold
