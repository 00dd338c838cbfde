-- several.lua: calls that acquire.lua did not answer at once, decided one after another;
-- an error of one is none of the others.

local form = require("lib/form")
local form, read = form.form, form.read

local function rest(keys, args, calls, now)
  local forms, replies = {}, {}

  -- long and short answer calls; short tells from which on it did not
  local function long(form, k, i)
    local call = args[1 + i]
    replies[i] = require("limit/admit")(keys, form, k, string.sub(call, 2, 9), string.sub(call, 10), now)
  end

  local function short(form, k, i, last)
    local way = form.ring and require("limit/ring") or require("limit/run")
    return way(keys, args, form, k, i, last, now, replies)
  end

  -- alone an error is the answer; of one among others it is that of no other
  local function safely(f, a, b, c, d, e)
    if calls == 1 then return true, f(a, b, c, d, e) end
    return pcall(f, a, b, c, d, e)
  end

  local i, k = 1, 0
  while i <= calls do
    local byte = string.byte(args[1 + i])
    local form, last = forms[byte] or form(args[1 + calls + byte]), i
    forms[byte] = form
    local ok, answer, only = true, nil, form.one and (i == calls or keys[k + 4] ~= keys[k + 1])
    if calls > 1 then
      if form.pair == nil and not form.ring then
        form.pair = require("limit/pair").pair_of(form.text) or false
      end
      if only then ok, answer = safely(require("limit/one"), keys, form, k, string.sub(args[1 + i], 2, 9), now) end
      if form.pair then ok, answer = pcall(require("limit/pair").pair, keys, form.pair, k, string.sub(args[1 + i], 2, 9), string.sub(args[1 + i], 10), now) end
    end
    if answer or not ok then
      replies[i] = ok and answer or -2
      i, k = i + 1, k + (form.pair and 8 or 3)
    else
      if not form.ring and not form.keys then read(form, now) end
      if (form.ring or form.short) and not only then -- what one left is for the long way
        while last < calls and string.byte(args[2 + last]) == byte and keys[3 * (last - i + 1) + k + 1] == keys[k + 1] do last = last + 1 end
        ok, answer = safely(short, form, k, i, last)
        for n = i, ok and 0 or last do replies[n] = -2 end
        if not ok then answer = last + 1 end
        k = k + (form.ring and 3 or form.keys) * (answer - i)
        i = answer
      end
      if i <= last and not form.keys then read(form, now) end
      while i <= last do
        if not safely(long, form, k, i) then replies[i] = -2 end
        i, k = i + 1, k + form.keys
      end
    end
  end
  table.insert(replies, 1, now)
  return replies
end

return rest
