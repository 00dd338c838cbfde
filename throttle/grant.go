package throttle

import (
	"bytes"
	"reflect"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
)

// grant is what the holder of a grant has to tell to correct it. The store remembers
// its token for a minute only; later it finds the grant by its instant.
type grant struct {
	limits []activeLimit // those that decided; none when none did
	worth  []int64       // by rule: what a refund of it is worth, in the store's own words

	// An instant means something only where it is of.
	by   *Policy
	key  string
	at   time.Time
	each []time.Time // by rule, where they differ
}

// made takes in the answer that is the grant.
func (g *grant) made(p *Policy, key string, r *luascripts.AcquireReply) {
	g.worth, g.by, g.key, g.at, g.each = r.Worth, p, key, r.At, r.Each
}

// tell puts what is known of the grant into the parts of a call. A token is kept
// where leases are: they are found by it alone.
func (g *grant) addTo(parts []luascripts.RuleCall, p *Policy, key string) {
	for i := range parts {
		if i < len(g.worth) {
			parts[i].Worth = g.worth[i]
		}
	}
	if g.by == nil || key != g.key || !g.by.countsAs(p) {
		return
	}
	for i := range parts {
		if i >= len(g.limits) || g.limits[i].IsConcurrent() {
			continue
		}
		at := g.at
		if i < len(g.each) {
			at = g.each[i]
		}
		parts[i].At, parts[i].Until = at, at.Add(g.limits[i].Window())
	}
}

// countsAs says whether two policies count by the same rules in the same place.
func (p *Policy) countsAs(q *Policy) bool {
	if p == q {
		return true
	}
	if len(p.rules) != len(q.rules) || !bytes.Equal(p.cfg.Secret, q.cfg.Secret) {
		return false
	}
	for i, l := range p.rules {
		if l.names != q.rules[i].names {
			return false
		}
	}
	a, b := reflect.ValueOf(p.store.store), reflect.ValueOf(q.store.store)
	return a.Comparable() && b.Comparable() && p.store.store == q.store.store // a client may be of any type
}
