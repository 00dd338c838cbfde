-- taskid.lua: how a task's id is written in our keys: a UUID, as asynq draws them,
-- as "\2" and its 16 bytes, any other as its text, after "\1" where it begins as one
-- of these two would. Go writes them, see taskid.go.

local UUID = "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x"

-- long is an id as asynq has it
local function long(short)
  local first = string.byte(short, 1)
  if first == 2 and #short == 17 then return string.format(UUID, string.byte(short, 2, 17)) end
  return first == 1 and string.sub(short, 2) or short
end
