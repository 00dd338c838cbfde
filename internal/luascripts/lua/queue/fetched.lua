-- fetched.lua: which tasks the last call of a pool took from a queue: the number of the call,
-- and of each task the length of its id, ":" and the id. Without ids it says that the call took none, or gave
-- all back, and that a late copy of it takes none.

-- So long the tasks are this pool's, whatever became of it: asynq's lease on them ends 30 s
-- after the fetch, and asynq's recoverer takes none before another 30 s. The rest is for clocks
-- of processes that differ.
local LIFE = "40000"

-- last is the last call that took tasks or was noted without any, or nil
local function last(key)
  local text = redis.call("GET", key)
  if not text then return nil end
  local ends = string.find(text, " ", 1, true)
  local ids, from = {}, ends + 1
  while from <= #text do
    local colon = string.find(text, ":", from, true)
    local till = colon + tonumber(string.sub(text, from, colon - 1))
    ids[#ids + 1] = string.sub(text, colon + 1, till)
    from = till + 1
  end
  return { call = tonumber(string.sub(text, 1, ends - 1)), ids = ids }
end

-- note writes what a call took
local function note(key, call, ids)
  local parts = { string.format("%.0f ", call) }
  for i, id in ipairs(ids) do parts[i + 1] = string.format("%d:", #id) .. id end
  redis.call("SET", key, table.concat(parts), "PX", LIFE)
end

return {
  last = last, note = note,
}
