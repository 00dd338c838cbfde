-- calendar.lua: `calendar n/unit zone`, at most n permits in a civil minute,
-- hour, day, week or month. The tally begins where the window does.
--
-- more  "short b0 b1 ...": where windows begin, as the caller's calendar has it;
--       beyond the last they are taken to be `short` long, which none falls below

function kinds.c()
  -- begin is where window i begins
  local function begin(L, i)
    local last = #L.bounds
    if i <= last then return L.bounds[i] end
    return L.bounds[last] + (i - last) * L.short
  end

  -- index is the window in which an instant lies
  local function index(L, at)
    local last = #L.bounds
    if at >= L.bounds[last] then return last + floor((at - L.bounds[last]) / L.short) end
    local i = 1
    while i < last and L.bounds[i + 1] <= at do i = i + 1 end
    return i
  end

  local function used(L, i)
    return L.newest >= begin(L, i) and L.used or 0
  end

  -- one that the calendar does not know is in none of its windows
  local function charge(L, at, cost)
    local from = at < L.bounds[1] and at or begin(L, index(L, at))
    tally(L, at, cost, (L.used == 0 or L.newest < from) and from)
  end

  return {
    numbers = function(L)
      L.stored, L.bounds = "", {} -- the bounds of another day are no other limit
      for b in string.gmatch(L.more, "%d+") do
        if L.short then L.bounds[#L.bounds + 1] = tonumber(b) else L.short = tonumber(b) end
      end
    end,
    covered = function(L, now) return L.bounds[1] <= now and now < L.bounds[#L.bounds] end,
    fresh = tally_fresh,
    read = function(L, s)
      local own, old = tally_read(L, s)
      if old then tally_again(L, charge) end
      return own ~= nil
    end,
    grants = tally_grants,
    slot = function(L, now, before, cost)
      local a = max(now, L.newest, L.bounds[1])
      local i = index(L, a)
      local most = min(used(L, i), L.n) + before + cost -- used is more than n after n fell
      if most <= L.n then return a end
      return begin(L, i + 1 + floor((most - L.n - 1) / L.n))
    end,
    charge = charge,
    save = function(L, now) tally_save(L, now, "") end,
    ends = function(L) return max(begin(L, index(L, max(L.newest, L.bounds[1])) + 1), L.newest + L.W) end,
    back = function(L, at, cost, worth)
      tally_back(L, at, cost, worth)
      return true
    end,
    free = function(L, a) return max(0, L.n - used(L, index(L, a))) end,
    worth = function() return 0 end,
  }
end
