-- form.lua: what calls have in common, see acquire.lua. Most of it is read when it is
-- needed.

-- form is the head of a text, of fixed width; the numbers of ring.lua and one.lua only where they are a way
local function form(text)
  local way, mode = string.byte(text, 1, 2)
  if way == 45 then return { text = text, mode = mode - 48 } end
  local a, b, c, d, e, f, g, h, i, j, k, l, m = string.byte(text, 10, 22)
  return { text = text, mode = mode - 48, ring = true, one = way == 111, version = string.sub(text, 3, 9),
    W = (((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g, n = (h * 256 + i) * 256 + j, want = (k * 256 + l) * 256 + m }
end
