package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/headwayq/headway/throttle"
)

// However late holders renew, also in the last moment of a lease that was granted ahead
// to the next, at no instant more leases count than the limit says.
func TestLateRenewalsBesideLeasesGrantedAhead(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	const lease = time.Second
	type held struct {
		throttle.Decision
		from, to time.Duration // that it was told it holds
	}
	late := 0
	rapid.Check(t, func(rt *rapid.T) {
		ctx := context.Background()
		s.raw.FlushDB(ctx)
		n := rapid.IntRange(1, 3).Draw(rt, "n")
		l := s.limiter("slots", throttle.Concurrent(n, lease))
		var all []*held
		now := time.Duration(0)
		renew := func(h *held) {
			switch err := l.Policy().Renew(ctx, []throttle.Decision{h.Decision})[0]; {
			case err == nil:
				h.to = max(h.to, now+lease)
			case !errors.Is(err, throttle.ErrLeaseLost):
				rt.Fatal(err)
			default:
				late++
			}
		}
		for i := range rapid.IntRange(5, 60).Draw(rt, "calls") {
			step := rapid.OneOf(rapid.Int64Range(0, 30), rapid.Int64Range(0, 400)).Draw(rt, "step")
			if ends := rapid.IntRange(0, 3).Draw(rt, "to an end"); ends == 0 && len(all) > 0 { // shortly before one ends
				h := rapid.SampledFrom(all).Draw(rt, "ends")
				if left := (h.to - now).Milliseconds(); left > 0 {
					step = max(0, left-rapid.Int64Range(-1, 49).Draw(rt, "before"))
				}
			}
			now += time.Duration(step) * ms
			s.at(now)
			op := rapid.IntRange(0, 9).Draw(rt, "op")
			if op < 4 || len(all) == 0 {
				d, err := l.Redeem(ctx, throttle.Request{Key: key, Cost: 1, Job: fmt.Sprint("j", rapid.IntRange(0, 4).Draw(rt, "job"), i/30)})
				if err != nil {
					rt.Fatal(err)
				}
				if d.Granted {
					at := d.At.Sub(start)
					for _, h := range all {
						if h.to > now && h.to <= at && rapid.Bool().Draw(rt, "renewed late") {
							renew(h)
						}
					}
					all = append(all, &held{d, at, at + lease})
				}
			} else {
				h := rapid.SampledFrom(all).Draw(rt, "which")
				if h.to <= now {
					continue
				}
				if op < 8 {
					renew(h)
				} else {
					if _, err := l.Policy().Release(ctx, h.Decision); err != nil {
						rt.Fatal(err)
					}
					h.to = max(h.from, now)
				}
			}
			for _, a := range all {
				count := 0
				for _, b := range all {
					if b.from <= a.from && a.from < b.to {
						count++
					}
				}
				if count > n && a.to > a.from {
					rt.Fatalf("at %v %d hold one of %d", a.from, count, n)
				}
			}
		}
	})
	t.Logf("%d renewals were refused", late)
}
