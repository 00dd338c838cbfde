package memory

import (
	"fmt"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/limitscripts"
)

// daily opens from 9 to 21 o'clock, as far as 3 days ahead; from 12 to 13 it is
// closed.
func daily(now time.Time) limitscripts.Gate {
	day := now.Truncate(24 * time.Hour)
	g := limitscripts.Gate{From: day, Until: day.Add(72 * time.Hour)}
	for d := range 3 {
		at := day.Add(time.Duration(d) * 24 * time.Hour)
		g.Open = append(g.Open,
			limitscripts.Opening{Open: at.Add(9 * time.Hour), Close: at.Add(12 * time.Hour)},
			limitscripts.Opening{Open: at.Add(13 * time.Hour), Close: at.Add(21 * time.Hour)})
	}
	return g
}

// TestGate lets jobs come before a gate opens, more than its opening has time
// for: none goes outside, they are woken at the provider's pace, and all go.
func TestGate(t *testing.T) {
	t.Parallel()
	for _, per := range []time.Duration{time.Second, 10 * time.Minute} {
		c := newCrowd(t)
		c.gate = daily
		provider := ruleOf("provider", "all", slidingOf(2, per))
		for i := range 60 {
			c.add(fmt.Sprint(i), "p", ruleOf("phone", fmt.Sprint(i%30), slidingOf(1, time.Minute)), provider)
		}
		told := map[time.Time]int{}
		for _, r := range c.runners {
			c.moveTo(r.told)
			c.come(r)
			told[r.told]++
		}
		for at, n := range told {
			if n > 1 {
				t.Errorf("%d are told %v", n, at)
			}
		}
		if first := c.runners[0].told; !first.Equal(start.Add(time.Hour)) {
			t.Errorf("the first is told %v, want the opening", first)
		}
		c.run()
		c.holdAll()
		for _, r := range c.grants {
			hour := r.at.Hour()
			if hour < 9 || hour >= 21 || hour == 12 {
				t.Errorf("%s went at %v", r.job, r.at)
			}
		}
		if len(c.grants) != 60 {
			t.Errorf("%d of 60 went", len(c.grants))
		}
		if got := c.admissions(); got > 4.05 { // keys + 1, and one for the gate
			t.Errorf("%.2f admissions a job, want at most 4.05", got)
		}
	}
}

// TestGateOpens is the arithmetic of a gate on minutes.
func TestGateOpens(t *testing.T) {
	t.Parallel()
	g := gate{from: 0, until: 100, open: []opening{{10, 20}, {30, 40}, {40, 50}}}
	for _, tc := range []struct{ at, want int64 }{{0, 10}, {10, 10}, {19, 19}, {20, 30}, {39, 39}, {40, 40}, {50, 100}, {100, 100}, {120, 100}} {
		if got := g.opened(tc.at); got != tc.want {
			t.Errorf("opened(%d) = %d, want %d", tc.at, got, tc.want)
		}
	}
	for _, tc := range []struct{ at, offset, want int64 }{
		{10, 0, 10}, {10, 9, 19}, {10, 10, 30}, {15, 5, 30}, {15, 14, 39}, {15, 15, 40}, {10, 29, 49}, {10, 30, 100}, {10, 1000, 100}, {100, 5, 105},
	} {
		if got := g.spread(tc.at, tc.offset); got != tc.want {
			t.Errorf("spread(%d, %d) = %d, want %d", tc.at, tc.offset, got, tc.want)
		}
	}
	if got := (gate{}).opened(5); got != 5 {
		t.Errorf("no gate opens at %d, want at once", got)
	}
}

// TestGateNotCovered: a gate that is known for other times decides nothing.
func TestGateNotCovered(t *testing.T) {
	t.Parallel()
	s := newScene()
	for _, g := range []limitscripts.Gate{
		{From: start.Add(-time.Hour), Until: start}, {From: start.Add(time.Microsecond), Until: start.Add(time.Hour)},
	} {
		a := limitscripts.AcquireArgs{Rules: s.one(slidingOf(1, time.Second), 1), Token: 1, Job: "a", Mode: limitscripts.GrantOrBook, MaxWait: -1, Gate: g}
		if r := s.Acquire(a); r.Status != limitscripts.NotCovered || r.Rule != 0 || !r.At.IsZero() || s.Len() != 0 {
			t.Errorf("%+v: %+v, want that it is not covered", g, r)
		}
	}
}

// TestGateIsNoMemoryLeak: a rule that is busy every day forgets old openings.
func TestGateIsNoMemoryLeak(t *testing.T) {
	t.Parallel()
	s := newScene()
	s.Keep(24 * time.Hour)
	for day := range 50 {
		s.at(time.Duration(day)*24*time.Hour - time.Hour)
		s.token++
		a := limitscripts.AcquireArgs{
			Rules: s.one(slidingOf(1, time.Second), 1), Token: s.token, Job: "a", Mode: limitscripts.GrantOrBook, MaxWait: -1, Gate: daily(s.now),
		}
		if r := s.Acquire(a); r.Status != limitscripts.Booked || r.Rule != 0 {
			t.Fatalf("day %d: %+v", day, r)
		}
	}
	if n := s.keys.byName[s.key.Ledger()].opening.len(); n > 2 {
		t.Errorf("%d openings are kept", n)
	}
	s.at(60 * 24 * time.Hour)
	for range 3 {
		s.Peek(limitscripts.NewLimitKeys("hw", "rule", "other"), limitscripts.PeekArgs{Numbers: slidingOf(1, time.Second), Cost: 1})
	}
	if s.Len() != 0 {
		t.Errorf("%d keys are left, want none", s.Len())
	}
}
