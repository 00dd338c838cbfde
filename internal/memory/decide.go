package memory

// verdict is when a job may run, and what holds it up until then.
type verdict struct {
	at    int64
	by    *part // which puts it off last; nil for the gate, or for nothing
	bound bool  // it may not run yet
}

// decide asks group by group, narrowest first: the first that does not admit the
// job until `reach` binds, and wider ones are not asked. Of leases each is asked
// alone. Who only books is held up by the widest rate.
func (c *call) decide(g gate, reach int64, book bool) verdict {
	if opens := g.opened(c.now); opens > reach {
		return verdict{at: opens, bound: true}
	}
	v := verdict{at: c.now}
	c.sets(func(set []part) bool {
		at, by := joint(set, v.at, reach)
		if by != nil {
			v.at, v.by = at, by
		}
		if at <= reach {
			if by = busy(set); by == nil {
				return true
			}
		}
		v.by, v.bound = by, true
		return false
	})
	if opens := g.opened(v.at); opens > v.at && (v.bound || opens > reach) {
		return verdict{at: opens, bound: true}
	} else if opens > v.at {
		v.at, v.by = opens, nil
	}
	if book && !v.bound {
		v.bound, v.by = true, &c.parts[len(c.parts)-1]
		if p := c.widest(); p != nil {
			v.by = p
		}
	}
	return v
}

// busy is the first of them in whose line others wait, before the job.
func busy(set []part) *part {
	for i := range set {
		if !set[i].grantable() {
			return &set[i]
		}
	}
	return nil
}
