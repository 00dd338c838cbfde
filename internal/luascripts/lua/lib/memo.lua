-- memo.lua: texts that many calls have in common are read once.
--
-- memo(read) is a function that answers for a text what read(text) answered before. A function
-- of a library keeps that from call to call; a script that EVALSHA runs begins with nothing.

local MOST = 256 -- texts that are kept: then all are forgotten

local function memo(read)
  local known, count = {}, 0
  return function(text)
    local is = known[text]
    if is then return is end
    if count == MOST then known, count = {}, 0 end
    is = read(text)
    if is.once then return is end -- it hardly comes again
    known[text], count = is, count + 1
    return is
  end
end

return memo
