package memory

import (
	"slices"

	"github.com/headwayq/headway/internal/luascripts"
)

// verdict is when a job may run, and what holds it up until then.
type verdict struct {
	at    int64
	by    *part // which puts it off last; nil for the gate, or for nothing
	bound bool  // it may not run yet

	refused bool // nor is it to have a place: [luascripts.BookLastRule]
}

// decide asks group by group, narrowest first: the first that does not admit the
// job until `reach` binds, and wider ones are not asked. Of leases each is asked
// alone. Who only books is held up by the widest rate.
func (c *call) decide(g gate, reach int64, mode luascripts.Mode) verdict {
	if opens := g.opened(c.now); opens > reach {
		return verdict{at: opens, bound: true, refused: mode == luascripts.BookLastRule}
	}
	if wide := c.onlyWidest(); mode == luascripts.BookLastRule && wide != nil {
		v := c.inWidest(wide, reach)
		if opens := g.opened(v.at); opens > v.at {
			return verdict{at: opens, bound: true, refused: true}
		}
		return v
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
		return verdict{at: opens, bound: true, refused: mode == luascripts.BookLastRule}
	} else if opens > v.at {
		v.at, v.by = opens, nil
	}
	if mode.Books() && !v.bound {
		v.bound, v.by = true, &c.parts[len(c.parts)-1]
		if p := c.widest(); p != nil {
			v.by = p
		}
	}
	return v
}

// onlyWidest are the widest rates, which share a key, when the job may wait nowhere
// else; nil when it does, or where there are no rates.
func (c *call) onlyWidest() (wide []part) {
	c.sets(func(set []part) bool {
		if set[0].group > 0 {
			wide = set
		}
		return true
	})
	if placed(wide) || !placed(c.parts) {
		return wide
	}
	return nil
}

// inWidest is when the widest rates admit the job. When another rule does not then,
// one that has no place there is refused; of a lease it counts only until when it is
// closed.
func (c *call) inWidest(wide []part, reach int64) verdict {
	at, by := joint(wide, c.now, reach)
	v := verdict{at: at, bound: true}
	for i := range c.parts {
		p := &c.parts[i]
		other := p.closed
		if p.group > 0 {
			other = p.due
		}
		if p.group != wide[0].group && other > v.at && !placed(wide) {
			v.at, v.by, v.refused = other, p, true
		}
	}
	switch {
	case v.refused:
	case at > reach:
		v.by = by
	default:
		if v.by = busy(wide); v.by == nil {
			v.by = &wide[len(wide)-1]
		}
	}
	return v
}

// placed says that the job has a place in any of them.
func placed(set []part) bool {
	return slices.ContainsFunc(set, func(p part) bool { return p.place != nowhere })
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
