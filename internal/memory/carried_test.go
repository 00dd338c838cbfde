package memory

import (
	"testing"
	"time"

	"github.com/headwayq/headway/internal/limitscripts"
)

// TestChangedByHand changes limits where a plain way to carry the state over
// would let too much through.
func TestChangedByHand(t *testing.T) {
	t.Parallel()
	const s = time.Second
	type ask struct {
		limit limitscripts.Numbers
		at    time.Duration
		cost  int
		wait  time.Duration
	}
	for _, tc := range []struct {
		name string
		asks []ask
	}{
		{"gcra: permits are owed, not time", []ask{
			{gcraOf(1, s, 4), 0, 4, 0}, {gcraOf(1, 10*ms, 4), 0, 1, 10 * ms}, {gcraOf(1, 10*ms, 4), 20 * ms, 3, 10 * ms},
		}},
		{"gcra: slower, with what is paid at the old pace", []ask{
			{gcraOf(10, s, 10), 0, 10, 0}, {gcraOf(10, s, 10), s, 1, 0}, {gcraOf(1, s, 10), s, 2, 2 * s},
		}},
		{"bucket: slower, with what came back at the old pace", []ask{
			{stepOf(10, s, 10), 0, 10, 0}, {stepOf(10, s, 10), s, 1, 0}, {stepOf(1, s, 10), s, 1, s},
		}},
		{"bucket: a shorter interval brings nothing for the past", []ask{
			{stepOf(1, s, 12), 0, 5, 0}, {stepOf(1, s, 12), 100 * ms, 5, 0}, {stepOf(1, 10*ms, 12), 100 * ms, 3, 10 * ms},
			{stepOf(1, 10*ms, 12), 100 * ms, 2, 0}, {stepOf(1, 10*ms, 12), 105 * ms, 2, 15 * ms},
		}},
		{"smooth: permits are stored, not time", []ask{
			{smoothOf(1, 10*ms, 4), 0, 1, 0}, {smoothOf(1, 10*ms, 4), 300 * ms, 1, 0}, {smoothOf(2, 10*ms, 4), 300 * ms, 2, 0},
			{smoothOf(2, 10*ms, 4), 300 * ms, 2, 0}, {smoothOf(2, 10*ms, 4), 300 * ms, 1, 5 * ms},
		}},
		{"sliding to leaky: as far back as the log takes", []ask{
			{slidingOf(10, 13*s), 0, 9, 0}, {slidingOf(10, 13*s), 30 * ms, 1, 0}, {smoothOf(1, 10*ms, 0), 40 * ms, 1, 60 * ms},
			{smoothOf(1, 10*ms, 0), 100 * ms, 1, 0},
		}},
		{"calendar: a longer window holds more of the old ones", []ask{
			{calendarOf(1, 10*ms, 10*ms, 0, 10*ms, 20*ms), 1000, 1, 0}, {calendarOf(1, 10*ms, 10*ms, 0, 10*ms, 20*ms), 10 * ms, 1, 0},
			{calendarOf(2, s, s, 0, s, 2*s), 20 * ms, 1, 980 * ms},
		}},
		{"fixed: the window is the new one", []ask{
			{fixedOf(3, s), 0, 1, 0}, {fixedOf(3, s), 500 * ms, 1, 0}, {fixedOf(2, 100*ms), 510 * ms, 1, 90 * ms}, {fixedOf(2, 2*s), 600 * ms, 1, 1400 * ms},
		}},
		{"fixed to sliding and back", []ask{
			{fixedOf(3, s), 0, 2, 0}, {slidingOf(3, s), 500 * ms, 1, 0}, {slidingOf(3, s), 900 * ms, 2, 100 * ms}, {fixedOf(3, s), 900 * ms, 1, 100 * ms},
		}},
		{"warm-up to another: the debt stays time, the warmth a share", []ask{
			{warmOf(2, s, 4*s, 3000), 0, 1, 0}, {warmOf(4, s, 4*s, 3000), 0, 1, 1375 * ms}, {warmOf(4, s, 4*s, 3000), 1375 * ms, 1, 0},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			sc := newScene()
			for i, a := range tc.asks {
				sc.at(a.at)
				if r := sc.ask(a.limit, a.cost, ""); r.At.Sub(sc.now) != a.wait || (r.Status == limitscripts.Granted) != (a.wait == 0) {
					t.Fatalf("ask %d: cost %d at %v: status %v, wait %v, want %v", i, a.cost, a.at, r.Status, r.At.Sub(sc.now), a.wait)
				}
			}
		})
	}
}

// TestRefundFromForgottenState: tokens outlive a short state; their count means
// nothing to the state that follows.
func TestRefundFromForgottenState(t *testing.T) {
	t.Parallel()
	limit := gcraOf(1, time.Second, 5)
	s := newScene()
	first := s.ask(limit, 5, "")
	s.at(10 * time.Second)
	second := s.ask(limit, 5, "")
	if r := s.refund(limit, 5, 1, first.Worth[0]); r.Status != limitscripts.Granted {
		t.Fatalf("the first refund = %+v, want it accepted", r)
	}
	if p := s.Peek(s.key, limitscripts.PeekArgs{Numbers: limit, Cost: 1}); p.Free != 0 {
		t.Fatalf("%d free, want 0: the first grant was paid long ago", p.Free)
	}
	s.refund(limit, 5, 2, second.Worth[0])
	if p := s.Peek(s.key, limitscripts.PeekArgs{Numbers: limit, Cost: 1}); p.Free != 5 {
		t.Fatalf("%d free after all of it came back at once, want 5", p.Free)
	}
}
