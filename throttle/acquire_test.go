package throttle_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// bubble runs f in a synctest bubble with a Redis of its own, whose clock is
// the bubble's. Each call of limiter is another process: another client and
// another Limiter.
func bubble(t *testing.T, limit throttle.Limit, f func(t *testing.T, limiter func() *throttle.Limiter, rdb *redis.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		rdb, m := redistest.Mini(t)
		f(t, func() *throttle.Limiter { return newLimiter(t, miniClient(t, m), "sms", limit, throttle.Config{}) }, rdb)
	})
}

func miniClient(t *testing.T, m *miniredis.Miniredis) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(redistest.MiniOptions(m))
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func TestAcquireServesInOrderOfArrival(t *testing.T) {
	t.Parallel()
	bubble(t, throttle.Sliding(1, time.Second), func(t *testing.T, limiter func() *throttle.Limiter, _ *redis.Client) {
		processes := []*throttle.Limiter{limiter(), limiter()}
		begin := time.Now()
		var wg sync.WaitGroup
		var mu sync.Mutex
		var order []int
		for i := range 20 {
			wg.Go(func() {
				if err := processes[i%2].Acquire(t.Context(), key, 1); err != nil {
					t.Errorf("Acquire %d = %v, want nil", i, err)
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i)
				if at, want := time.Since(begin), time.Duration(i)*time.Second; at < want || at > want+ms {
					t.Errorf("Acquire %d returned at %v, want %v", i, at, want)
				}
			})
			synctest.Wait() // it is in the line
		}
		wg.Wait()
		if !slices.IsSorted(order) {
			t.Errorf("order = %v, want that of arrival", order)
		}
	})
}

func TestAcquireLeavesTheLineWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	bubble(t, throttle.Sliding(1, time.Minute), func(t *testing.T, limiter func() *throttle.Limiter, rdb *redis.Client) {
		l := limiter()
		if err := l.Acquire(t.Context(), key, 1); err != nil {
			t.Fatal(err)
		}
		ledger := rdb.Get(t.Context(), "hw:{"+key+"}:sms").Val()
		cause := errors.New("shut down")
		ctx, cancel := context.WithCancelCause(t.Context())
		result := make(chan error)
		go func() { result <- l.Acquire(ctx, key, 1) }()
		synctest.Wait()
		if s, err := l.Peek(t.Context(), key, 1); err != nil || s.Waiting != 1 {
			t.Errorf("Waiting = %d, %v, want 1", s.Waiting, err)
		}
		cancel(cause)
		if err := <-result; !errors.Is(err, cause) {
			t.Errorf("Acquire = %v, want its context's cause", err)
		}
		if n := rdb.Exists(t.Context(), "hw:{"+key+"}:sms:line").Val(); n != 0 {
			t.Errorf("%d keys of the line are left, want none", n)
		}
		if got := rdb.Get(t.Context(), "hw:{"+key+"}:sms").Val(); got != ledger {
			t.Errorf("the ledger is %q, want it unchanged", got)
		}
	})
}

// A waiter takes the turn of a predecessor who leaves: at once when that is
// told in its own process, within a second when it happened in another one, and
// at the instant itself when that is still to come.
func TestAcquireTakesTheTurnOfOneWhoLeaves(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		leaves   time.Duration
		other    bool
		min, max time.Duration
	}{
		"same process, before its instant":  {30 * time.Second, false, time.Minute, time.Minute},
		"same process, after it":            {time.Minute + 50*ms, false, time.Minute + 50*ms, time.Minute + 50*ms},
		"other process, before its instant": {30 * time.Second, true, time.Minute, time.Minute},
		"other process, after it":           {time.Minute + 50*ms, true, time.Minute + 50*ms, time.Minute + 1050*ms},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, throttle.Sliding(1, time.Minute), func(t *testing.T, limiter func() *throttle.Limiter, _ *redis.Client) {
				l := limiter()
				other := l
				if tt.other {
					other = limiter()
				}
				begin := time.Now()
				first := throttle.Request{Key: key, Cost: 1, Job: "first"}
				if err := l.Acquire(t.Context(), key, 1); err != nil {
					t.Fatal(err)
				}
				if d, err := other.Policy().Redeem(t.Context(), first); err != nil || d.Granted {
					t.Fatalf("Redeem = %v, %v, want a booking", d, err)
				}
				result := make(chan error)
				go func() { result <- l.Acquire(t.Context(), key, 1) }()
				time.Sleep(tt.leaves)
				if _, err := other.Policy().Cancel(t.Context(), first); err != nil {
					t.Error(err)
				}
				if err := <-result; err != nil {
					t.Errorf("Acquire = %v, want nil", err)
				}
				if at := time.Since(begin); at < tt.min || at > tt.max {
					t.Errorf("Acquire returned at %v, want %v to %v", at, tt.min, tt.max)
				}
			})
		})
	}
}

func TestAcquireThatComesTooLateFailsAtOnce(t *testing.T) {
	t.Parallel()
	bubble(t, throttle.Sliding(1, time.Minute), func(t *testing.T, limiter func() *throttle.Limiter, rdb *redis.Client) {
		l := limiter()
		if err := acquireWithin(t.Context(), l, key, 1, 0); err != nil {
			t.Fatalf("Acquire within 0 of an idle key = %v, want nil", err)
		}
		short, cancel := context.WithTimeout(t.Context(), 59*time.Second)
		defer cancel()
		begin := time.Now()
		for name, err := range map[string]error{
			"Acquire within 0":       acquireWithin(t.Context(), l, key, 1, 0),
			"Acquire within -1h":     acquireWithin(t.Context(), l, key, 1, -time.Hour),
			"Acquire within 59s":     acquireWithin(t.Context(), l, key, 1, 59*time.Second),
			"a deadline":             l.Acquire(short, key, 1),
			"a deadline and a bound": acquireWithin(short, l, key, 1, time.Hour),
		} {
			if e, ok := errors.AsType[*throttle.TooLateError](err); !ok || e.Wait != time.Minute {
				t.Errorf("%s = %v, want a TooLateError of 1m", name, err)
			}
		}
		if d := time.Since(begin); d != 0 {
			t.Errorf("they took %v, want no time at all", d)
		}
		if n := rdb.Exists(t.Context(), "hw:{"+key+"}:sms:line").Val(); n != 0 {
			t.Errorf("%d keys of the line, want nothing booked", n)
		}
		if err := acquireWithin(t.Context(), l, key, 1, 61*time.Second); err != nil || time.Since(begin) != time.Minute {
			t.Errorf("Acquire within 61s = %v after %v, want nil after 1m", err, time.Since(begin))
		}
	})
}

// A waiter asks once a second and shortly before its instant, also when no
// grant may lie in the future: then at the instant, and not all the time
// before it (in a bubble that would never end).
func TestAcquireDoesNotSpin(t *testing.T) {
	t.Parallel()
	for _, inline := range []time.Duration{0, throttle.InlineWaitNone, ms} {
		for window, most := range map[time.Duration]int64{10 * time.Second: 15, time.Second: 5} {
			synctest.Test(t, func(t *testing.T) { asksAtMost(t, inline, window, most) })
		}
	}
}

func asksAtMost(t *testing.T, inline, window time.Duration, most int64) {
	t.Helper()
	_, m := redistest.Mini(t)
	rdb := miniClient(t, m)
	asks := &calls{}
	rdb.AddHook(asks)
	l := newLimiter(t, rdb, "sms", throttle.Sliding(1, window), throttle.Config{InlineWait: inline})
	begin := time.Now()
	for range 2 {
		if err := l.Acquire(t.Context(), key, 1); err != nil {
			t.Fatal(err)
		}
	}
	if d := time.Since(begin); d < window || d > window+2*ms {
		t.Errorf("InlineWait %v: the second was granted after %v, want %v", inline, d, window)
	}
	if n := asks.n.Load(); n > most {
		t.Errorf("InlineWait %v: %d calls for 2 grants and %v of waiting, want %d at most", inline, n, window, most)
	}
}

// Only the callers of the first instant in a line ask each second. The others ask at their instants. If
// each of 300 callers asked every second, they would ask 4,600 times in half a minute.
func TestVirtualOneOfThoseWhoWaitAsksEachSecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const callers = 300
		_, m := redistest.Mini(t)
		rdb := miniClient(t, m)
		asks := &decisions{}
		rdb.AddHook(asks)
		l := newLimiter(t, rdb, "sms", throttle.Sliding(10, time.Second), throttle.Config{})
		begin := time.Now()
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				if err := l.Acquire(t.Context(), key, 1); err != nil {
					t.Errorf("Acquire %d = %v, want nil", i, err)
				}
				if late := time.Since(begin) - time.Duration(i/10)*time.Second; late < 0 || late > ms {
					t.Errorf("Acquire %d returned %v late, want between 0 and 1ms", i, late)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		seconds := int64(time.Since(begin) / time.Second)
		if n := asks.n.Load(); n > 3*callers+10*seconds {
			t.Errorf("%d callers were decided about %d times within %d s, want 3 times each and 10 times a second at most", callers, n, seconds)
		}
	})
}

// decisions counts what acquire.lua is asked for, which may be many in one call.
type decisions struct{ calls }

func (d *decisions) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if args := cmd.Args(); redistest.IsScript(cmd) && !redistest.IsUnknown(err) {
			d.n.Add(int64(args[3+args[2].(int)].(int)))
		}
		return err
	}
}

// Three processes wait in turns, and all callers of one of them leave. Those of the others move
// up, though nobody tells them: the first of each finds out within a second, and the next ones
// when those before them go.
func TestVirtualCallersMoveUpWhenThoseOfAnotherProcessLeave(t *testing.T) {
	t.Parallel()
	const each = 300 * ms
	for _, limit := range []throttle.Limit{throttle.Sliding(1, each), throttle.GCRA(1, each, 1)} {
		bubble(t, limit, func(t *testing.T, limiter func() *throttle.Limiter, _ *redis.Client) {
			const callers = 40
			stay, leaves := []*throttle.Limiter{limiter(), limiter()}, limiter()
			if err := stay[0].Acquire(t.Context(), key, 1); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			ctx, leave := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for i := range callers {
				wg.Go(func() { _ = leaves.Acquire(ctx, key, 1) })
				synctest.Wait()
				wg.Go(func() {
					if err := stay[i%2].Acquire(t.Context(), key, 1); err != nil {
						t.Errorf("Acquire %d = %v, want nil", i, err)
					}
					if late := time.Since(begin) - time.Duration(i+1)*each; late < 0 || late > time.Second {
						t.Errorf("%v: Acquire %d returned %v late, want between 0 and 1s", limit, i, late)
					}
				})
				synctest.Wait()
			}
			time.Sleep(100 * ms)
			leave()
			wg.Wait()
		})
	}
}

// All callers of another process leave while 300 wait behind them, and Redis is 20 ms away. They don't
// go one after the other, each told by the one before it: that takes 6 s.
func TestVirtualManyCallersMoveUpAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, m := redistest.Mini(t)
		limit := throttle.Sliding(20, 100*ms)
		leaves := newLimiter(t, miniClient(t, m), "sms", limit, throttle.Config{})
		far := miniClient(t, m)
		far.AddHook(&calls{after: func() { time.Sleep(20 * ms) }})
		stay := newLimiter(t, far, "sms", limit, throttle.Config{})
		ctx, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { _ = leaves.Acquire(ctx, key, 20) })
		}
		synctest.Wait()
		for range 300 {
			wg.Go(func() {
				if err := stay.Acquire(t.Context(), key, 1); err != nil {
					t.Errorf("Acquire = %v, want nil", err)
				}
			})
		}
		time.Sleep(200 * ms)
		began := time.Now()
		leave()
		wg.Wait()
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("they took %v, want a second until the first finds out, and 1.5 s by the limit", took)
		}
	})
}

// A grant is worth nothing once its context ended while Redis was asked: it is
// given back.
func TestAcquireGivesBackWhatNobodyWants(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, m := redistest.Mini(t)
		rdb := miniClient(t, m)
		ctx, cancel := context.WithCancel(t.Context())
		rdb.AddHook(&calls{after: cancel})
		l := newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
		if err := l.Acquire(ctx, key, 1); !errors.Is(err, context.Canceled) {
			t.Errorf("Acquire = %v, want %v", err, context.Canceled)
		}
		if s, err := l.Peek(t.Context(), key, 0); err != nil || s.Available != 1 {
			t.Errorf("Available = %d, %v, want 1", s.Available, err)
		}
	})
}

func TestStale(t *testing.T) {
	t.Parallel()
	for window, stale := range map[time.Duration]time.Duration{
		10 * ms: 10 * ms, time.Second: 100 * ms, 10 * time.Second: time.Second, time.Hour: time.Second,
	} {
		bubble(t, throttle.Sliding(1, window), func(t *testing.T, limiter func() *throttle.Limiter, _ *redis.Client) {
			l := limiter()
			d, err := l.TryAcquire(t.Context(), key, 1)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(stale)
			if throttle.ForWorkers.Stale(d) {
				t.Errorf("window %v: Stale after %v = true, want false", window, time.Since(d.Start()))
			}
			time.Sleep(time.Nanosecond)
			if !throttle.ForWorkers.Stale(d) {
				t.Errorf("window %v: Stale after %v = false, want true", window, time.Since(d.Start()))
			}
		})
	}
}
