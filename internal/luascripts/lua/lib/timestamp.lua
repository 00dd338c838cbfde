-- timestamp.lua: instants as 7 bytes, and what the ways of acquire.lua and the ledgers
-- agree on.

local FITTED = 150000 -- the most records of a ring that are moved to where they just fit
local STRETCH = 100000 -- in such a part of time the life of tokens is looked at once: within what a life has to spare

local function timestamp(n)
  local g = n % 256
  n = (n - g) / 256
  local f = n % 256
  n = (n - f) / 256
  local e = n % 256
  n = (n - e) / 256
  local d = n % 256
  n = (n - d) / 256
  local c = n % 256
  n = (n - c) / 256
  local b = n % 256
  return string.char((n - b) / 256 % 256, b, c, d, e, f, g)
end

-- timestamp_at is the number that stands from a byte of a text on
local function timestamp_at(s, from)
  local a, b, c, d, e, f, g = string.byte(s, from, from + 6)
  return (((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g
end

return {
  FITTED = FITTED, STRETCH = STRETCH, timestamp_at = timestamp_at, timestamp = timestamp,
}
