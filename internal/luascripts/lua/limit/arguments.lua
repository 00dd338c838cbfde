-- arguments.lua: the parts of a call that has them as arguments, see rulecall.lua.

local rulecall = require("limit/rulecall")
local part_of = rulecall.part_of

-- parts_of makes those whose arguments stand from args[from] on and whose keys behind keys[before]
local function parts_of(keys, args, count, from, job, before, turns)
  local rules = {}
  for i = 1, count do
    local a = from + 9 * (i - 1)
    rules[i] = part_of(keys, i, before + 3 * (i - 1), turns and keys[3 * count + before + i], job, unpack(args, a, a + 8))
  end
  return rules
end

-- read_parts makes the parts of a call that has all the keys
local function read_parts(keys, args, count, from, job)
  return parts_of(keys, args, count, from, job, 0, #keys == 4 * count)
end

return {
  parts_of = parts_of, read_parts = read_parts,
}
