package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/worker"
)

// night is a pool in a bubble whose clock begins at midnight of 2000-01-01, UTC.
type night struct {
	*testing.T
	rdb      *redis.Client
	policies []queue.Policy
	handler  *starts

	mu    sync.Mutex
	woken []int64 // instants, in microseconds
}

func newNight(t *testing.T, rules ...string) *night {
	t.Helper()
	policies, err := queue.ReadPolicies("night", strings.NewReader(policyFile(typeSMS, rules)))
	if err != nil {
		t.Fatal(err)
	}
	rdb, _ := redistest.Mini(t)
	return &night{T: t, rdb: rdb, policies: policies, handler: &starts{at: make(map[string]time.Time)}}
}

// Observe implements [worker.Observer].
func (n *night) Observe(e worker.Event) {
	if e.Kind == worker.EventWoken {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.woken = append(n.woken, time.Now().UnixMicro())
	}
}

// wakes are the instants at which tasks were woken.
func (n *night) wakes() []int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.woken)
}

func (n *night) start() *worker.Pool {
	n.Helper()
	return startPool(n, n.rdb, n.handler, worker.Config{Asynq: asynq.Config{Concurrency: 8}, Policies: n.policies, Observer: n})
}

// enqueue enqueues a message to each of so many phones.
func (n *night) enqueue(phones int) {
	n.Helper()
	client, err := queue.NewClient(n.rdb, queue.ClientConfig{Policies: n.policies})
	if err != nil {
		n.Fatal(err)
	}
	for i := range phones {
		body, err := json.Marshal(message{ID: phone(i), To: phone(i)})
		if err != nil {
			n.Fatal(err)
		}
		if _, err := client.Enqueue(n.Context(), queue.NewTask(typeSMS, body)); err != nil {
			n.Fatal(err)
		}
	}
}

// clock is an instant of the first days of the bubble.
func clock(day, hour, minute, second int) time.Time {
	return time.Date(2000, time.January, day, hour, minute, second, 0, time.UTC)
}

// mostWithin is how many instants lie within a time of d, at most.
func mostWithin(instants []int64, d time.Duration) int {
	slices.Sort(instants)
	most, first := 0, 0
	for last, at := range instants {
		for at-instants[first] >= d.Microseconds() {
			first++
		}
		most = max(most, last-first+1)
	}
	return most
}

// TestGateOpens: many messages wait for an opening. They come at the provider's
// pace, and not as a herd.
func TestGateOpens(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const jobs, rate, burst = 500, 10, 5
		opens := clock(1, 8, 0, 0)
		n := newNight(t, "hours: {gate: 08:00-21:00 UTC}", "phone: {limit: 1/60s, key: $.to}", "provider: {limit: gcra 10/1s burst 5, key: acme}")
		time.Sleep(time.Until(opens.Add(-20 * time.Second)))
		pool := n.start()
		n.enqueue(jobs)
		time.Sleep(time.Until(opens.Add(-time.Second)))
		if ran, stats := n.handler.count(), pool.Stats(); ran != 0 || stats.Deferred != jobs || len(n.wakes()) != 0 {
			t.Fatalf("before the opening %d ran, %d were woken: %+v", ran, len(n.wakes()), stats)
		}
		time.Sleep(time.Until(opens.Add((jobs-burst)*time.Second/rate + time.Second)))

		at := n.handler.instants()
		if len(at) != jobs || n.handler.count() != jobs {
			t.Fatalf("%d of %d messages ran, %d times", len(at), jobs, n.handler.count())
		}
		var grants []grant
		for _, g := range at {
			if g.Before(opens) {
				t.Errorf("one was granted at %v, before the opening", g)
			}
			grants = append(grants, grant{to: "acme", at: g.UnixMicro()})
		}
		if f := gcraBreaches(grants, n.policies[0].Rules[2].Limit); len(f) > 0 {
			t.Errorf("breaches of the provider's limit: %s", few(f))
		}
		stats := pool.Stats()
		if per := float64(stats.Admissions) / jobs; per > 3.05 {
			t.Errorf("%.3f admissions per message, want 3.05 at most: %+v", per, stats)
		}
		if most := mostWithin(n.wakes(), time.Second); most > rate+2*burst {
			t.Errorf("%d were woken within a second, want about %d", most, rate)
		}
		t.Logf("the last at %v, at most %d wakes within a second, %+v", at[jobs-1].UTC(), mostWithin(n.wakes(), time.Second), stats)
	})
}

// TestGateAcrossMidnight: the hours go over midnight, the messages over the end of
// the hours, and a new pool finds those that wait for the next evening.
func TestGateAcrossMidnight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const first, jobs = 12, 20 // in the first night, and in all
		const every = 10 * time.Second
		n := newNight(t, "hours: {gate: 23:59-00:01 UTC}", "phone: {limit: 1/60s, key: $.to}", "provider: {limit: 1/10s, key: acme}")
		time.Sleep(time.Until(clock(1, 23, 58, 50)))
		pool := n.start()
		n.enqueue(jobs)
		time.Sleep(time.Until(clock(2, 0, 1, 10)))
		pool.Shutdown()
		if ran := n.handler.count(); ran != first {
			t.Errorf("%d ran in the first night, want %d", ran, first)
		}
		time.Sleep(time.Until(clock(2, 23, 58, 50)))
		n.start()
		time.Sleep(time.Until(clock(3, 0, 1, 10)))

		at := n.handler.instants()
		if len(at) != jobs {
			t.Fatalf("%d of %d messages ran", len(at), jobs)
		}
		for i, g := range at {
			want := clock(1, 23, 59, 0).Add(time.Duration(i) * every)
			if i >= first {
				want = clock(2, 23, 59, 0).Add(time.Duration(i-first) * every)
			}
			if late := g.Sub(want); late < 0 || late > 100*time.Millisecond {
				t.Errorf("message %d was granted at %v, want %v", i+1, g.UTC(), want)
			}
		}
	})
}
