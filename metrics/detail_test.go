package metrics_test

import (
	"context"
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/metrics"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/queue/schedule"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// What waits for a rule, batches and schedules have figures, and no id of theirs is a label.
func TestRulesBatchesAndSchedules(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	policies := []queue.Policy{{Type: "sms", Rules: []queue.Rule{
		{Name: "phone", Limit: throttle.Sliding(1, time.Hour), Key: queue.MustJSONKey("$.to")},
	}}}
	inspector, err := inspect.New(rdb, inspect.Config{Policies: policies})
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewPedanticRegistry()
	if err := metrics.RegisterQueues(reg, inspector); err != nil {
		t.Fatal(err)
	}
	client, err := queue.NewClient(rdb, queue.ClientConfig{Policies: policies})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 { // one runs now, the others in one hour and two
		if _, err := client.Book(t.Context(), queue.NewTask("sms", []byte(`{"to":"+491701"}`))); err != nil {
			t.Fatal(err)
		}
	}
	pace := batch.Pace{N: 100, Per: 10 * time.Second}
	control := batch.NewControl(client)
	for _, s := range []batch.Spec{
		{ID: "fed", Type: "free", Source: "numbers", Total: 4, Pace: batch.Pace{N: 1000, Per: time.Second}},
		{ID: "unfed", Type: "free", Source: "nobody", Total: 50, Pace: pace},
		{ID: "paused", Type: "free", Source: "nobody", Total: 5},
	} {
		if _, err := control.Start(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if err := control.Pause(t.Context(), "default", "paused"); err != nil {
		t.Fatal(err)
	}
	numbers := batch.Seq(func(batch.Spec) iter.Seq[batch.Element] {
		return func(yield func(batch.Element) bool) {
			for n := range 4 {
				if !yield(batch.Element{ID: fmt.Sprint(n % 3)}) { // the last one has the id of the first
					return
				}
			}
		}
	})
	feeder, err := batch.NewFeeder(client, batch.FeederConfig{Queues: []string{"default"}, Sources: map[string]batch.Source{"numbers": numbers}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := schedule.New(client, schedule.Config{}, schedule.Entry{Name: "nightly", Spec: "0 3 * * *", Task: queue.NewTask("free", nil)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{}, 2)
	go func() { _ = feeder.Run(ctx); done <- struct{}{} }()
	go func() { _ = s.Run(ctx); done <- struct{}{} }()
	t.Cleanup(func() { cancel(); <-done; <-done })

	waitFor(t, "the batch is fed, and the scheduler is there", func() bool {
		got := scrape(t, reg)
		return got["headway_batch_fed{default}"] == 3 && got["headway_batch_refused{default,id taken}"] == 1 && got["headway_processes{scheduler}"] == 1
	})
	got := scrape(t, reg)
	for name, want := range map[string]float64{
		"headway_rule_due{phone,1s}":              0,
		"headway_rule_due{phone,1m}":              0,
		"headway_batches{default,running}":        2,
		"headway_batches{default,paused}":         1,
		"headway_batches{default,ended}":          0,
		"headway_batch_open{default}":             3,
		"headway_batch_ended{done,default}":       0,
		"headway_batch_remaining{default}":        3 + 50 + 5,
		"headway_batch_pace{default}":             1000 + 10,
		"headway_batches_without_feeder{default}": 1,
		"headway_batch_refused{default,id taken}": 1,
		"headway_batch_ended{failed,default}":     0,
	} {
		if value, ok := got[name]; !ok || value != want {
			t.Errorf("%s = %v, %v, want %v", name, value, ok, want)
		}
	}
	now := float64(time.Now().Unix())
	if at := got["headway_rule_next_release_timestamp_seconds{phone}"]; at < now || at > now+3601 {
		t.Errorf("the next task of the rule comes at %v, now is %v, want it in an hour", at, now)
	}
	if at := got["headway_schedule_next_tick_timestamp_seconds{nightly,default}"]; at < now || at > now+86401 {
		t.Errorf("the next tick is at %v, now is %v, want it within a day", at, now)
	}
	if waited, ok := got["headway_oldest_wait_seconds{phone}"]; !ok || waited < 0 || waited > 600 {
		t.Errorf("the oldest wait is %v, %v", waited, ok)
	}

	// A pool runs what was fed.
	pool, err := worker.New(rdb, asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil }),
		worker.Config{Policies: policies, Unlimited: worker.UnlimitedAllow, Servers: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := pool.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Shutdown)
	waitFor(t, "the batch has ended", func() bool {
		got := scrape(t, reg)
		return got["headway_batches{default,ended}"] == 1 && got["headway_batch_ended{done,default}"] == 3 && got["headway_batch_remaining{default}"] == 55
	})
}
