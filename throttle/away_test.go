package throttle_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

func TestFailOpen(t *testing.T) {
	t.Parallel()
	pulled(t, throttle.Sliding(1, time.Minute), throttle.Config{OnUnavailable: throttle.FailOpen}, func(t *testing.T, l *throttle.Limiter, c *cable) {
		for range 3 {
			d := mustTry(t, l, true, throttle.FailOpen)
			noKey(t, d)
			if d.Wait() > 0 || d.Err() != nil || l.Stale(d) {
				t.Errorf("%v: wait %v, err %v, want one that may go", d, d.Wait(), d.Err())
			}
			tries := c.tries.Load()
			if _, err := l.Refund(t.Context(), d.Request); err != nil {
				t.Errorf("Refund = %v, want nil: there is nothing to give back", err)
			}
			synctest.Wait()
			if c.tries.Load() > tries+1 { // what is taken back behind the first
				t.Errorf("Refund asked Redis")
			}
		}
		if err := l.Acquire(t.Context(), key, 1); err != nil {
			t.Errorf("Acquire = %v, want nil", err)
		}
		if err := l.AcquireWithin(t.Context(), key, 1, 0); err != nil {
			t.Errorf("AcquireWithin = %v, want nil", err)
		}
		if v, err := l.Reserve(t.Context(), key, 1); err != nil || !v.Granted() {
			t.Errorf("Reserve = %v, %v, want a grant", v, err)
		}
		if d, err := l.Book(t.Context(), throttle.Request{Key: key, Cost: 1, Job: "a"}); err != nil || d.Granted || d.Wait() > 0 {
			t.Errorf("Book = %v, %v, want a place that is due", d, err)
		}
		if _, err := l.TryAcquire(t.Context(), key, 2); !errors.Is(err, throttle.ErrExceedsLimit) {
			t.Errorf("TryAcquire(2) = %v, want %v", err, throttle.ErrExceedsLimit)
		}
		if _, err := l.TryAcquire(t.Context(), "", 1); !errors.Is(err, throttle.ErrInvalidKey) {
			t.Errorf("TryAcquire of no key = %v, want %v", err, throttle.ErrInvalidKey)
		}
		c.pulled.Store(false)
		time.Sleep(time.Second)
		mustTry(t, l, true, throttle.FailClosed) // nothing of all that was spent there
		mustTry(t, l, false, throttle.FailClosed)
	})
}

// Redis that does not answer is left alone for a while, then asked by one.
func TestAwayDoesNotHammer(t *testing.T) {
	t.Parallel()
	pulled(t, throttle.Sliding(1, time.Minute), throttle.Config{OnUnavailable: throttle.FailOpen}, func(t *testing.T, l *throttle.Limiter, c *cable) {
		c.hang.Store(int64(100 * ms))
		round := func(slow, tries int64) {
			t.Helper()
			begin, before := time.Now(), c.tries.Load()
			var wg sync.WaitGroup
			var waited atomic.Int64
			for range 20 {
				wg.Go(func() {
					mustTry(t, l, true, throttle.FailOpen)
					if time.Since(begin) > 0 {
						waited.Add(1)
					}
				})
				synctest.Wait()
			}
			wg.Wait()
			time.Sleep(100 * ms) // what is taken back behind them
			synctest.Wait()
			if got := waited.Load(); got != slow || c.tries.Load()-before != tries {
				t.Errorf("%d of 20 waited, %d calls, want %d and %d", got, c.tries.Load()-before, slow, tries)
			}
		}
		round(20, 24)           // all found out, two alone and the others in two scripts, and each took its own call back
		round(0, 0)             // left alone
		time.Sleep(150 * ms)    // the pause is over
		round(1, 2)             // one tries again
		time.Sleep(time.Minute) // nobody asks in the background
		before := c.tries.Load()
		c.pulled.Store(false)
		mustTry(t, l, true, throttle.FailClosed)
		mustTry(t, l, false, throttle.FailClosed)
		if got := c.tries.Load() - before; got != 2 {
			t.Errorf("%d calls, want 2: Redis decides again", got)
		}
	})
}

// The end of a caller's context proves nothing about Redis, and is its own.
func TestAwayIsNotACallersContext(t *testing.T) {
	t.Parallel()
	for _, away := range []throttle.FailureMode{throttle.FailOpen, throttle.FailLocal} {
		pulled(t, throttle.Sliding(1, time.Minute), throttle.Config{OnUnavailable: away}, func(t *testing.T, l *throttle.Limiter, c *cable) {
			c.hang.Store(int64(time.Minute))
			ctx, cancel := context.WithTimeout(t.Context(), 50*ms)
			defer cancel()
			if d, err := l.TryAcquire(ctx, key, 1); !errors.Is(err, throttle.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) || d.Granted {
				t.Errorf("TryAcquire = %v, %v, want %v", d, err, context.DeadlineExceeded)
			}
			c.pulled.Store(false)
			mustTry(t, l, true, throttle.FailClosed)
			c.pulled.Store(true)
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			if err := l.Acquire(ended, key, 1); !errors.Is(err, context.Canceled) {
				t.Errorf("Acquire = %v, want %v", err, context.Canceled)
			}
		})
	}
}

// A Redis that answers and refuses is asked each time, and stood in for.
func TestAwayWhenRedisRefuses(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := newLimiter(t, s.rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{OnUnavailable: throttle.FailOpen})
	if err := s.raw.LPush(t.Context(), "hw:{"+key+"}:sms", "x").Err(); err != nil {
		t.Fatal(err)
	}
	mustTry(t, l, true, throttle.FailOpen)
	s.raw.Del(t.Context(), "hw:{"+key+"}:sms")
	mustTry(t, l, true, throttle.FailClosed)
	mustTry(t, l, false, throttle.FailClosed)
}

// A call that Redis refused charged nothing: it is asked once, and no more.
func TestRefusedCallIsNotTakenBack(t *testing.T) {
	t.Parallel()
	pulled(t, throttle.Sliding(1, time.Minute), throttle.Config{OnUnavailable: throttle.FailOpen}, func(t *testing.T, l *throttle.Limiter, c *cable) {
		c.fault = fullError{}
		for range 3 {
			before := c.tries.Load()
			mustTry(t, l, true, throttle.FailOpen)
			synctest.Wait()
			if n := c.tries.Load() - before; n != 1 {
				t.Errorf("%d calls, want 1", n)
			}
		}
	})
}

// fullError is what a full Redis answers.
type fullError struct{}

func (fullError) Error() string { return "OOM command not allowed when used memory > 'maxmemory'." }
func (fullError) RedisError()   {}

// A real server that dies, and comes back with what it had.
func TestRedisDiesAndComesBack(t *testing.T) {
	t.Parallel()
	for _, away := range []throttle.FailureMode{throttle.FailOpen, throttle.FailLocal} {
		t.Run(away.String(), func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, redistest.AOF())
			o := server.ClientOptions()
			o.MaxRetries, o.DialerRetries, o.PoolSize = -1, 1, 1000
			rdb := redis.NewClient(o)
			defer rdb.Close()
			l := newLimiter(t, rdb, "sms", throttle.Sliding(2, time.Hour), throttle.Config{OnUnavailable: away})
			first := mustTry(t, l, true, throttle.FailClosed)
			server.Kill()
			for i := range 4 {
				mustTry(t, l, i < 2 || away == throttle.FailOpen, away)
			}
			if _, err := l.Refund(t.Context(), first.Request); !errors.Is(err, throttle.ErrUnavailable) {
				t.Errorf("Refund of what Redis granted = %v, want %v", err, throttle.ErrUnavailable)
			}
			server.StartAgain()
			back(t, l)
			if got, err := l.Available(t.Context(), key); err != nil || got != 1 {
				t.Errorf("Available = %d, %v, want the 1 that Redis remembers", got, err)
			}
			mustTry(t, l, true, throttle.FailClosed)
			mustTry(t, l, false, throttle.FailClosed)
		})
	}
}

// A reply that is lost was a grant: it is taken back in Redis while its caller
// goes on with another.
func TestLostReplyIsTakenBackBehind(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb, proxy := redistest.Behind(t, server, func(o *redis.Options) { o.MaxRetries = -1 })
	s := lossy{proxy: proxy, outside: newLimiter(t, server.Client(t), "sms", throttle.Sliding(1, time.Hour), throttle.Config{})}
	s.l = newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Hour), throttle.Config{OnUnavailable: throttle.FailOpen})
	if _, err := s.outside.TryAcquire(t.Context(), "other", 1); err != nil {
		t.Fatal(err)
	}
	if _, err := s.outside.Cancel(t.Context(), throttle.Request{Key: "other", Cost: 1, Job: "a"}); err != nil {
		t.Fatal(err)
	}
	s.cutNext()
	mustTry(t, s.l, true, throttle.FailOpen)
	for deadline := time.After(10 * time.Second); ; {
		if n, err := s.outside.Available(t.Context(), key); err != nil || n == 1 {
			if err != nil {
				t.Error(err)
			}
			return
		}
		select {
		case <-deadline:
			t.Fatal("the lost grant stays charged")
		case <-time.After(5 * ms):
		}
	}
}

// back waits until Redis decides again.
func back(t *testing.T, l *throttle.Limiter) {
	t.Helper()
	for deadline := time.After(10 * time.Second); ; {
		if d, err := l.TryAcquire(t.Context(), "probe", 1); err == nil && d.Fallback == throttle.FailClosed {
			return
		}
		select {
		case <-deadline:
			t.Fatal("Redis is back and does not decide")
		case <-time.After(5 * ms):
		}
	}
}

func TestAwayPrints(t *testing.T) {
	t.Parallel()
	for a, want := range map[throttle.FailureMode]string{
		throttle.FailClosed: "fail closed", throttle.FailOpen: "fail open", throttle.FailLocal: "fail local", 7: "FailureMode(7)", -1: "FailureMode(-1)",
	} {
		if got := a.String(); got != want {
			t.Errorf("String() = %q, want %q", got, want)
		}
	}
}
