package worker_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// lateGrants makes each grant come too late to be used, until it is calm.
type lateGrants struct {
	calm  atomic.Bool
	asked atomic.Int64

	mu       sync.Mutex
	deferred []time.Duration
}

func (l *lateGrants) policies() worker.Config {
	cfg := policies(queue.Policy{Type: "sms", Rules: []queue.Rule{{Name: "provider", Limit: throttle.Sliding(1000, time.Second), Constant: "acme"}}})
	cfg.Throttle.Observer = event.Observer{Granted: func(context.Context, event.Granted) {
		l.asked.Add(1)
		if !l.calm.Load() {
			time.Sleep(101 * ms)
		}
	}}
	cfg.Observer = event.Observer{Deferred: func(_ context.Context, e event.Deferred) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if e.Reason == event.Returned {
			l.deferred = append(l.deferred, e.Wait)
		}
	}}
	return cfg
}

func (l *lateGrants) waits() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]time.Duration(nil), l.deferred...)
}

// A task whose grants always come too late gives its worker back after three of them, for a moment that grows to a
// second. It keeps neither its worker nor the load up, and runs once grants come in time.
func TestVirtualTaskWhoseGrantsComeTooLateIsDeferred(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		r, seen, late := rigOn(t, nil, rdb), &runs{}, &lateGrants{}
		p, _ := r.start(seen.handler(), late.policies())
		r.enqueue("sms", "a", "{}")
		const took = time.Minute
		time.Sleep(took)
		waits := late.waits()
		if n := late.asked.Load(); n > int64(3*took/time.Second) || n < 30 {
			t.Errorf("it asked %d times in %v, want three times in each second", n, took)
		}
		if len(waits) < 10 || waits[0] > 50*ms || waits[9] < 900*ms || waits[9] > time.Second {
			t.Errorf("it was deferred for %v, want from 50 ms on up to a second", waits)
		}
		if got := r.info("a"); got.Retried != 0 || len(seen.all()) != 0 {
			t.Errorf("%d runs and %d retries, want none", len(seen.all()), got.Retried)
		}
		late.calm.Store(true)
		seen.ran(t, 1)
		r.eventually("an empty queue", func() bool { return r.queueInfo().Size == 0 })
		r.wantQueue(1, 0, 0)
		if s := p.Stats(); s.Stale == 0 {
			t.Errorf("%+v, want that grants are counted that came too late", s)
		}
	})
}

// A pool that stops does not ask on for a task whose grants come too late.
func TestVirtualStoppedPoolDefersATaskWhoseGrantsComeTooLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		r, seen, late := rigOn(t, nil, rdb), &runs{}, &lateGrants{}
		_, stop := r.start(seen.handler(), late.policies())
		r.enqueue("sms", "a", "{}")
		r.eventually("the task asks", func() bool { return late.asked.Load() > 0 })
		began := time.Now()
		stop()
		if took := time.Since(began); took > time.Second || len(late.waits()) != 1 {
			t.Errorf("the pool stopped after %v, and the task was deferred for %v; want at once, and deferred once", took, late.waits())
		}
	})
}
