-- fixed.lua: `fixed n/W`, at most n permits in a window that begins with the
-- first of them. The tally is all there is to know.

function kinds.f()
  local function charge(L, at, cost)
    tally(L, at, cost, over(L, at) and at)
  end

  return {
    fresh = tally_fresh,
    read = function(L, s)
      local own, old = tally_read(L, s)
      if old and L.W > old.W and L.before > 0 and L.before_at + L.W > L.newest then tally_again(L, charge) end -- one window may hold both now
      return own ~= nil
    end,
    grants = tally_grants,
    slot = function(L, now, before, cost)
      local a, k = max(now, L.newest), before + cost
      if over(L, a) then return a + L.W * floor((k - 1) / L.n) end
      local most = min(L.used, L.n) + k -- used is more than n after n fell; the next window owes nothing for that
      if most <= L.n then return a end
      return L.start + L.W + L.W * floor((most - L.n - 1) / L.n)
    end,
    charge = charge,
    save = function(L, now) tally_save(L, now, "") end,
    ends = function(L) return L.newest + L.W end,
    back = function(L, at, cost, worth)
      tally_back(L, at, cost, worth)
      return true
    end,
    free = function(L, a) return over(L, a) and L.n or max(0, L.n - L.used) end,
    worth = function() return 0 end,
  }
end
