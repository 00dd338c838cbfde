package giveback

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

var (
	errSilent  = errors.New("no answer")
	errRefused = errors.New("refused for now")
	errFinal   = errors.New("refused for good")
)

// judge says what the errors of these tests mean.
func judge(err error) Verdict {
	switch {
	case errors.Is(err, errSilent):
		return Silent
	case errors.Is(err, errRefused):
		return Again
	}
	return Final
}

// silent is a call of a server that does not answer.
func silent(ctx context.Context) error {
	<-ctx.Done()
	return errSilent
}

// counted counts calls that are answered.
func counted(n *atomic.Int32) Func {
	return func(context.Context) error {
		n.Add(1)
		return nil
	}
}

// warnings counts what a queue warns of.
func warnings(n *atomic.Int32) func(string, error) {
	return func(string, error) { n.Add(1) }
}

// The bound holds also for what comes while a call hangs. A warning says so once each few seconds.
func TestVirtualBound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var warned atomic.Int32
		q := New(time.Second, judge, warnings(&warned))
		var taken atomic.Int32
		var back atomic.Bool
		do := func(ctx context.Context) error {
			if !back.Load() {
				return silent(ctx)
			}
			return counted(&taken)(ctx)
		}
		for range 5 {
			for n := range Most {
				q.Add([]string{"a", "b"}[n%2], time.Hour, do)
			}
			time.Sleep(900 * time.Millisecond)
		}
		if n := warned.Load(); n != 1 {
			t.Errorf("%d warnings, want 1", n)
		}
		back.Store(true)
		time.Sleep(10 * time.Second)
		if n := taken.Load(); n != Most {
			t.Errorf("%d were kept, want %d", n, Most)
		}
	})
}

// One master of a Cluster is dead, and a thousand calls of it wait. Those of other masters do not wait behind them.
func TestVirtualSilentServerHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := New(time.Second, judge, nil)
		var taken atomic.Int32
		for range 1000 {
			q.Add("dead", time.Minute, silent)
		}
		q.Add("alive", time.Minute, counted(&taken))
		time.Sleep(100 * time.Millisecond)
		if n := taken.Load(); n != 1 {
			t.Errorf("that of a live master was made %d times at once, want once", n)
		}
		time.Sleep(2 * time.Minute) // for the others to be dropped
	})
}

// A call that is not answered, or is refused for now, goes behind the others: it may be the only one that fails.
func TestVirtualTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := New(time.Second, judge, nil)
		var taken, refused atomic.Int32
		q.Add("", time.Hour, silent)
		for range 2 * together {
			q.Add("", time.Hour, func(context.Context) error {
				refused.Add(1)
				return errRefused
			})
		}
		q.Add("", time.Hour, counted(&taken))
		for range 100 {
			q.Add("", time.Minute, silent)
			time.Sleep(100 * time.Millisecond)
		}
		if n := taken.Load(); n != 1 {
			t.Errorf("that of a live master was made %d times in 10 s, want once", n)
		}
		time.Sleep(2 * time.Hour) // for the others to be dropped
		if n := refused.Load(); n > 2*together+2*3600*together {
			t.Errorf("refused calls were made %d times in an hour, want two rounds a second at most", n)
		}
	})
}

// A call that is refused for good is not made again, and a warning says so few times. One of a hook that panics is not either.
func TestVirtualRefusedForGood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var warned atomic.Int32
		q := New(time.Second, judge, warnings(&warned))
		var made atomic.Int32
		for range 10 {
			q.Add("", time.Hour, func(context.Context) error {
				made.Add(1)
				return errFinal
			})
			q.Add("", time.Hour, func(context.Context) error {
				made.Add(1)
				panic("+15550100")
			})
		}
		time.Sleep(time.Minute)
		if n := made.Load(); n != 20 {
			t.Errorf("20 calls were made %d times, want once each", n)
		}
		if n := warned.Load(); n != 1 {
			t.Errorf("%d warnings, want 1", n)
		}
	})
}

// What has no effect any more is not tried.
func TestVirtualOnlyWhileItCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := New(time.Second, judge, nil)
		var last atomic.Int64 // when it was tried last, after began
		began := time.Now()
		q.Add("", time.Minute, func(ctx context.Context) error {
			last.Store(int64(time.Since(began)))
			return silent(ctx)
		})
		time.Sleep(10 * time.Minute)
		if d := time.Duration(last.Load()); d < 50*time.Second || d > time.Minute {
			t.Errorf("the last try came after %v, want just before the minute is over", d)
		}
	})
}

// A call may heed its context or not: it is made again in time, and holds up no end of the queue.
func TestVirtualCallThatHangsIsMadeAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := New(time.Second, judge, nil)
		var taken, made atomic.Int32
		hangs := func() {
			made.Add(1)
			time.Sleep(time.Hour)
		}
		began := time.Now()
		q.Add("", time.Minute, func(ctx context.Context) error {
			if made.Load() == 0 {
				hangs()
			}
			return counted(&taken)(ctx)
		})
		time.Sleep(3 * time.Second)
		if taken.Load() != 1 {
			t.Errorf("a call that hung was not made again after 3 s")
		}
		q.Add("", time.Minute, func(context.Context) error {
			hangs()
			return nil
		})
		time.Sleep(100 * time.Millisecond)
		q.Close(2 * time.Second)
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("Close ended after %v, want 2 s after it was called", took)
		}
		if made.Load() < 2 {
			t.Errorf("the second call was not made")
		}
		time.Sleep(2 * time.Hour) // for the calls to end
	})
}

// At the end everything is tried once more: that of a server that is silent takes no time from the others.
func TestVirtualClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := New(time.Second, judge, nil)
		var taken atomic.Int32
		var closing atomic.Bool
		for range 200 {
			q.Add("dead", time.Hour, silent)
			q.Add("alive", time.Hour, func(ctx context.Context) error {
				if !closing.Load() {
					return silent(ctx)
				}
				return counted(&taken)(ctx)
			})
		}
		time.Sleep(10 * time.Second)
		closing.Store(true)
		began := time.Now()
		q.Close(3 * time.Second)
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("Close took %v, want 3 s at most", took)
		}
		if n := taken.Load(); n != 200 {
			t.Errorf("%d calls were made at the end, want 200", n)
		}
		q.Add("alive", time.Hour, counted(&taken))
		time.Sleep(time.Minute)
		if n := taken.Load(); n != 200 {
			t.Errorf("a call was made after Close")
		}
	})
}
