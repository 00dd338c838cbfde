package throttle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/coalesce"
	"github.com/headwayq/headway/internal/luascripts"
)

// distant is a Redis that grants all, each script after a round trip.
type distant struct {
	redis.UniversalClient
	trip func() (time.Duration, error)

	mu                      sync.Mutex
	calls, underWay, atMost int
	crowds                  []int       // of each script, in the order of arrival
	sent                    []time.Time // when it came
}

func (d *distant) EvalSha(_ context.Context, _ string, _ []string, args ...any) *redis.Cmd {
	n := args[0].(int)
	d.mu.Lock()
	d.calls, d.underWay = d.calls+n, d.underWay+1
	d.atMost = max(d.atMost, d.underWay)
	d.crowds, d.sent = append(d.crowds, n), append(d.sent, time.Now())
	took, err := d.trip()
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		d.underWay--
		d.mu.Unlock()
	}()
	time.Sleep(took)
	switch {
	case errors.Is(err, errPanic):
		panic(err)
	case err != nil:
		return redis.NewCmdResult(nil, err)
	}
	v := []any{time.Now().UnixMicro()}
	for range n {
		v = append(v, int64(-1))
	}
	return redis.NewCmdResult(v, nil)
}

var errPanic = errors.New("a hook of the client is broken")

func after(d time.Duration) func() (time.Duration, error) {
	return func() (time.Duration, error) { return d, nil }
}

// one is a call of the i-th of many.
func one(i int) *luascripts.Call {
	part := luascripts.RuleCall{
		LimitKeys: luascripts.NewLimitKeys("hw", "sms", fmt.Sprint(i)),
		Numbers:   luascripts.Numbers{Kind: luascripts.Sliding, Permits: 1, Window: time.Minute}, Cost: 1,
	}
	return &luascripts.Call{AcquireArgs: luascripts.AcquireArgs{Rules: []luascripts.RuleCall{part}, Token: uint64(i + 1), MaxWait: -1}}
}

// found lets a merger find out how far Redis is.
func found(t *testing.T, m *coalescer) {
	t.Helper()
	for i := range 100 {
		if err := m.acquire(t.Context(), one(i)); err != nil {
			t.Error(err)
		}
	}
}

// Two are sent at once, those who come then wait for one of them: a millisecond and no
// longer. What came by then goes together.
func TestPatience(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		far := &distant{trip: after(10 * time.Millisecond)}
		m := newCoalescer(far, false)
		found(t, m)
		far.crowds = nil
		began := time.Now()
		var wg sync.WaitGroup
		ask := func(i int, want time.Duration) {
			wg.Go(func() {
				if err := m.acquire(t.Context(), one(i)); err != nil {
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
		ask(7, 2500*time.Microsecond+10*time.Millisecond) // who comes later waits as long
		wg.Wait()
		if got, want := fmt.Sprint(far.crowds), "[1 1 5 1]"; got != want {
			t.Errorf("%s calls were sent together, want %s", got, want)
		}
		synctest.Wait()
		if !m.sole.Idle() {
			t.Error("flights are under way, and nobody is on them")
		}
	})
}

// Where Redis is near nobody loses patience when a flight now and then takes longer: who
// waits goes with the next that comes back.
func TestNobodyIsImpatientWithARedisThatIsNear(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := 0
		near := &distant{trip: func() (time.Duration, error) {
			if n++; n%4 == 0 {
				return 5 * time.Millisecond, nil
			}
			return 300 * time.Microsecond, nil
		}}
		m := newCoalescer(near, false)
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				if err := m.acquire(t.Context(), one(i)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if near.calls != 1000 || near.atMost != coalesce.InFlightNear {
			t.Errorf("%d calls of 1000, %d scripts at once, want %d", near.calls, near.atMost, coalesce.InFlightNear)
		}
	})
}

// A flight that does not come back, as when its connection broke without a word, is
// waited for by those on it alone, however many gather.
func TestNobodyWaitsBehindAFlightThatIsLost(t *testing.T) {
	t.Parallel()
	for _, callers := range []int{2, 4, 10, 30, 50, 200} {
		synctest.Test(t, func(t *testing.T) {
			lost := time.Now().Add(time.Second)
			near := &distant{}
			near.trip = func() (time.Duration, error) {
				if on := near.crowds[len(near.crowds)-1]; on <= callers/2 && lost.Before(time.Now()) {
					lost = lost.Add(time.Hour)
					return 3 * time.Second, nil
				}
				return 2 * time.Millisecond, nil
			}
			m := newCoalescer(near, false)
			var answered [2]atomic.Int64 // calls in a second, before and beside the lost one
			var wg sync.WaitGroup
			began := time.Now()
			for i := range callers {
				wg.Go(func() {
					for {
						if err := m.acquire(t.Context(), one(i)); err != nil {
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
				t.Errorf("%d callers: %d calls in a second beside a lost flight, %d before", callers, beside, before)
			}
			synctest.Wait()
			if !m.sole.Idle() {
				t.Errorf("%d callers: a flight is left", callers)
			}
		})
	}
}

// However many call, and however long Redis takes: 8 scripts are under way at most,
// each of 64 calls at most. When one comes back it takes along those who waited long.
func TestFlightsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		far := &distant{trip: after(50 * time.Millisecond)}
		m := newCoalescer(far, false)
		found(t, m)
		far.calls = 0
		var wg sync.WaitGroup
		const n = 1000
		began := time.Now()
		for i := range n {
			wg.Go(func() {
				if err := m.acquire(t.Context(), one(i)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if far.calls != n || far.atMost != coalesce.InFlightMax {
			t.Errorf("%d calls of %d, %d scripts at once, want %d", far.calls, n, far.atMost, coalesce.InFlightMax)
		}
		for i, crowd := range far.crowds {
			if crowd > luascripts.CallsMax {
				t.Errorf("script %d is of %d calls", i, crowd)
			}
		}
		// 2 alone and 6 x 64 at 1 ms; 8 x 64 when those are back; then the rest
		if took, want := time.Since(began), 151*time.Millisecond; took > want {
			t.Errorf("all are answered after %v, want %v", took, want)
		}
		synctest.Wait()
		if !m.sole.Idle() {
			t.Error("flights are under way, and nobody is on them")
		}
	})
}

// Once Redis is fast again two are under way, as before it was slow.
func TestFlightsEndWhenRedisIsFastAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := time.Now().Add(100 * time.Millisecond)
		far := &distant{trip: func() (time.Duration, error) {
			if time.Now().Before(slow) {
				return 20 * time.Millisecond, nil
			}
			return 300 * time.Microsecond, nil
		}}
		m := newCoalescer(far, false)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		var wg sync.WaitGroup
		for i := range 128 {
			wg.Go(func() {
				for ctx.Err() == nil {
					if err := m.acquire(t.Context(), one(i)); err != nil {
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
		if most <= coalesce.InFlightNear || far.atMost != coalesce.InFlightNear {
			t.Errorf("%d scripts at once while Redis is slow, then %d; want more than %d, then %d", most, far.atMost, coalesce.InFlightNear, coalesce.InFlightNear)
		}
	})
}

// Answers come late, or never; callers leave: everybody else is answered all the same,
// and nothing is under way in the end.
func TestNobodyIsLeftBehind(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			m := newCoalescer(&distant{trip: func() (time.Duration, error) {
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
			}}, false)
			var wg sync.WaitGroup
			for g := range 50 {
				r := rand.New(rand.NewPCG(seed, uint64(g)+1))
				wg.Go(func() {
					for i := range 40 {
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.IntN(20_000))*time.Microsecond)
						began := time.Now()
						c := one(100*g + i)
						switch err := m.acquire(ctx, c); {
						case err == nil && c.Status != luascripts.Granted:
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
			time.Sleep(time.Second) // those whose callers left are answered, too
			synctest.Wait()
			if !m.sole.Idle() {
				t.Errorf("seed %d: flights are under way, and nobody is on them", seed)
			}
		})
	}
}

// A panic in a client's hook is that of the caller whose goroutine it is in: who waits
// behind it is sent.
func TestPanicLeavesNobodyBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broken := true
		m := newCoalescer(&distant{trip: func() (time.Duration, error) {
			if broken {
				return 100 * time.Microsecond, errPanic
			}
			return 100 * time.Microsecond, nil
		}}, false)
		var wg sync.WaitGroup
		for i := range coalesce.InFlightNear {
			wg.Go(func() {
				defer func() {
					if recover() == nil {
						t.Error("a hook did not panic")
					}
				}()
				_ = m.acquire(t.Context(), one(i))
			})
		}
		synctest.Wait()
		broken = false
		began := time.Now()
		for i := range 10 {
			wg.Go(func() {
				if err := m.acquire(t.Context(), one(coalesce.InFlightNear+i)); err != nil {
					t.Error(err)
				}
				if took, want := time.Since(began), 200*time.Microsecond; took != want {
					t.Errorf("answered after %v, want %v", took, want)
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		if !m.sole.Idle() {
			t.Error("flights are under way, and nobody is on them")
		}
	})
}

// Where Redis is near and many call, most of them go together; one or two who call are
// sent at once.
func TestManyGather(t *testing.T) {
	t.Parallel()
	for callers, least := range map[int]float64{1: 1, 2: 1, 8: 4, 16: 7, 31: 12, 128: 32} {
		synctest.Test(t, func(t *testing.T) {
			near := &distant{trip: after(300 * time.Microsecond)}
			m := newCoalescer(near, false)
			end := time.Now().Add(30 * time.Millisecond)
			var wg sync.WaitGroup
			for i := range callers {
				wg.Go(func() {
					for time.Now().Before(end) {
						began := time.Now()
						if err := m.acquire(t.Context(), one(i)); err != nil {
							t.Error(err)
						}
						if took := time.Since(began); callers <= 2 && took != 300*time.Microsecond {
							t.Errorf("one of %d waited %v for others", callers, took)
						}
					}
				})
			}
			wg.Wait()
			if got := float64(near.calls) / float64(len(near.crowds)); got < least || near.atMost > coalesce.InFlightNear {
				t.Errorf("%d callers: crowds of %.1f, %d scripts at once, want %v at least, and %d", callers, got, near.atMost, least, coalesce.InFlightNear)
			}
			synctest.Wait()
			if !m.sole.Idle() {
				t.Error("flights are under way, and nobody is on them")
			}
		})
	}
}
