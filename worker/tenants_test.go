package worker_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// countByTenant counts what ran, by the tenant.
func countByTenant() (asynq.Handler, func(tenant string) int) {
	acme, other := new(atomic.Int64), new(atomic.Int64)
	of := func(tenant string) *atomic.Int64 {
		if tenant == to("acme") {
			return acme
		}
		return other
	}
	count := asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		of(string(task.Payload())).Add(1)
		return nil
	})
	return count, func(tenant string) int { return int(of(to(tenant)).Load()) }
}

// One rule gives each tenant a limit of its own, in Go code and in a policy file.
func TestEachTenantHasItsLimitUnderOneRule(t *testing.T) {
	t.Parallel()
	inCode := smsLimit(throttle.Sliding(1, time.Hour))
	inCode.Rules[0].LimitOf = func(_ context.Context, key string, _ time.Time) (throttle.Limit, time.Time, error) {
		if key == "acme" {
			return throttle.Sliding(3, time.Hour), time.Time{}, nil
		}
		return throttle.Limit{}, time.Time{}, nil
	}
	f := newPolicyFile(t, "1/1h, limits: {acme: 3/1h}")
	for name, cfg := range map[string]worker.Config{
		"code":   {Policies: []queue.Policy{inCode}},
		"file":   f.config(),
		"hashed": {Policies: []queue.Policy{inCode}, Throttle: throttle.Config{Secret: []byte("0123456789abcdef")}},
	} {
		r := newRig(t)
		h, ran := countByTenant()
		r.start(h, cfg)
		for i := range 5 {
			r.enqueue("sms", fmt.Sprint("a", i), to("acme"))
			r.enqueue("sms", fmt.Sprint("o", i), to("other"))
		}
		r.eventually("four are done and the rest waits", func() bool { return r.queueInfo().Retry == 6 && r.queueInfo().ProcessedTotal >= 4 })
		if ran("acme") != 3 || ran("other") != 1 {
			t.Errorf("%s: %d of acme and %d of another tenant ran, want 3 and 1", name, ran("acme"), ran("other"))
		}
		r.wantQueue(4, 0, 0)
	}
}

// A tenant's limit that is raised while its tasks wait lets them run, when the pools are told.
func TestARaisedLimitOfATenantLetsItsTasksRun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var now atomic.Pointer[throttle.Limit]
	limit := throttle.Sliding(1, time.Hour)
	now.Store(&limit)
	begin := time.Now()
	p := smsLimit(throttle.Sliding(1, time.Hour))
	p.Rules[0].LimitOf = func(_ context.Context, key string, _ time.Time) (throttle.Limit, time.Time, error) {
		if key != "acme" {
			return throttle.Limit{}, time.Time{}, nil
		}
		limit := *now.Load()
		return limit, begin.Add(time.Duration(limit.MaxCost()) * time.Second), nil
	}
	h, ran := countByTenant()
	pool, _ := r.start(h, worker.Config{Policies: []queue.Policy{p}})
	for i := range 4 {
		r.enqueue("sms", fmt.Sprint(i), to("acme"))
	}
	r.eventually("three wait", func() bool { return ran("acme") == 1 && r.queueInfo().Retry == 3 })
	raised := throttle.Sliding(4, time.Hour)
	now.Store(&raised)
	if _, err := pool.Limiter("sms").OpenKey(t.Context(), "acme"); err != nil {
		t.Fatal(err)
	}
	r.eventually("all have run", func() bool { return ran("acme") == 4 })
}

// A pool that knows only an older limit of a tenant does not run its tasks; one that knows the
// new one does.
func TestAPoolWithATenantsOldLimitDefersItsTasks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	policy := func(n int, changed time.Time) queue.Policy {
		p := smsLimit(throttle.Sliding(1, time.Hour))
		p.Rules[0].LimitOf = func(context.Context, string, time.Time) (throttle.Limit, time.Time, error) {
			return throttle.Sliding(n, time.Hour), changed, nil
		}
		return p
	}
	newer, err := throttle.New(r.rdb, "sms", throttle.Sliding(1, time.Hour), throttle.Config{LimitOf: policy(2, time.Now()).Rules[0].LimitOf})
	if err != nil {
		t.Fatal(err)
	}
	r.take(newer, "acme")
	h, ran := countByTenant()
	_, stop := r.start(h, worker.Config{Policies: []queue.Policy{policy(9, time.Now().Add(-time.Hour))}})
	r.enqueue("sms", "1", to("acme"), asynq.MaxRetry(0))
	r.enqueue("sms", "2", to("acme"), asynq.MaxRetry(0))
	r.eventually("both wait", func() bool { return r.queueInfo().Retry == 2 })
	stop()
	if ran("acme") != 0 {
		t.Errorf("%d ran by the old limit, want none", ran("acme"))
	}
	r.start(h, worker.Config{Policies: []queue.Policy{policy(2, time.Now())}})
	r.eventually("one runs", func() bool {
		if ran("acme") != 1 {
			return false
		}
		q := r.queueInfo()
		return q.Retry == 1 && q.Active == 0
	})
	r.wantQueue(1, 0, 0)
}

// The function belongs to a rule: for all rules together it is refused.
func TestLimitOfForAllRulesIsRefused(t *testing.T) {
	t.Parallel()
	cfg := worker.Config{Policies: []queue.Policy{smsLimit(throttle.Sliding(1, time.Hour))}}
	cfg.Throttle.LimitOf = func(context.Context, string, time.Time) (throttle.Limit, time.Time, error) {
		return throttle.Limit{}, time.Time{}, nil
	}
	if err := cfg.Validate(); !errors.Is(err, throttle.ErrInvalidConfig) {
		t.Errorf("Validate = %v, want %v", err, throttle.ErrInvalidConfig)
	}
}
