-- arguments.lua: the parts of a call that has them as arguments, see parts.lua.

-- parts_of makes those whose arguments stand from args[from] on and whose keys behind KEYS[before]
local function parts_of(args, count, from, job, before, turns)
  local P = {}
  for i = 1, count do
    local a = from + 9 * (i - 1)
    P[i] = part_of(i, before + 3 * (i - 1), turns and KEYS[3 * count + before + i], job, unpack(args, a, a + 8))
  end
  return P
end

-- read_parts makes the parts of a call that has all the keys
local function read_parts(args, count, from, job)
  return parts_of(args, count, from, job, 0, #KEYS == 4 * count)
end
