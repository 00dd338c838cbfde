package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/metrics"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/schedule"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scrape reads all samples: counters and gauges by value, histograms by count.
func scrape(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				if strings.Contains(l.GetValue(), "+49") || strings.Contains(l.GetValue(), "4917") {
					t.Errorf("%s has a key as a label", f.GetName())
				}
				labels = append(labels, l.GetValue())
			}
			out[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = value(m)
		}
	}
	return out
}

func value(m *dto.Metric) float64 {
	switch {
	case m.Histogram != nil:
		return float64(m.Histogram.GetSampleCount())
	case m.Counter != nil:
		return m.Counter.GetValue()
	}
	return m.Gauge.GetValue()
}

// A pool runs messages of several phones under two rules, one of which is postponed by its
// provider. What is scraped is what the handlers of the test have seen.
func TestFiguresAreThoseOfTheHandlers(t *testing.T) {
	t.Parallel()
	const phones, each = 20, 3
	rdb := redistest.Start(t).Client(t)
	reg := prometheus.NewRegistry()
	m, err := metrics.New(reg)
	if err != nil {
		t.Fatal(err)
	}
	rdb.AddHook(m.Hook())
	var mu sync.Mutex
	runs, waited, postponed := 0, 0, 0
	left := make(chan struct{}, phones*each+1)
	pool, err := worker.New(rdb, asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		d, limited := worker.GrantFrom(ctx)
		mu.Lock()
		defer mu.Unlock()
		if !limited {
			left <- struct{}{}
			return nil
		}
		runs++
		if !d.Promised.IsZero() {
			waited++
		}
		if postponed == 0 {
			postponed++
			return worker.RetryAfter(errors.New("429"), 50*time.Millisecond)
		}
		left <- struct{}{}
		return nil
	}), worker.Config{
		Asynq: asynq.Config{Concurrency: 8}, Observer: m.Observer(),
		Policies: []queue.Policy{{Type: "sms", Rules: []queue.Rule{
			{Name: "phone", Limit: throttle.Sliding(1, 300*time.Millisecond), Key: queue.MustJSONKey("$.to")},
			{Name: "provider", Limit: throttle.Sliding(1000, time.Second), Constant: "acme"},
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := queue.NewClient(rdb, queue.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for n := range phones * each {
		if _, err := c.Enqueue(t.Context(), queue.NewTask("sms", fmt.Appendf(nil, `{"to":"+49%d"}`, n%phones))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Enqueue(t.Context(), queue.NewTask("sms", []byte(`{}`))); err != nil { // no key
		t.Fatal(err)
	}
	if _, err := c.Enqueue(t.Context(), queue.NewTask("mail", nil)); err != nil { // no policy
		t.Fatal(err)
	}
	if err := pool.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range phones*each + 1 {
		<-left
	}
	pool.Shutdown()
	got, stats := scrape(t, reg), pool.Stats()
	for name, want := range map[string]int{
		"headway_admissions_total{granted,phone}":    runs,
		"headway_admissions_total{granted,provider}": runs,
		"headway_admissions_total{deferred,phone}":   int(stats.Deferred) - postponed,
		"headway_admissions_total{refused,}":         1,
		"headway_binding_total{phone}":               int(stats.Deferred),
		"headway_wait_seconds{phone}":                int(stats.Deferred),
		"headway_lateness_seconds{default}":          waited,
		"headway_postponed_total{phone}":             postponed,
		"headway_key_closures_total{close,phone}":    postponed,
		"headway_woken_total{default}":               int(stats.Wakes),
		"headway_unlimited_tasks_total{mail}":        1,
		"headway_redis_away{}":                       0,
		"headway_redis_outages_total{}":              0,
	} {
		if got[name] != float64(want) {
			t.Errorf("%s = %v, want %d", name, got[name], want)
		}
	}
	if got["headway_redis_script_seconds{acquire}"] == 0 {
		t.Errorf("no time of acquire among %v", got)
	}
}

// What does not happen under load is counted all the same.
func TestEachEventIsCounted(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m, err := metrics.New(reg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := metrics.New(reg); err == nil {
		t.Error("registered twice, want an error")
	}
	o, ctx := m.Observer(), t.Context()
	o.RedisAway(ctx, event.RedisAway{})
	o.RedisAway(ctx, event.RedisAway{})
	o.RedisBack(ctx, event.RedisBack{For: 2 * time.Second})
	o.RedisReplaced(ctx, event.RedisReplaced{})
	o.ClockJumped(ctx, event.ClockJumped{})
	o.LeaseLost(ctx, event.LeaseLost{Rule: "slots"})
	o.Adjusted(ctx, event.Adjusted{Rule: "budget"})
	o.LimitChanged(ctx, event.LimitChanged{Rule: "sms"})
	o.Moved(ctx, event.Moved{Rule: "sms"})
	o.Promoted(ctx, event.Promoted{Task: event.Task{Queue: "low"}})
	o.KeyClosed(ctx, event.KeyClosed{Rule: "sms"})
	o.Refused(ctx, event.Refused{Rule: "sms", Reason: event.NoPermits})
	o.Refused(ctx, event.Refused{Rule: "sms", Reason: event.Unavailable})
	o.Deferred(ctx, event.Deferred{Reason: event.Unavailable})
	o.Deferred(ctx, event.Deferred{Reason: event.Paused})
	m.Tick(schedule.Tick{Entry: "nightly", Outcome: schedule.OutcomeHeld})
	got := scrape(t, reg)
	for name, want := range map[string]float64{
		"headway_redis_away{}": 1, "headway_redis_outages_total{}": 2, "headway_redis_away_seconds_total{}": 2,
		"headway_redis_replaced_total{}": 1, "headway_redis_clock_jumps_total{}": 1,
		"headway_leases_lost_total{slots}": 1, "headway_charges_adjusted_total{budget}": 1, "headway_limit_changes_total{sms}": 1,
		"headway_moved_total{sms}": 1, "headway_promoted_total{low}": 1, "headway_key_closures_total{open,sms}": 1,
		"headway_admissions_total{refused,sms}": 1, "headway_admissions_total{unavailable,sms}": 1, "headway_admissions_total{unavailable,}": 1,
		"headway_binding_total{sms}": 1, "headway_ticks_total{nightly,held}": 1,
	} {
		if got[name] != want {
			t.Errorf("%s = %v, want %v", name, got[name], want)
		}
	}
}

// Rules and types that a program makes up at each call do not become a series each: beyond a bound they
// are counted together. Those that came before keep their series.
func TestLabelsAreBounded(t *testing.T) {
	t.Parallel()
	const rules, types = 500, 100
	reg := prometheus.NewRegistry()
	m, err := metrics.New(reg)
	if err != nil {
		t.Fatal(err)
	}
	o, ctx := m.Observer(), t.Context()
	for n := range 2 * rules {
		rule := fmt.Sprint("customer-", n)
		o.Granted(ctx, event.Granted{Rules: []string{rule}})
		o.Refused(ctx, event.Refused{Rule: rule, Reason: event.NoPermits})
		o.Deferred(ctx, event.Deferred{Rule: rule, Reason: event.Booked, Wait: time.Second})
		o.Moved(ctx, event.Moved{Rule: rule})
		o.Postponed(ctx, event.Postponed{Rule: rule})
		o.LeaseLost(ctx, event.LeaseLost{Rule: rule})
		o.Adjusted(ctx, event.Adjusted{Rule: rule})
		o.LimitChanged(ctx, event.LimitChanged{Rule: rule})
		o.KeyClosed(ctx, event.KeyClosed{Rule: rule})
		o.Unlimited(ctx, event.Unlimited{Task: event.Task{Type: fmt.Sprint("type-", n)}})
	}
	o.Granted(ctx, event.Granted{Rules: []string{"customer-0", "bad\xff", strings.Repeat("x", 1000)}})
	o.Deferred(ctx, event.Deferred{Reason: event.Unavailable}) // no rule holds it
	got := scrape(t, reg)
	for name, want := range map[string]float64{
		"headway_admissions_total{granted,customer-0}": 2, "headway_admissions_total{granted,customer-499}": 1, "headway_admissions_total{granted,other}": rules + 2,
		"headway_admissions_total{deferred,other}": rules, "headway_admissions_total{unavailable,}": 1, "headway_binding_total{other}": 2 * rules,
		"headway_wait_seconds{other}": rules, "headway_moved_total{other}": rules, "headway_postponed_total{other}": rules,
		"headway_leases_lost_total{other}": rules, "headway_charges_adjusted_total{other}": rules, "headway_limit_changes_total{other}": rules,
		"headway_key_closures_total{close,other}": 0, "headway_key_closures_total{open,other}": rules, "headway_unlimited_tasks_total{other}": 2*rules - types,
	} {
		if got[name] != want {
			t.Errorf("%s = %v, want %v", name, got[name], want)
		}
	}
	series := make(map[string]int)
	for name := range got {
		family, _, _ := strings.Cut(name, "{")
		series[family]++
	}
	for family, n := range series {
		if n > 3*(rules+2) { // headway_admissions_total has three outcomes of a rule here
			t.Errorf("%s has %d series", family, n)
		}
	}
}

func BenchmarkObserver(b *testing.B) {
	m, err := metrics.New(prometheus.NewRegistry())
	if err != nil {
		b.Fatal(err)
	}
	o, rules := m.Observer(), []string{"phone", "provider"}
	for b.Loop() { // what one task costs that waits once
		o.Deferred(b.Context(), event.Deferred{Rule: "phone", Reason: event.Booked, Wait: time.Second})
		o.Woken(b.Context(), event.Woken{Task: event.Task{Queue: "default"}})
		o.Granted(b.Context(), event.Granted{Task: event.Task{Queue: "default"}, Rules: rules, Promised: time.Unix(1, 0), Late: time.Millisecond})
	}
}
