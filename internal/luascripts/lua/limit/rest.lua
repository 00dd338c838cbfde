-- rest.lua: calls that acquire.lua did not answer at once, decided one after another;
-- an error of one is none of the others.

local function rest(calls, now)
  local forms, replies = {}, {}
  local pair_of, pair, one, ring, run, admit, runs, rules -- made when they are needed

  -- long and short answer calls; short tells from which on it did not
  local function long(F, k, i)
    if not admit then
      if not rules then runs, rules = ledgers() end
      admit = rules()
    end
    local call = ARGV[1 + i]
    replies[i] = admit(F, k, string.sub(call, 2, 9), string.sub(call, 10), now)
  end

  local function short(F, k, i, last)
    if F.ring then
      if not ring then one, ring = rings() end
      return ring(F, k, i, last, now, replies)
    end
    if not run then
      if not runs then runs, rules = ledgers() end
      run = runs()
    end
    return run(F, k, i, last, now, replies)
  end

  -- alone an error is the answer; of one among others it is that of no other
  local function safely(f, F, k, i, last)
    if calls == 1 then return true, f(F, k, i, last) end
    return pcall(f, F, k, i, last)
  end

  local i, k = 1, 0
  while i <= calls do
    local byte = string.byte(ARGV[1 + i])
    local F, last = forms[byte] or form(ARGV[1 + calls + byte]), i
    forms[byte] = F
    local ok, answer, only = true, nil, F.one and (i == calls or KEYS[k + 4] ~= KEYS[k + 1])
    if calls > 1 then
      if F.pair == nil and not F.ring then
        if not pair then pair_of, pair = by_two() end
        F.pair = pair_of(F.text) or false
      end
      if only and not one then one, ring = rings() end
      if only then ok, answer = safely(one, F, k, string.sub(ARGV[1 + i], 2, 9), now) end
      if F.pair then ok, answer = pcall(pair, F.pair, k, string.sub(ARGV[1 + i], 2, 9), string.sub(ARGV[1 + i], 10), now) end
    end
    if answer or not ok then
      replies[i] = ok and answer or -2
      i, k = i + 1, k + (F.pair and 8 or 3)
    else
      if not F.ring and not F.keys then read(F, now) end
      if (F.ring or F.short) and not only then -- what one left is for the long way
        while last < calls and string.byte(ARGV[2 + last]) == byte and KEYS[3 * (last - i + 1) + k + 1] == KEYS[k + 1] do last = last + 1 end
        ok, answer = safely(short, F, k, i, last)
        for n = i, ok and 0 or last do replies[n] = -2 end
        if not ok then answer = last + 1 end
        k = k + (F.ring and 3 or F.keys) * (answer - i)
        i = answer
      end
      if i <= last and not F.keys then read(F, now) end
      while i <= last do
        if not safely(long, F, k, i) then replies[i] = -2 end
        i, k = i + 1, k + F.keys
      end
    end
  end
  table.insert(replies, 1, now)
  return replies
end
