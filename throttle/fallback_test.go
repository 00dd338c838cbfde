package throttle_test

import (
	"cmp"
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
			if d.Wait() > 0 || d.Err() != nil || throttle.ForWorkers.Stale(d) {
				t.Errorf("%v: wait %v, err %v, want one that may go", d, d.Wait(), d.Err())
			}
			tries := c.tries.Load()
			if _, err := l.Policy().Refund(t.Context(), d.Request); err != nil {
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
		if err := acquireWithin(t.Context(), l, key, 1, 0); err != nil {
			t.Errorf("Acquire within = %v, want nil", err)
		}
		if v, err := l.Reserve(t.Context(), key, 1); err != nil || !v.Granted() {
			t.Errorf("Reserve = %v, %v, want a grant", v, err)
		}
		if d, err := l.Policy().Book(t.Context(), throttle.Request{Key: key, Cost: 1, Job: "a"}); err != nil || d.Granted || d.Wait() > 0 {
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
		round(1, 3)             // one tries again, and reads the limit to take its call back
		time.Sleep(time.Minute) // nobody asks in the background
		before := c.tries.Load()
		c.pulled.Store(false)
		mustTry(t, l, true, throttle.FailClosed)
		mustTry(t, l, false, throttle.FailClosed)
		if got := c.tries.Load() - before; got != 3 { // the first finds out anew that miniredis has no functions
			t.Errorf("%d calls, want 3: Redis decides again", got)
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

func (fullError) RedisError() {}

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
			if _, err := l.Policy().Refund(t.Context(), first.Request); !errors.Is(err, throttle.ErrUnavailable) {
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
	if _, err := s.outside.Policy().Cancel(t.Context(), throttle.Request{Key: "other", Cost: 1, Job: "a"}); err != nil {
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

// The limit holds in this process; places and grants made here are redeemed and
// given back here, and Redis knows nothing of them.
func TestFailLocal(t *testing.T) {
	t.Parallel()
	pulled(t, throttle.Sliding(1, time.Minute), throttle.Config{OnUnavailable: throttle.FailLocal}, func(t *testing.T, l *throttle.Limiter, c *cable) {
		first := mustTry(t, l, true, throttle.FailLocal)
		d := mustTry(t, l, false, throttle.FailLocal)
		if d.Wait() != time.Minute {
			t.Errorf("Wait = %v, want a minute", d.Wait())
		}
		for range 2 { // as often as one likes
			if _, err := l.Policy().Refund(t.Context(), first.Request); err != nil {
				t.Errorf("Refund = %v, want nil", err)
			}
		}
		second := mustTry(t, l, true, throttle.FailLocal)
		begin := time.Now()
		if err := l.Acquire(t.Context(), key, 1); err != nil || time.Since(begin) < time.Minute || time.Since(begin) > time.Minute+ms {
			t.Errorf("Acquire = %v after %v, want nil after a minute", err, time.Since(begin))
		}
		r := throttle.Request{Key: key, Cost: 1, Job: "a"}
		if d, err := l.Policy().Redeem(t.Context(), r); err != nil || d.Granted || d.Fallback != throttle.FailLocal {
			t.Errorf("Redeem = %v, %v, want a place here", d, err)
		}
		r.Cost = 2
		if _, err := l.Policy().Redeem(t.Context(), r); !errors.Is(err, throttle.ErrExceedsLimit) {
			t.Errorf("Redeem(2) = %v, want %v", err, throttle.ErrExceedsLimit)
		}
		c.pulled.Store(false)
		time.Sleep(time.Second)
		if got, err := l.Peek(t.Context(), key, 10); err != nil || got.Available != 1 || got.Waiting != 0 {
			t.Errorf("Peek = %+v, %v, want a Redis that knows nothing", got, err)
		}
		mustTry(t, l, true, throttle.FailClosed)
		if _, err := l.Policy().Refund(t.Context(), second.Request); err != nil {
			t.Errorf("Refund = %v, want nil", err)
		}
		mustTry(t, l, false, throttle.FailClosed) // it was given back where it was made
	})
}

// Who waits when Redis goes away goes on here, and when it is back goes on there.
func TestWaitersCrossOver(t *testing.T) {
	t.Parallel()
	pulled(t, throttle.Sliding(1, 10*time.Second), throttle.Config{OnUnavailable: throttle.FailLocal}, func(t *testing.T, l *throttle.Limiter, c *cable) {
		mustTry(t, l, true, throttle.FailLocal)
		done := make(chan error)
		go func() { done <- l.Acquire(t.Context(), key, 1) }()
		v, err := l.Reserve(t.Context(), key, 1)
		if err != nil || v.Granted() {
			t.Fatalf("Reserve = %v, %v, want a place", v, err)
		}
		c.pulled.Store(false)
		begin := time.Now()
		if err := <-done; err != nil || time.Since(begin) > 2*time.Second {
			t.Errorf("Acquire = %v after %v, want what Redis has at once", err, time.Since(begin))
		}
		c.pulled.Store(true)
		if d, err := v.Take(t.Context()); err != nil || d.Fallback != throttle.FailLocal || d.Granted {
			t.Errorf("Take = %v, %v, want the place here", d, err)
		}
		c.pulled.Store(false)
		if err := v.Wait(t.Context()); err != nil || time.Since(begin) < 9*time.Second || time.Since(begin) > 12*time.Second {
			t.Errorf("Wait = %v after %v, want one window after the first", err, time.Since(begin))
		}
	})
}

// A job that Redis answered has no place here any more, should Redis go again.
func TestPlacesHereEndWhenRedisIsBack(t *testing.T) {
	t.Parallel()
	pulled(t, throttle.Sliding(1, time.Minute), throttle.Config{OnUnavailable: throttle.FailLocal}, func(t *testing.T, l *throttle.Limiter, c *cable) {
		redeem := func(job string, granted bool, by throttle.FailureMode) {
			t.Helper()
			d, err := l.Policy().Redeem(t.Context(), throttle.Request{Key: key, Cost: 1, Job: job})
			if err != nil || d.Granted != granted || d.Fallback != by {
				t.Errorf("Redeem(%s) = %v, %v, want granted = %v by %v", job, d, err, granted, by)
			}
		}
		redeem("a", true, throttle.FailLocal)
		redeem("b", false, throttle.FailLocal)
		redeem("c", false, throttle.FailLocal)
		c.pulled.Store(false)
		time.Sleep(time.Minute - time.Second)
		redeem("b", true, throttle.FailClosed)
		c.pulled.Store(true)
		redeem("c", false, throttle.FailLocal)
		time.Sleep(time.Second)
		redeem("c", true, throttle.FailLocal) // nobody is before it
	})
}

// Whoever leaves while Redis hangs does not wait for it.
func TestLeavingDoesNotWaitForRedis(t *testing.T) {
	t.Parallel()
	pulled(t, throttle.Sliding(1, time.Minute), throttle.Config{OnUnavailable: throttle.FailLocal}, func(t *testing.T, l *throttle.Limiter, c *cable) {
		mustTry(t, l, true, throttle.FailLocal)
		c.hang.Store(int64(500 * ms))
		ctx, leave := context.WithCancel(t.Context())
		result := make(chan error)
		go func() { result <- l.Acquire(ctx, key, 1) }()
		synctest.Wait()
		if err := acquireWithin(t.Context(), l, key, 1, time.Minute); !errors.Is(err, throttle.ErrTooLate) {
			t.Errorf("Acquire within = %v, want %v: somebody waits", err, throttle.ErrTooLate)
		}
		begin := time.Now()
		leave()
		if err := <-result; !errors.Is(err, context.Canceled) || time.Since(begin) > 0 {
			t.Errorf("Acquire = %v after %v, want %v at once", err, time.Since(begin), context.Canceled)
		}
		synctest.Wait()
		if err := acquireWithin(t.Context(), l, key, 1, time.Minute); err != nil {
			t.Errorf("Acquire within = %v, want nil: the place is free", err)
		}
	})
}

// Who waits here while Redis hangs comes at its instant: only the one who tries
// Redis again waits for it.
func TestWaitersHereDoNotWaitForRedis(t *testing.T) {
	t.Parallel()
	pulled(t, throttle.Sliding(5, 600*ms), throttle.Config{OnUnavailable: throttle.FailLocal}, func(t *testing.T, l *throttle.Limiter, c *cable) {
		c.looks.Store(true)
		c.hang.Store(int64(3 * time.Second))
		if err := l.Acquire(t.Context(), key, 5); err != nil { // finds out
			t.Fatal(err)
		}
		begin := time.Now()
		var wg sync.WaitGroup
		var late atomic.Int64
		for range 5 {
			wg.Go(func() {
				if err := l.Acquire(t.Context(), key, 1); err != nil {
					t.Errorf("Acquire = %v, want nil", err)
				}
				if time.Since(begin) > 600*ms {
					late.Add(1)
				}
			})
		}
		wg.Wait()
		if n := late.Load(); n > 1 {
			t.Errorf("%d of 5 came after their instant, want the one who tried", n)
		}
		time.Sleep(10 * time.Second) // what is taken back
	})
}

// The token of a call that is taken back in Redis is refused there: the answer
// of what stood in for it names another.
func TestFallbackNamesATokenThatIsGood(t *testing.T) {
	t.Parallel()
	pulled(t, throttle.Sliding(1, time.Minute), throttle.Config{OnUnavailable: throttle.FailLocal}, func(t *testing.T, l *throttle.Limiter, c *cable) {
		c.pulled.Store(false)
		if _, err := l.Policy().Cancel(t.Context(), throttle.Request{Key: "other", Cost: 1, Job: "a"}); err != nil { // that script is known too
			t.Fatal(err)
		}
		c.pulled.Store(true)
		mustTry(t, l, true, throttle.FailLocal)
		time.Sleep(time.Second) // so that the next one asks Redis
		c.deaf.Store(true)
		r := throttle.Request{Key: key, Cost: 1, Job: "a", Token: throttle.NewToken()}
		d, err := l.Policy().Redeem(t.Context(), r)
		if err != nil || d.Granted || d.Fallback != throttle.FailLocal {
			t.Fatalf("Redeem = %v, %v, want a place here", d, err)
		}
		synctest.Wait() // it was taken back
		c.deaf.Store(false)
		c.pulled.Store(false)
		time.Sleep(time.Second)
		if d, err := l.Policy().Redeem(t.Context(), r); !errors.Is(err, throttle.ErrWithdrawn) {
			t.Errorf("Redeem by the old token = %v, %v, want %v", d, err, throttle.ErrWithdrawn)
		}
		if d, err := l.Policy().Redeem(t.Context(), d.Request); err != nil || !d.Granted || d.Fallback != throttle.FailClosed {
			t.Errorf("Redeem = %v, %v, want a grant", d, err)
		}
	})
}

// cable is a hook that a test can pull: no script reaches Redis then. It counts
// those that try.
type cable struct {
	pulled atomic.Bool
	deaf   atomic.Bool // they reach it, and their answers are lost
	tries  atomic.Int64
	hang   atomic.Int64 // nanoseconds until a pulled one fails
	fault  error        // what a pulled one fails with; nil for errPulled
	looks  atomic.Bool  // pulled too: the pipelines that read the limit
}

var errPulled = errors.New("cable: pulled")

func (c *cable) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *cable) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if !c.looks.Load() || !c.pulled.Load() {
			return next(ctx, cmds)
		}
		time.Sleep(time.Duration(c.hang.Load()))
		for _, cmd := range cmds {
			cmd.SetErr(errPulled)
		}
		return errPulled
	}
}

func (c *cable) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.tries.Add(1)
		if c.deaf.Load() {
			_ = next(ctx, cmd)
			cmd.SetErr(errPulled)
			return errPulled
		}
		if !c.pulled.Load() {
			return next(ctx, cmd)
		}
		if hang := time.Duration(c.hang.Load()); hang > 0 {
			select {
			case <-time.After(hang):
			case <-ctx.Done():
				cmd.SetErr(ctx.Err())
				return ctx.Err()
			}
		}
		err := cmp.Or(c.fault, errPulled)
		cmd.SetErr(err)
		return err
	}
}

// pulled runs f in a bubble with a limiter whose Redis is away.
func pulled(t *testing.T, limit throttle.Limit, cfg throttle.Config, f func(t *testing.T, l *throttle.Limiter, c *cable)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		c := &cable{}
		rdb.AddHook(c)
		l := newLimiter(t, rdb, "sms", limit, cfg)
		if _, err := l.TryAcquire(t.Context(), "other", 1); err != nil { // the script is known
			t.Fatal(err)
		}
		c.pulled.Store(true)
		f(t, l, c)
		time.Sleep(2 * time.Second) // what is taken back in the background
	})
}

func mustTry(t *testing.T, l *throttle.Limiter, granted bool, by throttle.FailureMode) throttle.Decision {
	t.Helper()
	d, err := l.TryAcquire(t.Context(), key, 1)
	if err != nil || d.Granted != granted || d.Fallback != by {
		t.Errorf("TryAcquire = %v, %v, want granted = %v by %v", d, err, granted, by)
	}
	return d
}
