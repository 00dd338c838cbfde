-- binary.lua: numbers as bytes: an instant in 7, any number in 8 (a double). Redis has a
-- library for it, struct; where a server lacks that, the same bytes are made here.

local floor, frexp, ldexp = math.floor, math.frexp, math.ldexp
local there, struct = pcall(function() return struct end)

local function double(x)
  if x == 0 then return "\0\0\0\0\0\0\0\0" end
  local sign = x < 0 and 128 or 0
  local part, power = frexp(x < 0 and -x or x)
  local rest, bytes = (part * 2 - 1) * 4503599627370496, {}
  power = power + 1022
  for i = 8, 3, -1 do
    bytes[i] = rest % 256
    rest = floor(rest / 256)
  end
  return string.char(sign + floor(power / 16), power % 16 * 16 + rest, unpack(bytes, 3, 8))
end

local function double_at(s, from)
  local a, b, c, d, e, f, g, h = string.byte(s, from, from + 7)
  local power = a % 128 * 16 + floor(b / 16)
  if power == 0 then return 0 end
  local rest = ((((((b % 16) * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
  local x = ldexp(1 + rest / 4503599627370496, power - 1023)
  return a > 127 and -x or x
end

-- pack makes doubles of numbers, unpack reads them from a byte of a text on. A format is ">"
-- and a "d" for each.
local function pack(format, ...)
  local numbers, doubles = { ... }, {}
  for i = 1, #format - 1 do doubles[i] = double(numbers[i]) end
  return table.concat(doubles)
end

local function unpack_at(format, s, from)
  local numbers = {}
  for i = 1, #format - 1 do numbers[i] = double_at(s, from + 8 * (i - 1)) end
  return unpack(numbers)
end

-- timestamp is an instant, or any number of 7 bytes
local function timestamp(n)
  local bytes = {}
  for i = 7, 1, -1 do
    bytes[i] = n % 256
    n = floor(n / 256)
  end
  return string.char(unpack(bytes))
end

if there and struct then
  local make = struct.pack
  pack, unpack_at = make, struct.unpack
  timestamp = function(n) return make(">I7", n) end
end

-- timestamp_at is the number that stands from a byte of a text on
local function timestamp_at(s, from)
  local a, b, c, d, e, f, g = string.byte(s, from, from + 6)
  return (((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g
end

return {
  pack = pack, timestamp = timestamp, timestamp_at = timestamp_at, unpack_at = unpack_at,
}
