-- taskid.lua: how a task's id is written in our keys: a UUID, as asynq draws them,
-- as "\2" and its 16 bytes, any other as its text, behind "\1" when it begins with "\1",
-- "\2" or "\3". Go writes them, see ShortID in internal/luascripts/taskid.go.
--
-- An entry of due is an id with what the task waits for behind it, and when that is not
-- a UUID "\3", its length and ":" before it; the id alone when that is not known.

local UUID = "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x"

-- long is an id as asynq has it
local function long(short)
  local first = string.byte(short, 1)
  if first == 2 and #short == 17 then return string.format(UUID, string.byte(short, 2, 17)) end
  return first == 1 and string.sub(short, 2) or short
end

-- entry names a task in due
local function entry(short, record)
  if record == "" or (string.byte(short, 1) == 2 and #short == 17) then return short .. record end
  return string.format("\3%d:", #short) .. short .. record
end

-- parted is a task, and what it waits for, of an entry
local function parted(e)
  local first, from, ends = string.byte(e, 1), 1, #e
  if first == 2 then
    ends = 17
  elseif first == 3 then
    from = (string.find(e, ":", 1, true) or 0) + 1
    ends = from - 1 + (tonumber(string.sub(e, 2, from - 2)) or #e)
  end
  return string.sub(e, from, ends), string.sub(e, ends + 1)
end

return {
  entry = entry, long = long, parted = parted,
}
