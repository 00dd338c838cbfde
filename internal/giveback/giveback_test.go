package giveback

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/headwayq/headway/throttle"
)

// silent is a call of a server that does not answer.
func silent(ctx context.Context) ([]throttle.Promotion, error) {
	<-ctx.Done()
	return nil, throttle.ErrUnavailable
}

// counted counts calls that are answered.
func counted(n *atomic.Int32) Func {
	return func(context.Context) ([]throttle.Promotion, error) {
		n.Add(1)
		return nil, nil
	}
}

// addFor lets a call be repeated for so long.
func (q *Queue) addFor(servers string, d time.Duration, do Func) {
	q.add(servers, call{do, time.Now().Add(d)})
}

func logged() (*zap.Logger, *observer.ObservedLogs) {
	core, lines := observer.New(zap.WarnLevel)
	return zap.New(core), lines
}

// The bound holds also for what comes while a call hangs. The log says so once each few seconds.
func TestVirtualBound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, lines := logged()
		q := New(log, time.Second, nil)
		var taken atomic.Int32
		var back atomic.Bool
		do := func(ctx context.Context) ([]throttle.Promotion, error) {
			if !back.Load() {
				return silent(ctx)
			}
			return counted(&taken)(ctx)
		}
		for range 5 {
			for n := range Most {
				q.addFor([]string{"a", "b"}[n%2], time.Hour, do)
			}
			time.Sleep(900 * time.Millisecond)
		}
		if n := lines.Len(); n != 1 {
			t.Errorf("%d lines in the log, want 1", n)
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
		q := New(zap.NewNop(), time.Second, nil)
		var taken atomic.Int32
		for range 1000 {
			q.addFor("dead", time.Minute, silent)
		}
		q.addFor("alive", time.Minute, counted(&taken))
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
		q := New(zap.NewNop(), time.Second, nil)
		var taken, refused atomic.Int32
		q.addFor("", time.Hour, silent)
		for range 2 * together {
			q.addFor("", time.Hour, func(context.Context) ([]throttle.Promotion, error) {
				refused.Add(1)
				return nil, throttle.ErrStoredLimit
			})
		}
		q.addFor("", time.Hour, counted(&taken))
		for range 100 {
			q.addFor("", time.Minute, silent)
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

// A call that is refused for good is not made again, and the log says so few times. One of a hook that panics is not either.
func TestVirtualRefusedForGood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, lines := logged()
		q := New(log, time.Second, nil)
		var made atomic.Int32
		for range 10 {
			q.addFor("", time.Hour, func(context.Context) ([]throttle.Promotion, error) {
				made.Add(1)
				return nil, throttle.ErrSchema
			})
			q.addFor("", time.Hour, func(context.Context) ([]throttle.Promotion, error) {
				made.Add(1)
				panic("+15550100")
			})
		}
		time.Sleep(time.Minute)
		if n := made.Load(); n != 20 {
			t.Errorf("20 calls were made %d times, want once each", n)
		}
		if n := lines.Len(); n != 1 {
			t.Errorf("%d lines in the log, want 1: %v", n, lines.All())
		}
	})
}

// What has no effect any more is not tried.
func TestVirtualOnlyWhileItCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := New(zap.NewNop(), time.Second, nil)
		var last atomic.Int64 // when it was tried last, after began
		began := time.Now()
		q.addFor("", time.Minute, func(ctx context.Context) ([]throttle.Promotion, error) {
			last.Store(int64(time.Since(began)))
			return silent(ctx)
		})
		time.Sleep(10 * time.Minute)
		if d := time.Duration(last.Load()); d < 50*time.Second || d > time.Minute {
			t.Errorf("the last try came after %v, want just before the minute is over", d)
		}
	})
}

// At the end everything is tried once more: that of a server that is silent takes no time from the others.
func TestVirtualClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := New(zap.NewNop(), time.Second, nil)
		var taken atomic.Int32
		var closing atomic.Bool
		for range 200 {
			q.addFor("dead", time.Hour, silent)
			q.addFor("alive", time.Hour, func(ctx context.Context) ([]throttle.Promotion, error) {
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
		q.addFor("alive", time.Hour, counted(&taken))
		time.Sleep(time.Minute)
		if n := taken.Load(); n != 200 {
			t.Errorf("a call was made after Close")
		}
	})
}
