-- form.lua: what calls have in common, see acquire.lua. Most of it is read when it is
-- needed.

local START = "^([^|]*)|[^|]*|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|()" -- and where the parts begin
local PART = "^([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|()" -- and where the next begins

-- form is the head of a text, of fixed width; the numbers of ring.lua and one.lua only where they are a way
local function form(text)
  local way, mode = string.byte(text, 1, 2)
  if way == 45 then -- all fields of read are named: a table that grows is slow
    return { text = text, mode = mode - 48, count = 0, inline = 0, longest = 0, gate = "", tell = false, turns = false, parts = 0, keys = nil, pair = nil, short = nil }
  end
  local a, b, c, d, e, f, g, h, i, j, k, l, m = string.byte(text, 10, 22)
  return { text = text, mode = mode - 48, ring = true, one = way == 111, version = string.sub(text, 3, 9),
    W = (((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g, n = (h * 256 + i) * 256 + j, want = (k * 256 + l) * 256 + m }
end

-- read reads the rest, but for the parts; form.keys says that it did
local function read(form, now)
  local count, inline, longest, gate, tell, turns, parts = string.match(form.text, START, form.ring and 37 or 3)
  form.count, form.inline, form.longest, form.gate, form.tell, form.turns, form.parts = tonumber(count), tonumber(inline), tonumber(longest), gate, tell == "1", turns == "1", parts
  form.keys = 3 * form.count + (form.turns and form.count or 0) + (gate ~= "" and 1 or 0)
  if form.count > 1 or form.mode > 1 or gate ~= "" or form.turns then return end
  local letter, _, _, _, _, cost, _, closed_us = string.match(form.text, PART, parts)
  form.short, form.want = letter ~= "k" and tonumber(closed_us) <= now, tonumber(cost)
end

return {
  PART = PART, form = form, read = read,
}
