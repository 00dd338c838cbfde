package worker_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/worker"
)

// However many servers a pool has, its health is told once in each interval, as by asynq.
func TestVirtualHealthCheckIsCalledOnceForAPool(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		r := rigOn(t, nil, rdb)
		var calls atomic.Int64
		cfg := worker.Config{Servers: 3, Asynq: asynq.Config{
			HealthCheckInterval: 10 * time.Second,
			HealthCheckFunc:     func(error) { calls.Add(1) },
		}}
		_, stop := r.start(asynq.NewServeMux(), cfg)
		time.Sleep(45 * time.Second)
		stop()
		if n := calls.Load(); n != 4 {
			t.Errorf("in 45 s the health was told %d times, want 4", n)
		}
	})
}

// leaveDead leaves a task behind as a process does that died while it ran.
func (r *rig) leaveDead(id string, opts ...asynq.Option) {
	r.Helper()
	r.enqueuePlain("other", id, "", opts...)
	const key = "asynq:{default}:"
	r.rdb.LMove(r.Context(), key+"pending", key+"active", "RIGHT", "LEFT")
	r.rdb.HSet(r.Context(), key+"t:"+id, "state", "active")
	r.rdb.Do(r.Context(), "ZADD", key+"lease", time.Now().Add(-time.Minute).Unix(), id)
}

// So it is with several servers: the first of them recovers for all.
func TestSeveralServersAskOnceAboutARecoveredTask(t *testing.T) {
	t.Parallel()
	r, ran := newRig(t), &runs{}
	const n = 20
	for i := range n {
		r.leaveDead(fmt.Sprint("dead ", i))
	}
	r.leaveDead("last", asynq.MaxRetry(0))
	var failures, delays atomic.Int64
	r.start(ran.handler(), worker.Config{Servers: 4, Asynq: asynq.Config{
		IsFailure:      func(error) bool { failures.Add(1); return true },
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { delays.Add(1); return 0 },
	}})
	ran.ran(t, n)
	r.eventually("the last attempt is archived", func() bool { return r.is("last", asynq.TaskStateArchived) })
	if f, d := failures.Load(), delays.Load(); f != n || d != n {
		t.Errorf("of %d recovered tasks IsFailure was called %d times and RetryDelayFunc %d times, want once each", n, f, d)
	}
}

// A task whose process died is recovered when a pool starts: the user's functions are asked
// once about it, and asynq's tools list one server.
func TestPoolIsOneServerToAsynq(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.leaveDead("dead")
	var failures, delays atomic.Int64
	var ran runs
	cfg := worker.Config{Asynq: asynq.Config{
		Concurrency: 16,
		IsFailure: func(err error) bool {
			if errors.Is(err, asynq.ErrLeaseExpired) {
				failures.Add(1)
			}
			return true
		},
		RetryDelayFunc: func(_ int, err error, _ *asynq.Task) time.Duration {
			if errors.Is(err, asynq.ErrLeaseExpired) {
				delays.Add(1)
			}
			return 0
		},
	}}
	r.start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		ran.note(ctx, task)
		return nil
	}), cfg)
	ran.ran(t, 1)
	if f, d := failures.Load(), delays.Load(); f != 1 || d != 1 {
		t.Errorf("of one recovered task IsFailure was called %d times and RetryDelayFunc %d times, want once each", f, d)
	}
	r.eventually("a server is listed", func() bool {
		servers, err := r.insp.Servers()
		return err == nil && len(servers) > 0
	})
	servers, err := r.insp.Servers()
	if err != nil || len(servers) != 1 || servers[0].Concurrency != 16 {
		t.Errorf("Inspector.Servers() lists %v, %v, want one with 16 workers", servers, err)
	}
}

// Concurrency defaults to the number of CPUs, as in asynq, and not to GOMAXPROCS.
//
//nolint:paralleltest // it changes GOMAXPROCS for a moment
func TestConcurrencyDefaultsToTheNumberOfCPUs(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(runtime.NumCPU() + 1))
	r := newRig(t)
	started(t, r.rdb, asynq.NotFoundHandler(), worker.Config{Logger: r.log})
	r.eventually("a server is listed", func() bool {
		servers, err := r.insp.Servers()
		return err == nil && len(servers) == 1 && servers[0].Concurrency == runtime.NumCPU()
	})
	a := r.adapter(worker.Config{})
	if n := a.Server(asynq.Config{}).Concurrency; n != runtime.NumCPU() {
		t.Errorf("Adapter.Server sets Concurrency %d, want %d", n, runtime.NumCPU())
	}
}
