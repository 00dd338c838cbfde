-- run.lua: the short way for calls of one form, each by one rule on the same key,
-- on which nobody waits. They are decided as one after another, with one look at the
-- key and one write.

-- token_of is that of the n-th call
local function token_of(n)
  return string.sub(ARGV[1 + n], 2, 9)
end

-- run answers what it can of the calls i..last, and where the long way begins
local function run(F, k, i, last, now, replies)
  if redis.call("EXISTS", KEYS[k + 3]) > 0 then return i end
  local L = limit(string.match(F.text, PART, F.parts))
  L.key, L.tokens = KEYS[k + 1], KEYS[k + 2]
  if not open(L.key, L, now) or L.carried then return i end
  local tokens, seen = {}, { [L.token] = true }
  for n = i, last do
    local token = token_of(n)
    if seen[token] then return i end
    seen[token] = true
    tokens[#tokens + 1] = token
  end
  for _, held in ipairs(redis.call("ZMSCORE", L.tokens, unpack(tokens))) do
    if held then return i end
  end

  local want, first, at = F.want, i, now
  local reach = now + (F.mode == 0 and 0 or F.inline)
  local list = from_header(L, now)
  while i <= last do
    at = slot(L, now, 0, want)
    if at > reach or (F.longest >= 0 and at > now + F.longest) then break end
    local from = L.newest > 0 and slot(L, 0, 0, want) or 0
    L.kind.charge(L, at, want) -- and is saved once, behind the last
    L.newest, L.token = at, tokens[i - first + 1]
    if L.kind.log then L.kind.save(L, now) end
    list[#list + 1] = int(at)
    list[#list + 1] = L.token
    replies[i] = { 1, 0, at, from, 0, 0, 0, L.kind.worth(L), F.tell and free(L, now) or 0 }
    i = i + 1
  end
  if i > first then
    if not L.kind.log then L.kind.save(L, now) end
    L.known = true
    if L.W >= COPY then list[#list], list[#list - 1] = nil, nil end -- the newest is in the header
    if #list > 0 then remember(L.tokens, list, tonumber(list[#list - 1]), now) end
  end
  if i > last or F.mode ~= 0 then return i end
  local from = L.newest > 0 and slot(L, 0, 0, want) or 0
  local left = F.tell and free(L, now) or 0
  for n = i, last do replies[n] = { 0, 1, at, from, 0, 0, 0, 0, left } end
  return last + 1
end
