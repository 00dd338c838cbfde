package coalesce

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const (
	most = 64 // calls of a batch
	few  = 2  // as throttle has it
)

// distant is a server that answers every call. Each batch takes a round trip.
type distant struct {
	trip func() (time.Duration, error)

	mu                      sync.Mutex
	calls, inFlight, atMost int
	batches                 []int // how many calls each has, in the order of arrival
}

// call is what the server answered to one call.
type call struct {
	answered bool
	err      error
}

func (d *distant) send(n int) error {
	d.mu.Lock()
	d.calls, d.inFlight = d.calls+n, d.inFlight+1
	d.atMost = max(d.atMost, d.inFlight)
	d.batches = append(d.batches, n)
	took, err := d.trip()
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		d.inFlight--
		d.mu.Unlock()
	}()
	time.Sleep(took)
	if errors.Is(err, errPanic) {
		panic(err)
	}
	return err
}

// batcher is a batcher to the server.
func (d *distant) batcher() *Batcher[*call] {
	together := func(_ context.Context, calls []*call) error {
		err := d.send(len(calls))
		for _, c := range calls {
			c.answered, c.err = err == nil, err
		}
		return err
	}
	return NewBatcher(&Transport[*call]{
		Alone:    func(ctx context.Context, c *call) error { return together(ctx, []*call{c}) },
		Together: together, Weight: func(*call) int { return 1 }, Most: most, Few: few, Patience: PatienceDefault,
	})
}

// send sends a call by a batcher, and returns what became of it.
func send(ctx context.Context, b *Batcher[*call], c *call) error {
	if err := b.Do(ctx, c); err != nil {
		return err
	}
	return c.err
}

var errPanic = errors.New("a hook of the client is broken")

func after(d time.Duration) func() (time.Duration, error) {
	return func() (time.Duration, error) { return d, nil }
}

// findDistance lets a batcher find out how far the server is.
func findDistance(t *testing.T, b *Batcher[*call]) {
	t.Helper()
	for range 100 {
		if err := send(t.Context(), b, new(call)); err != nil {
			t.Error(err)
		}
	}
}

// idle says that no call waits or is in flight.
func idle[C any](b *Batcher[C]) bool {
	waiting, inFlight := b.Calls()
	return waiting == 0 && inFlight == 0
}

// Two calls are sent at once. Calls that come then wait for one of them, a millisecond at
// most, and go together.
func TestPatience(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		far := &distant{trip: after(10 * time.Millisecond)}
		b := far.batcher()
		findDistance(t, b)
		far.batches = nil
		began := time.Now()
		var wg sync.WaitGroup
		ask := func(i int, want time.Duration) {
			wg.Go(func() {
				if err := send(t.Context(), b, new(call)); err != nil {
					t.Error(err)
				}
				if took := time.Since(began); took != want {
					t.Errorf("call %d is answered after %v, want %v", i, took, want)
				}
			})
			synctest.Wait()
		}
		ask(0, 10*time.Millisecond)
		ask(1, 10*time.Millisecond)
		for i := range 5 {
			ask(2+i, 11*time.Millisecond)
			time.Sleep(100 * time.Microsecond)
		}
		time.Sleep(time.Millisecond)
		ask(7, 2500*time.Microsecond+10*time.Millisecond) // a later call waits as long
		wg.Wait()
		if got, want := fmt.Sprint(far.batches), "[1 1 5 1]"; got != want {
			t.Errorf("%s calls were sent together, want %s", got, want)
		}
		synctest.Wait()
		if !idle(b) {
			t.Error("batches are in flight, and no call is in them")
		}
	})
}

// Near a server no further batch is sent when one now and then takes longer: calls that
// wait go when the next one comes back.
func TestSlowBatchNearAServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := 0
		near := &distant{trip: func() (time.Duration, error) {
			if n++; n%4 == 0 {
				return 5 * time.Millisecond, nil
			}
			return 300 * time.Microsecond, nil
		}}
		b := near.batcher()
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() {
				if err := send(t.Context(), b, new(call)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if near.calls != 1000 || near.atMost != inFlightNear {
			t.Errorf("%d calls of 1000, %d batches at once, want %d", near.calls, near.atMost, inFlightNear)
		}
	})
}

// A batch may not come back, as when its connection broke without a word. Then only its own
// calls wait for it, however many others gather.
func TestLostBatchHoldsUpNoOthers(t *testing.T) {
	t.Parallel()
	for _, callers := range []int{2, 4, 10, 30, 50, 200} {
		synctest.Test(t, func(t *testing.T) {
			lost := time.Now().Add(time.Second)
			near := &distant{}
			near.trip = func() (time.Duration, error) {
				if on := near.batches[len(near.batches)-1]; on <= callers/2 && lost.Before(time.Now()) {
					lost = lost.Add(time.Hour)
					return 3 * time.Second, nil
				}
				return 2 * time.Millisecond, nil
			}
			b := near.batcher()
			var answered [2]atomic.Int64 // calls in a second, before and beside the lost one
			var wg sync.WaitGroup
			began := time.Now()
			for range callers {
				wg.Go(func() {
					for {
						if err := send(t.Context(), b, new(call)); err != nil {
							t.Error(err)
						}
						since := time.Since(began)
						if since >= 2*time.Second {
							return
						}
						answered[since/time.Second].Add(1)
					}
				})
			}
			wg.Wait()
			if before, beside := answered[0].Load(), answered[1].Load(); beside < before/4 {
				t.Errorf("%d callers: %d calls in a second beside a lost batch, %d before", callers, beside, before)
			}
			synctest.Wait()
			if !idle(b) {
				t.Errorf("%d callers: a batch is left", callers)
			}
		})
	}
}

// When a call can't wait any more for a batch that is lost, those beside that one count as
// overdue, too. They come back in time, and then none is counted that is not in flight: or
// later calls would wait for nothing.
func TestOverdueBatchesAreInFlight(t *testing.T) {
	t.Parallel()
	b := (&distant{}).batcher()
	b.inFlight, b.overdue = 3, 2 // the lost one, one that was sent a moment before, and the one that could not wait
	for range 2 {
		b.next(nil, time.Millisecond)
	}
	if b.inFlight != 1 || b.overdue != 1 {
		t.Errorf("%d batches in flight, %d of them overdue, want the lost one", b.inFlight, b.overdue)
	}
}

// However many call, and however long the server takes: at most 8 batches are in flight,
// each of at most 64 calls. When one comes back, the calls that waited longest go next.
func TestBatchesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		far := &distant{trip: after(50 * time.Millisecond)}
		b := far.batcher()
		findDistance(t, b)
		far.calls = 0
		var wg sync.WaitGroup
		const n = 1000
		began := time.Now()
		for range n {
			wg.Go(func() {
				if err := send(t.Context(), b, new(call)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if far.calls != n || far.atMost != inFlightMax {
			t.Errorf("%d calls of %d, %d batches at once, want %d", far.calls, n, far.atMost, inFlightMax)
		}
		for i, n := range far.batches {
			if n > most {
				t.Errorf("batch %d is of %d calls", i, n)
			}
		}
		// 2 alone and 6 x 64 at 1 ms; 8 x 64 when those are back; then the rest
		if took, want := time.Since(began), 151*time.Millisecond; took > want {
			t.Errorf("all are answered after %v, want %v", took, want)
		}
		synctest.Wait()
		if !idle(b) {
			t.Error("batches are in flight, and no call is in them")
		}
	})
}

// Once the server is fast again two batches are in flight, as before it was slow.
func TestFewBatchesWhenServerIsFastAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := time.Now().Add(100 * time.Millisecond)
		far := &distant{trip: func() (time.Duration, error) {
			if time.Now().Before(slow) {
				return 20 * time.Millisecond, nil
			}
			return 300 * time.Microsecond, nil
		}}
		b := far.batcher()
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		var wg sync.WaitGroup
		for range 128 {
			wg.Go(func() {
				for ctx.Err() == nil {
					if err := send(t.Context(), b, new(call)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		time.Sleep(130 * time.Millisecond)
		synctest.Wait()
		far.mu.Lock()
		most := far.atMost
		far.atMost = 0
		far.mu.Unlock()
		wg.Wait()
		if most <= inFlightNear || far.atMost != inFlightNear {
			t.Errorf("%d batches at once while the server is slow, then %d; want more than %d, then %d", most, far.atMost, inFlightNear, inFlightNear)
		}
	})
}

// Answers come late, or never, and callers leave. All other calls are answered, and nothing
// is in flight in the end.
func TestNoCallIsLeftBehind(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			b := (&distant{trip: func() (time.Duration, error) {
				took := time.Duration(r.IntN(3000)) * time.Microsecond
				switch r.IntN(20) {
				case 0:
					return took, io.ErrUnexpectedEOF
				case 1:
					return took, context.DeadlineExceeded
				case 2:
					return 50 * time.Millisecond, nil
				}
				return took, nil
			}}).batcher()
			var wg sync.WaitGroup
			for g := range 50 {
				r := rand.New(rand.NewPCG(seed, uint64(g)+1))
				wg.Go(func() {
					for range 40 {
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.IntN(20_000))*time.Microsecond)
						began := time.Now()
						c := new(call)
						switch err := send(ctx, b, c); {
						case err == nil && !c.answered:
							t.Errorf("seed %d: no error and no answer", seed)
						case err != nil && ctx.Err() == nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, context.DeadlineExceeded):
							t.Errorf("seed %d: %v", seed, err)
						}
						if took := time.Since(began); took > 200*time.Millisecond {
							t.Errorf("seed %d: a call took %v", seed, took)
						}
						cancel()
						time.Sleep(time.Duration(r.IntN(500)) * time.Microsecond)
					}
				})
			}
			wg.Wait()
			time.Sleep(time.Second) // calls whose callers left are answered, too
			synctest.Wait()
			if !idle(b) {
				t.Errorf("seed %d: batches are in flight, and no call is in them", seed)
			}
		})
	}
}

// A panic in a client's hook is that of the caller in whose goroutine it is. Calls that wait
// behind it are sent.
func TestPanicLeavesNoCallBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broken := true
		b := (&distant{trip: func() (time.Duration, error) {
			if broken {
				return 100 * time.Microsecond, errPanic
			}
			return 100 * time.Microsecond, nil
		}}).batcher()
		var wg sync.WaitGroup
		for range inFlightNear {
			wg.Go(func() {
				defer func() {
					if recover() == nil {
						t.Error("a hook did not panic")
					}
				}()
				_ = send(t.Context(), b, new(call))
			})
		}
		synctest.Wait()
		broken = false
		began := time.Now()
		for range 10 {
			wg.Go(func() {
				if err := send(t.Context(), b, new(call)); err != nil {
					t.Error(err)
				}
				if took, want := time.Since(began), 200*time.Microsecond; took != want {
					t.Errorf("answered after %v, want %v", took, want)
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		if !idle(b) {
			t.Error("batches are in flight, and no call is in them")
		}
	})
}

// Near a server most of many calls go together, and one or two calls are sent at once.
func TestManyGather(t *testing.T) {
	t.Parallel()
	for callers, least := range map[int]float64{1: 1, 2: 1, 8: 4, 16: 7, 31: 12, 128: 32} {
		synctest.Test(t, func(t *testing.T) {
			near := &distant{trip: after(300 * time.Microsecond)}
			b := near.batcher()
			end := time.Now().Add(30 * time.Millisecond)
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					for time.Now().Before(end) {
						began := time.Now()
						if err := send(t.Context(), b, new(call)); err != nil {
							t.Error(err)
						}
						if took := time.Since(began); callers <= 2 && took != 300*time.Microsecond {
							t.Errorf("a call of %d waited %v for others", callers, took)
						}
					}
				})
			}
			wg.Wait()
			if got := float64(near.calls) / float64(len(near.batches)); got < least || near.atMost > inFlightNear {
				t.Errorf("%d callers: batches of %.1f, %d batches at once, want %v at least, and %d", callers, got, near.atMost, least, inFlightNear)
			}
			synctest.Wait()
			if !idle(b) {
				t.Error("batches are in flight, and no call is in them")
			}
		})
	}
}

// A batch holds no more than Most by weight. A call that weighs more goes by itself.
func TestWeightBoundsABatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		far := &distant{trip: after(10 * time.Millisecond)}
		b := far.batcher()
		heavy := new(call)
		b.transport.Weight = func(c *call) int {
			if c == heavy {
				return most + 1
			}
			return most / 2
		}
		findDistance(t, b)
		far.batches = nil
		var wg sync.WaitGroup
		for _, c := range []*call{{}, {}, {}, {}, heavy, {}, {}} { // two go at once
			wg.Go(func() {
				if err := send(t.Context(), b, c); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		slices.Sort(far.batches) // those that go at one time arrive in any order
		if got, want := fmt.Sprint(far.batches), "[1 1 1 2 2]"; got != want {
			t.Errorf("%s calls were sent together, want %s", got, want)
		}
	})
}
