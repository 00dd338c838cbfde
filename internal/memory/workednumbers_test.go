package memory

import (
	"testing"
	"time"

	"github.com/headwayq/headway/internal/limitscripts"
)

// doing is a step of a script: a try, or a refund, or a look.
type doing struct {
	at     time.Duration
	cost   int
	wait   time.Duration // 0: granted
	refund int           // instead: of the try with this number, from 1
	blind  bool          // without what the grant's answer said
	free   int           // instead, when cost and refund are 0
}

// TestWorkedNumbers repeats the numbers of the package's comments, and their
// neighbours, as scripts.
func TestWorkedNumbers(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for _, tc := range []struct {
		name  string
		limit limitscripts.Numbers
		steps []doing
	}{
		{"sliding 1/60s", slidingOf(1, time.Minute), []doing{
			{at: 0, cost: 1}, {at: 30 * s, cost: 1, wait: 30 * s}, {at: 60*s - 1000, cost: 1, wait: 1000}, {at: 60 * s, cost: 1},
		}},
		{"sliding 3/10s with a refund", slidingOf(3, 10*s), []doing{
			{at: 0, cost: 2}, {at: s, cost: 1}, {at: 2 * s, free: 0}, {at: 2 * s, refund: 2}, {at: 2 * s, free: 1},
			{at: 2 * s, cost: 2, wait: 8 * s}, {at: 2 * s, cost: 1}, {at: s, cost: 1, wait: 9 * s}, {at: 10 * s, cost: 3, wait: 2 * s},
		}},
		{"fixed 2/10s", fixedOf(2, 10*s), []doing{
			{at: 3 * s, cost: 1}, {at: 8 * s, cost: 1}, {at: 9 * s, cost: 1, wait: 4 * s}, {at: 8 * s, refund: 2}, {at: 9 * s, free: 1},
			{at: 9 * s, cost: 2, wait: 4 * s}, {at: 13 * s, free: 2}, {at: 17 * s, cost: 2}, {at: 26 * s, cost: 1, wait: s}, {at: 27 * s, cost: 1},
		}},
		{"fixed, emptied by refunds", fixedOf(2, 10*s), []doing{
			{at: 0, cost: 2}, {at: 4 * s, refund: 1}, {at: 4 * s, free: 2}, {at: 4 * s, cost: 1}, {at: 13 * s, cost: 2, wait: s}, {at: 13 * s, cost: 1},
		}},
		{"calendar 2 a window of 60, 50 and 70 s", calendarOf(2, time.Minute, 50*s, 0, 60*s, 110*s, 180*s), []doing{
			{at: 59 * s, cost: 2}, {at: 59 * s, cost: 1, wait: s}, {at: 60 * s, cost: 1}, {at: 61 * s, cost: 2, wait: 49 * s},
			{at: 62 * s, refund: 3}, {at: 62 * s, free: 2}, {at: 100 * s, cost: 2}, {at: 109 * s, free: 0}, {at: 110 * s, free: 2},
			{at: 30 * s, cost: 1, wait: 80 * s},
		}},
		{"gcra 10/s burst 3", gcraOf(10, s, 3), []doing{
			{at: 0, cost: 3}, {at: 0, cost: 1, wait: 100 * ms}, {at: 99 * ms, cost: 1, wait: ms}, {at: 50 * ms, cost: 2, wait: 150 * ms},
			{at: 250 * ms, free: 2}, {at: 250 * ms, cost: 2}, {at: 250 * ms, cost: 1, wait: 50 * ms}, {at: 100 * ms, cost: 1, wait: 200 * ms},
			{at: 10 * s, free: 3},
		}},
		{"gcra 3/s, thirds of a second do not add up to an error", gcraOf(3, s, 1), []doing{
			{at: 0, cost: 1}, {at: 0, cost: 1, wait: 333_334_000}, {at: 333_334_000, cost: 1}, {at: 333_334_000, cost: 1, wait: 333_333_000},
			{at: 666_667_000, cost: 1}, {at: 666_667_000, cost: 1, wait: 333_333_000}, {at: 999_999_000, cost: 1, wait: 1000},
		}},
		{"gcra, what time has paid is not given back", gcraOf(10, s, 3), []doing{
			{at: 0, cost: 2}, {at: 0, cost: 1}, {at: 50 * ms, refund: 2}, {at: 50 * ms, free: 1}, {at: 150 * ms, refund: 1}, {at: 150 * ms, free: 3},
		}},
		{"bucket 2/10s burst 3 step", stepOf(2, 10*s, 3), []doing{
			{at: 4 * s, cost: 3}, {at: 5 * s, cost: 1, wait: 9 * s}, {at: 5 * s, cost: 3, wait: 19 * s}, {at: 14*s - 1000, free: 0}, {at: 14 * s, free: 2},
			{at: 23 * s, cost: 2}, {at: 23 * s, cost: 1, wait: s}, {at: 24 * s, cost: 2}, {at: 24 * s, cost: 3, wait: 20 * s}, {at: 100 * s, free: 3},
		}},
		{"bucket with steps, refunds", stepOf(2, 10*s, 3), []doing{
			{at: 0, cost: 3}, {at: 11 * s, refund: 1}, {at: 11 * s, free: 3}, {at: 12 * s, cost: 3}, {at: 13 * s, refund: 2, blind: true}, {at: 13 * s, free: 3},
		}},
		{"leaky 2/s", smoothOf(2, s, 0), []doing{
			{at: 0, cost: 5}, {at: 0, cost: 1, wait: 2500 * ms}, {at: 2499 * ms, cost: 3, wait: ms}, {at: 2500 * ms, cost: 1}, {at: 2600 * ms, refund: 4},
			{at: 2600 * ms, cost: 1, wait: 0}, {at: 10 * s, free: 1},
		}},
		{"smooth 5/s burst 5", smoothOf(5, s, 5), []doing{
			{at: 0, cost: 1}, {at: 0, cost: 1, wait: 200 * ms}, {at: 1200 * ms, free: 5}, {at: 2 * s, cost: 1}, {at: 2 * s, cost: 1}, {at: 2 * s, cost: 3},
			{at: 2 * s, cost: 1}, {at: 2 * s, cost: 1, wait: 200 * ms},
		}},
		{"warmup 2/s over 4s cold 3, a refund gives steady time back", warmOf(2, s, 4*s, 3000), []doing{
			{at: 0, cost: 1}, {at: 0, cost: 1, wait: 1375 * ms}, {at: 0, free: 0}, {at: 0, refund: 1}, {at: 0, cost: 1, wait: 875 * ms}, {at: 875 * ms, free: 1},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			play(t, tc.limit, tc.steps)
		})
	}
}

func play(t *testing.T, limit limitscripts.Numbers, steps []doing) {
	t.Helper()
	s := newScene()
	s.Keep(time.Hour)
	var tries []limitscripts.AcquireReply
	costs := []int{}
	for i, d := range steps {
		s.at(d.at)
		switch {
		case d.refund > 0:
			worth := tries[d.refund-1].Worth[0]
			if d.blind {
				worth = 0
			}
			if r := s.refund(limit, costs[d.refund-1], uint64(d.refund), worth); r.Status != limitscripts.Granted {
				t.Fatalf("step %d: refund of try %d: %+v, want it given back", i, d.refund, r)
			}
		case d.cost > 0:
			r := s.ask(limit, d.cost, "")
			tries, costs = append(tries, r), append(costs, d.cost)
			if got := r.At.Sub(s.now); got != d.wait || (r.Status == limitscripts.Granted) != (d.wait == 0) {
				t.Fatalf("step %d: cost %d at %v: status %v, wait %v, want wait %v", i, d.cost, d.at, r.Status, got, d.wait)
			}
		default:
			if r := s.Peek(s.key, limitscripts.PeekArgs{Numbers: limit, Cost: 1}); r.Free != d.free {
				t.Fatalf("step %d: free at %v = %d, want %d", i, d.at, r.Free, d.free)
			}
		}
	}
}
