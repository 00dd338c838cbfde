package memory

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/headwayq/headway/internal/limitscripts"
)

func (s *scene) mode(n limitscripts.Numbers, job string, mode limitscripts.Mode, maxWait time.Duration) limitscripts.AcquireReply {
	s.token++
	return s.Acquire(limitscripts.AcquireArgs{Rules: s.one(n, 1), Token: s.token, Job: job, Mode: mode, MaxWait: maxWait})
}

func (s *scene) waiting(n limitscripts.Numbers) []string {
	var jobs []string
	for _, w := range s.Peek(s.key, limitscripts.PeekArgs{Numbers: n, Cost: 1, Most: 250}).Listed {
		jobs = append(jobs, w.Job)
	}
	return jobs
}

// TestTokenAgain repeats calls whose answer was lost.
func TestTokenAgain(t *testing.T) {
	t.Parallel()
	limit := gcraOf(1, 10*time.Second, 3)
	s := newScene()
	first, second := s.ask(limit, 1, "a"), s.ask(limit, 1, "b")
	ask := limitscripts.AcquireArgs{Rules: s.one(limit, 1), Token: 2, Job: "b", Mode: limitscripts.GrantOrBook, MaxWait: -1}
	if r := s.Acquire(ask); r.Status != limitscripts.Granted || !r.At.Equal(second.At) || !slices.Equal(r.Worth, second.Worth) {
		t.Errorf("the newest again = %+v, want %+v", r, second)
	}
	ask.Token = 1
	if r := s.Acquire(ask); r.Status != limitscripts.Granted || !r.At.Equal(first.At) || r.Worth[0] != 0 {
		t.Errorf("an older one again = %+v, want its instant and no Worth", r)
	}
	s.refund(limit, 1, 1, first.Worth[0])
	if r := s.Acquire(ask); r.Status != limitscripts.Withdrawn {
		t.Errorf("a withdrawn one = %+v, want it withdrawn", r)
	}
	if r := s.refund(limit, 1, 1, first.Worth[0]); r.Status != limitscripts.Refused {
		t.Errorf("given back twice: %+v", r)
	}
	if p := s.Peek(s.key, limitscripts.PeekArgs{Numbers: limit, Cost: 1}); p.Free != 2 {
		t.Errorf("%d free, want 2", p.Free)
	}
	s.refund(limit, 1, 9, 0)
	ask.Token = 9
	if r := s.Acquire(ask); r.Status != limitscripts.Withdrawn {
		t.Errorf("withdrawn before it came = %+v, want it withdrawn", r)
	}
}

// next says that it is this one job that may come earlier.
func next(turns []limitscripts.Promotion, job string, at time.Time) bool {
	return len(turns) == 1 && turns[0].Rule == 1 && turns[0].Job == job && turns[0].At.Equal(at)
}

// TestLine follows four jobs on 1/10s through joining, a place given back, and
// one who comes too late.
func TestLine(t *testing.T) {
	t.Parallel()
	limit := fixedOf(1, 10*time.Second)
	s := newScene()
	s.mode(limit, "a", limitscripts.GrantOrBook, -1)
	for i, job := range []string{"b", "c", "d"} {
		want := start.Add(time.Duration(i+1) * 10 * time.Second)
		if r := s.mode(limit, job, limitscripts.GrantOrBook, -1); r.Status != limitscripts.Booked || !r.At.Equal(want) || !r.Promised.IsZero() {
			t.Fatalf("%s = %+v, want it booked at %v", job, r, want)
		}
	}
	if r := s.mode(limit, "e", limitscripts.GrantOrBook, 39*time.Second); r.Status != limitscripts.TooLate || !r.At.Equal(start.Add(40*time.Second)) {
		t.Fatalf("e = %+v, want it too late at 40 s", r)
	}
	if r := s.mode(limit, "", limitscripts.Try, -1); r.Status != limitscripts.Refused {
		t.Fatalf("a newcomer who tries = %+v, want it refused", r)
	}
	back := s.Cancel(limitscripts.CancelArgs{Rules: s.one(limit, 1), Token: 1, Job: "a", Back: true})
	if want := (limitscripts.CancelReply{Status: limitscripts.Granted, Now: back.Now}); !cmp.Equal(want, back) {
		t.Fatalf("a's grant back = %+v, want %+v: a knows", back, want)
	}
	if got := s.waiting(limit); !cmp.Equal(got, []string{"a", "b", "c", "d"}) {
		t.Fatalf("the line is %v, want a first", got)
	}
	gone := s.Cancel(limitscripts.CancelArgs{Rules: s.one(limit, 1), Job: "a"})
	if !next(gone.Promoted, "b", start) {
		t.Fatalf("a left: %+v, want b to come now", gone)
	}
	place := limitscripts.RefreshArgs{Rules: s.one(limit, 1), Job: "c"}
	if r := s.Refresh(place); r.Status != limitscripts.Booked || r.Before != 1 || !r.At.Equal(start.Add(10*time.Second)) {
		t.Fatalf("c = %+v, want it at 10 s behind 1", r)
	}
	s.at(10*time.Second + 101*ms) // b and c do not come
	if got := s.waiting(limit); !cmp.Equal(got, []string{"d"}) {
		t.Fatalf("the line is %v, want d: who is late holds up nobody", got)
	}
	if r := s.mode(limit, "d", limitscripts.Book, -1); r.Status != limitscripts.Booked || !r.At.Equal(s.now) || !r.Promised.Equal(start.Add(30*time.Second)) {
		t.Fatalf("d books again = %+v, want it now, after a promise of 30 s", r)
	}
	if r := s.mode(limit, "c", limitscripts.GrantOrBook, -1); r.Status != limitscripts.Granted || r.Promoted != nil {
		t.Fatalf("c comes late = %+v, want it granted at once", r)
	}
	if r := s.Refresh(place); r.Status != limitscripts.Refused {
		t.Fatalf("c is gone, but %+v", r)
	}
	if r := s.mode(limit, "d", limitscripts.GrantOrBook, -1); r.Status != limitscripts.Booked {
		t.Fatalf("d = %+v, want it booked", r)
	}
	if r := s.Reset(s.key, limit); r.Status != limitscripts.Granted || !next(r.Promoted, "d", s.now) {
		t.Fatalf("reset = %+v, want d to come now", r)
	}
}

// TestNotCovered asks with bounds of another day: nothing is decided.
func TestNotCovered(t *testing.T) {
	t.Parallel()
	s := newScene()
	limit := calendarOf(1, time.Minute, time.Minute, 0, time.Minute)
	s.ask(limit, 1, "")
	s.ask(limit, 1, "b")
	before := s.Peek(s.key, limitscripts.PeekArgs{Numbers: limit, Cost: 1})
	for _, other := range []limitscripts.Numbers{
		calendarOf(1, time.Minute, time.Minute, time.Microsecond, time.Minute), calendarOf(1, time.Minute, time.Minute, -time.Minute, 0),
		calendarOf(1, time.Minute, time.Minute, 0), calendarOf(1, time.Minute, time.Minute),
	} {
		acquired := s.ask(other, 1, "c")
		canceled := s.refund(other, 1, 1, 0)
		checked := s.Refresh(limitscripts.RefreshArgs{Rules: s.one(other, 1), Job: "b"})
		peeked := s.Peek(s.key, limitscripts.PeekArgs{Numbers: other, Cost: 1})
		reset := s.Reset(s.key, other)
		for i, got := range []struct {
			limitscripts.Status
			Now time.Time
		}{{acquired.Status, acquired.Now}, {canceled.Status, canceled.Now}, {checked.Status, checked.Now}, {peeked.Status, peeked.Now}, {reset.Status, reset.Now}} {
			if got.Status != limitscripts.NotCovered || !got.Now.Equal(start) {
				t.Errorf("call %d with bounds %v = %+v, want that they do not cover now", i, other.Bounds, got)
			}
		}
	}
	if after := s.Peek(s.key, limitscripts.PeekArgs{Numbers: limit, Cost: 1}); !cmp.Equal(before, after) {
		t.Errorf("afterwards %+v, was %+v", after, before)
	}
}

// TestDrop loses the ledger alone.
func TestDrop(t *testing.T) {
	t.Parallel()
	s := newScene()
	limit := slidingOf(2, time.Minute)
	s.ask(limit, 1, "")
	s.ask(limit, 1, "")
	s.ask(limit, 1, "b")
	s.Drop(s.key)
	p := s.Peek(s.key, limitscripts.PeekArgs{Numbers: limit, Cost: 1, Most: 1})
	if p.Waiting != 1 || p.Life != 0 || !p.Listed[0].At.Equal(start) {
		t.Errorf("Peek = %+v, want b waiting, who may go now", p)
	}
	if r := s.Cancel(limitscripts.CancelArgs{Rules: s.one(limit, 1), Token: 1}); r.Status != limitscripts.Granted {
		t.Errorf("the older grant's token = %+v, want it known", r)
	}
}

// TestConcurrently lets many goroutines ask for the same key on the store's own
// clock, whose window does not end while they do.
func TestConcurrently(t *testing.T) {
	t.Parallel()
	s := New(nil)
	k := limitscripts.NewLimitKeys("hw", "rule", "tenant")
	for _, limit := range []limitscripts.Numbers{slidingOf(100, time.Hour), gcraOf(1, time.Hour, 100), stepOf(1, time.Hour, 100), fixedOf(100, time.Hour)} {
		s.Reset(k, limit)
		var wg sync.WaitGroup
		granted := make([]int, 8)
		for g := range granted {
			wg.Go(func() {
				for i := range 50 {
					r := s.Acquire(limitscripts.AcquireArgs{Rules: []limitscripts.RuleCall{{LimitKeys: k, Numbers: limit, Cost: 1}}, Token: uint64(g*1000 + i + 1), Mode: limitscripts.Try})
					if r.Status == limitscripts.Granted {
						granted[g]++
					}
				}
			})
		}
		wg.Wait()
		sum := 0
		for _, n := range granted {
			sum += n
		}
		if sum != 100 {
			t.Errorf("%s: %d granted, want 100", fmt.Sprint(rune(limit.Kind)), sum)
		}
	}
}

// TestFarAway asks behind more permits than time has microseconds for: nothing
// wraps around to now.
func TestFarAway(t *testing.T) {
	t.Parallel()
	const year = 366 * 24 * time.Hour
	for _, limit := range []limitscripts.Numbers{
		slidingOf(1, year), fixedOf(1, year), calendarOf(1, year, year, 0, year), gcraOf(1, year, 1), stepOf(1, year, 1), smoothOf(1, year, 0),
		warmOf(1, year, year, 3000),
	} {
		l := numbersOf(limit)
		s := fresh(l)
		now := start.UnixMicro()
		s.charge(l, now, 1)
		for _, before := range []int64{1_000_000_000, 1 << 50} {
			if at := s.earliest(l, now, before, 1); at < never/2 {
				t.Errorf("%c: behind %d permits of a year at %d", limit.Kind, before, at)
			}
		}
	}
}
