package throttle_test

import (
	"context"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/headwayq/headway/throttle"
)

// 7: whatever is given back, and when: the grants that were not keep the limit,
// in every kind.
func TestPitfall07RefundsOfEachKind(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	rapid.Check(t, func(rt *rapid.T) {
		ctx := context.Background()
		s.raw.FlushDB(ctx)
		limit := drawLimit(rt, "limit", 2*time.Minute)
		if limit.Validate() != nil {
			rt.Skip("these numbers go together in no limit")
		}
		l := s.limiter("rule", limit)
		var kept []throttle.Decision
		now := int64(0)
		for range rapid.IntRange(4, 14).Draw(rt, "calls") {
			now += rapid.Int64Range(0, limit.Window().Microseconds()/2).Draw(rt, "later")
			s.at(time.Duration(now) * us)
			if len(kept) > 0 && rapid.IntRange(0, 2).Draw(rt, "refund") == 0 {
				i := rapid.IntRange(0, len(kept)-1).Draw(rt, "which")
				for range rapid.IntRange(1, 2).Draw(rt, "times") {
					if _, err := l.Refund(ctx, kept[i].Request); err != nil {
						rt.Fatal(err)
					}
				}
				kept = append(kept[:i:i], kept[i+1:]...)
				continue
			}
			d := s.try(l, rapid.IntRange(1, min(2*limit.Permits(), limit.MaxCost())).Draw(rt, "cost"))
			if !d.Granted {
				now = d.At.Sub(start).Microseconds()
				s.at(time.Duration(now) * us)
				if d = s.try(l, d.Cost); !d.Granted {
					rt.Fatalf("%v: refused at the instant it was told: %v", limit, d)
				}
			}
			kept = append(kept, d)
			var h history
			for _, k := range kept {
				h.new = append(h.new, grant{k.At.Sub(start).Microseconds(), k.Cost})
			}
			if breach := h.breach(limit); breach != "" {
				rt.Fatalf("%v: the grant of %d at %d: %s\nall %v", limit, d.Cost, now, breach, h.new)
			}
		}
	})
}
