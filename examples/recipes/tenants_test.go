package recipes

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// onePlan is what one process knows of acme's plan, and the plan that there is now.
type onePlan struct{ known, now plan }

type plan struct {
	limit   throttle.Limit
	changed time.Time
}

func (p *onePlan) of(tenant string) (throttle.Limit, time.Time) {
	if tenant != "acme" {
		return throttle.Limit{}, time.Time{}
	}
	return p.known.limit, p.known.changed
}

func (p *onePlan) refresh(context.Context, string) error {
	p.known = p.now
	return nil
}

// Each tenant has its limit, and a process that has not heard of a change looks.
func TestPerTenant(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	changed := time.Now()
	now := plan{throttle.Sliding(2, time.Hour), changed}
	process := func(p *onePlan) *throttle.Limiter {
		r := PerTenant(p.of, p.refresh).Rules[0]
		l, err := throttle.New(rdb, r.Name, r.Limit, throttle.Config{LimitOf: r.LimitOf})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	aware := process(&onePlan{known: now})
	stale := process(&onePlan{known: plan{throttle.Sliding(9, time.Hour), changed.Add(-time.Hour)}, now: now})
	for i, l := range []*throttle.Limiter{aware, stale, stale, aware} {
		d, err := l.TryAcquire(t.Context(), "acme", 1)
		if err != nil || d.Granted != (i < 2) {
			t.Errorf("call %d: %v, %v, want the first two granted", i, d, err)
		}
	}
	if n, err := stale.Available(t.Context(), "zeta"); err != nil || n != 100 {
		t.Errorf("a tenant without a plan has %d, %v, want 100", n, err)
	}
}

// The same as a file.
func TestLimitsOfTenantsInAFile(t *testing.T) {
	t.Parallel()
	policies, err := queue.ReadPolicies("policies.yaml", strings.NewReader(yamlOf(t, "A limit per tenant")))
	if err != nil {
		t.Fatal(err)
	}
	r := policies[0].Rules[0]
	for payload, want := range map[string]int{`{"tenant":"acme"}`: 5000, `{"tenant":"zeta"}`: 500, `{"tenant":"other"}`: 100} {
		key, err := r.KeyOf(asynq.NewTask("report:make", []byte(payload)))
		if err != nil {
			t.Fatal(err)
		}
		limit, _, err := r.LimitOf(t.Context(), key, time.Time{})
		if limit == (throttle.Limit{}) {
			limit = r.Limit
		}
		if err != nil || limit != throttle.Sliding(want, time.Hour) {
			t.Errorf("%s has %v, %v, want %d an hour", payload, limit, err, want)
		}
	}
}
