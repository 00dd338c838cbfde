-- pairof.lua: the calls that pair.lua may answer, by their form.

-- pair_of is what the form of such a call says, nil of another: to grant or to book, by two
-- rules on two keys that are open, narrow and wide, a permit of each; see acquire.lua
local function pair_of(form)
  local inline, longest, W, version, n, wide_W, wide_version = string.match(form,
    "^%-12|1|(%d+)|(%-?%d+)||0|1|s|1|(%d+)||(%d+)|1|1|0|0|s|(%d+)|(%d+)||(%d+)|1|2|0|0|$")
  if not inline or n == "1" then return nil end
  return { inline = tonumber(inline), longest = tonumber(longest), W = tonumber(W), version = tonumber(version),
    n = tonumber(n), wide_W = tonumber(wide_W), wide_version = tonumber(wide_version) }
end
