-- run.lua: the short way for calls of one form, each by one rule on the same key,
-- on which nobody waits. They are decided as one after another, with one look at the
-- key and one write.

local numbers = require("lib/numbers")
local form = require("lib/form")
local remember = require("limit/remember")
local ledger = require("limit/ledger")
local tokens = require("limit/tokens")
local COPY, int = numbers.COPY, numbers.int
local PART = form.PART
local remember = remember.remember
local free, limit, open, slot = ledger.free, ledger.limit, ledger.open, ledger.slot
local from_header = tokens.from_header

-- token_of is that of the n-th call
local function token_of(args, n)
  return string.sub(args[1 + n], 2, 9)
end

-- run answers what it can of the calls i..last, and where the long way begins
local function run(keys, args, form, k, i, last, now, replies)
  if redis.call("EXISTS", keys[k + 3]) > 0 then return i end
  local rule = limit(string.match(form.text, PART, form.parts))
  rule.key, rule.tokens = keys[k + 1], keys[k + 2]
  if not open(rule.key, rule, now) or rule.carried then return i end
  local tokens, seen = {}, { [rule.token] = true }
  for n = i, last do
    local token = token_of(args, n)
    if seen[token] then return i end
    seen[token] = true
    tokens[#tokens + 1] = token
  end
  for _, held in ipairs(redis.call("ZMSCORE", rule.tokens, unpack(tokens))) do
    if held then return i end
  end

  local want, first, at = form.want, i, now
  local reach = now + (form.mode == 0 and 0 or form.inline)
  local list = from_header(rule, now)
  while i <= last do
    at = slot(rule, now, 0, want)
    if at > reach or (form.longest >= 0 and at > now + form.longest) then break end
    local from = rule.newest > 0 and slot(rule, 0, 0, want) or 0
    rule.kind.charge(rule, at, want) -- and is saved once, behind the last
    rule.newest, rule.token = at, tokens[i - first + 1]
    if rule.kind.log then rule.kind.save(rule, now) end
    list[#list + 1] = int(at)
    list[#list + 1] = rule.token
    replies[i] = { 1, 0, at, from, 0, 0, 0, rule.kind.worth(rule), form.tell and free(rule, now) or 0 }
    i = i + 1
  end
  if i > first then
    if not rule.kind.log then rule.kind.save(rule, now) end
    rule.known = true
    if rule.W >= COPY then list[#list], list[#list - 1] = nil, nil end -- the newest is in the header
    if #list > 0 then remember(rule.tokens, list, tonumber(list[#list - 1]), now) end
  end
  if i > last or form.mode ~= 0 then return i end
  local from = rule.newest > 0 and slot(rule, 0, 0, want) or 0
  local left = form.tell and free(rule, now) or 0
  for n = i, last do replies[n] = { 0, 1, at, from, 0, 0, 0, 0, left } end
  return last + 1
end

return run
