-- shortcut.lua: calls of one template, by one rule, on one key on which nobody waits, are granted now or, when they try,
-- refused: the key is read once and written once. decide.lua would answer the same; without a line it reads no turns either.
-- It is here for the rows "1 goroutine" and "128 goroutines" of the benchmark `acquire`, and for those of `cluster`.

local ledger = require("limit/ledger")
local tokens = require("limit/tokens")
local rulecall = require("limit/rulecall")
local open, earliest, floor = ledger.open, ledger.earliest, math.floor
local held_at, note, put, spend_all = tokens.held_at, tokens.note, tokens.put, tokens.spend_all
local set_keys, call, sub, NONE, TRY = rulecall.set_keys, redis.call, string.sub, {}, 0 -- TRY is a mode, see acquire.lua

-- The function answers calls from i to last, whose keys stand after keys[k], into replies, and returns the index of the first that it
-- left unanswered. `existing` is of a call that comes alone: how many of its three keys exist, at most. Of several calls it is nil.
return function(script, template, keys, k, args, i, last, replies, existing)
  local rule, now, want = template.rules[1], script.now, template.rules[1].want
  local kind, limit, key, token, of, list = rule.kind, rule.limit, keys[k + 1], sub(args[1 + i], 2, 9), nil, nil
  local fresh = script.fresh and not script.granted[key]
  if fresh and i == last and template.first_grants then -- as of most phones
    kind.first_grant(limit, key, token, now)
    if not existing then script.wrote, script.granted[key] = true, true end
    replies[i] = -1
    return i + 1
  end
  set_keys(rule, keys, k, nil, now)
  if open(rule, now, fresh) or rule.ledger.carried_over then return i end
  of, rule.no_tokens = rule.ledger, script.no_tokens
  if existing and not rule.no_tokens then -- alone: nobody looked yet
    rule.no_tokens = of.known and existing == 1 -- the ledger alone
    if not rule.no_tokens and call("EXISTS", rule.line) > 0 then return i end
  end
  if i < last then
    local seen = { [of.token] = true }
    list = {}
    for m = i, last do
      token = sub(args[1 + m], 2, 9)
      if seen[token] then return i end
      seen[token], list[m - i + 1] = true, token
    end
    for _, held in ipairs(rule.no_tokens and NONE or call("ZMSCORE", rule.tokens, unpack(list))) do
      if held then return i end
    end
  end
  local many, from = last - i + 1, of.newest > 0 and earliest(rule, 0, 0, want) or 0
  while many > 1 and kind.earliest(limit, of, now, (many - 1) * want, want) > now do many = floor(many / 2) end -- the others are left unanswered
  if from > now then many = 0 end
  local new = i == last and (many > 0 and note(rule, token, now) or held_at(rule, token) and 0)
  if new == 0 then return i end -- decide.lua says what became of the token
  if many > 0 then
    spend_all(rule, now, list or { token }, many, i, replies)
    if not kind.worth then replies[i] = from == 0 and -1 or now - from else replies[i][4] = from end
    put(of, now)
    i = i + many
    if not existing then script.wrote, script.no_tokens, script.granted[key] = true, false, true end
  end
  if i > last or template.mode ~= TRY then return i end
  local refused = { 0, 1, earliest(rule, now, 0, want), of.newest > 0 and earliest(rule, 0, 0, want) or 0 }
  if refused[3] <= now then return i end
  for m = i, last do replies[m] = refused end
  return last + 1
end
