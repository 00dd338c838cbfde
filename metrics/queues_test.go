package metrics_test

import (
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/metrics"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// What waits, and what only lacks a worker, are told apart: an autoscaler must not start
// workers for tasks that wait for their limit.
func TestQueuesTellThrottledFromStarved(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t)
	policies := []queue.Policy{{Type: "sms", Rules: []queue.Rule{
		{Name: "phone", Limit: throttle.Sliding(1, time.Hour), Key: queue.MustJSONKey("$.to")},
	}}, {Type: "quick", Rules: []queue.Rule{
		{Name: "rate", Limit: throttle.Sliding(1, 200*time.Millisecond), Constant: "all"},
	}}}
	inspector, err := inspect.New(rdb, inspect.Config{Policies: policies})
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewPedanticRegistry()
	if err := metrics.RegisterQueues(reg, inspector); err != nil {
		t.Fatal(err)
	}
	if err := metrics.RegisterQueues(reg, inspector); err == nil {
		t.Error("registered twice, want an error")
	}
	if err := metrics.RegisterQueues(reg, nil); err == nil {
		t.Error("an inspector that is nil is taken, want an error")
	}
	c, err := queue.NewClient(rdb, queue.ClientConfig{Policies: policies})
	if err != nil {
		t.Fatal(err)
	}
	// Nobody runs the two of the queue late: one is due now, one was deferred and is overdue.
	for _, r := range c.BookMany(t.Context(), []*queue.Task{queue.NewTask("quick", nil), queue.NewTask("quick", nil)}, asynq.Queue("late")) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	var messages []*queue.Task
	for range 3 { // the first may run now, the others in one hour and two
		messages = append(messages, queue.NewTask("sms", []byte(`{"to":"+491701"}`)))
	}
	for _, r := range c.BookMany(t.Context(), messages) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	for range 5 {
		if _, err := c.Enqueue(t.Context(), queue.NewTask("mail", nil), asynq.Queue("low")); err != nil {
			t.Fatal(err)
		}
	}
	until, err := inspector.CloseRule(t.Context(), "phone", time.Hour, inspect.Reason{Who: "ops", Why: "maintenance"})
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "a task of the queue late is overdue", func() bool {
		all, err := inspector.Queues(t.Context())
		return err == nil && slices.ContainsFunc(all, func(s inspect.QueueStatus) bool { return s.Queue == "late" && s.Overdue == 1 })
	})
	got := scrape(t, reg)
	for name, want := range map[string]float64{
		"headway_scrape_up{}":                                1,
		"headway_runnable{late}":                             2,
		"headway_deferred{late}":                             0,
		"headway_due{late,1s}":                               0,
		"headway_due{late,1h}":                               0,
		"headway_runnable{low}":                              5,
		"headway_deferred{low}":                              0,
		"headway_active{low}":                                0,
		"headway_deferred{default}":                          2,
		"headway_runnable{default}":                          1,
		"headway_due{default,1s}":                            0,
		"headway_due{default,1m}":                            0,
		"headway_queue_paused{low}":                          0,
		"headway_archived{low}":                              0,
		"headway_rule_closed_until_timestamp_seconds{phone}": float64(until.UnixMicro()) / 1e6,
		"headway_rule_limit_stored{phone}":                   0,
		"headway_rule_limit_unreadable{phone}":               0,
	} {
		if value, ok := got[name]; !ok || value != want {
			t.Errorf("%s = %v, %v, want %v", name, value, ok, want)
		}
	}
	if at, now := got["headway_next_release_timestamp_seconds{default}"], float64(time.Now().Unix()); at < now || at > now+3601 {
		t.Errorf("the next task comes at %v, now is %v, want it in an hour", at, now)
	}
	server.Pause()
	began := time.Now()
	for range 2 { // the second waits for the first, which asks still
		if got := scrape(t, reg); len(got) != 1 || got["headway_scrape_up{}"] != 0 {
			t.Errorf("while Redis hangs: %v, want headway_scrape_up 0 alone", got)
		}
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("two scrapes took %v while Redis hung, want 6 s", took)
	}
	server.Resume()
	waitFor(t, "figures when Redis is back", func() bool { return scrape(t, reg)["headway_scrape_up{}"] == 1 })
}

// A pool that runs is counted, and not for long after its end.
func TestQueuesCountThePools(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	inspector, err := inspect.New(rdb, inspect.Config{})
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewPedanticRegistry()
	if err := metrics.RegisterQueues(reg, inspector); err != nil {
		t.Fatal(err)
	}
	if _, ok := scrape(t, reg)["headway_processes{pool}"]; ok {
		t.Error("a pool is counted where none runs")
	}
	pool, err := worker.New(rdb, asynq.NewServeMux(), worker.Config{Unlimited: worker.UnlimitedAllow})
	if err != nil {
		t.Fatal(err)
	}
	if err := pool.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the pool is counted", func() bool { return scrape(t, reg)["headway_processes{pool}"] == 1 })
	pool.Shutdown()
	waitFor(t, "it is counted no more", func() bool { return scrape(t, reg)["headway_processes{pool}"] == 0 })
}

// waitFor polls until cond holds.
func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	end := time.NewTimer(time.Minute)
	defer end.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-end.C:
			t.Fatalf("not in time: %s", what)
		}
	}
}
