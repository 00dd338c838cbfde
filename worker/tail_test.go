package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/internal/tail"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// tailing are two pools, and tasks for them.
type tailing struct {
	*testing.T
	rdb  redis.UniversalClient
	done chan string
}

func startTailing(t *testing.T, rdb redis.UniversalClient) tailing {
	t.Helper()
	d := tailing{t, rdb, make(chan string, 1000)}
	policies := []queue.Policy{{Type: "sms", Rules: []queue.Rule{
		{Name: "phone", Limit: throttle.Sliding(1, 100*time.Millisecond), Key: queue.MustJSONKey("$.to")},
	}}}
	for range 2 {
		handler := asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
			id, _ := asynq.GetTaskID(ctx)
			d.done <- id
			return nil
		})
		pool, err := worker.New(rdb, handler, worker.Config{Policies: policies, Servers: 1})
		if err != nil {
			t.Fatal(err)
		}
		if err := pool.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Shutdown)
	}
	return d
}

// run enqueues so many tasks to two phones, and waits until they have run.
func (d tailing) run(n int) {
	d.Helper()
	client, err := queue.NewClient(d.rdb, queue.ClientConfig{})
	if err != nil {
		d.Fatal(err)
	}
	for i := range n {
		if _, err := client.Enqueue(d.Context(), queue.NewTask("sms", fmt.Appendf(nil, `{"to":"+4917055501%d"}`, i%2))); err != nil {
			d.Fatal(err)
		}
	}
	for range n {
		<-d.done
	}
}

// watch looks until stop is called, which returns all lines and what ended it.
func (d tailing) watch(a tail.Ask) (heard <-chan tail.Line, stop func() ([]tail.Line, error)) {
	d.Helper()
	ctx, cancel := context.WithCancel(d.Context())
	var mu sync.Mutex
	var all []tail.Line
	lines, ended := make(chan tail.Line, 10_000), make(chan error, 1)
	go func() {
		ended <- tail.Watch(ctx, d.rdb, "hw", a, func() { d.Error("no pool listens") }, func(l tail.Line) error {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, l)
			lines <- l
			return nil
		})
	}()
	return lines, func() ([]tail.Line, error) {
		cancel()
		err := <-ended
		mu.Lock()
		defer mu.Unlock()
		return all, err
	}
}

// published is how often something was published on a server, but for what clients do.
func published(t *testing.T, rdb *redis.Client) string {
	t.Helper()
	text, err := rdb.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(text, "\r\n") {
		if calls, ok := strings.CutPrefix(line, "cmdstat_publish:"); ok {
			n, _, _ := strings.Cut(calls, ",")
			return n
		}
	}
	return "none"
}

// Who looks sees what two pools decide: no more than the rate of each, and no key. Before and
// after that nothing is published.
func TestTail(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	d := startTailing(t, rdb)
	const rate = 4
	before := published(t, rdb) // a pool tries whether it may, when it starts
	d.run(20)
	if now := published(t, rdb); now != before {
		t.Fatalf("nobody looks, and PUBLISH went from %s to %s", before, now)
	}

	lines, stop := d.watch(tail.Ask{Rate: rate, Queue: "default", Rule: "phone"})
	_, stopOther := d.watch(tail.Ask{Rate: rate, Rule: "nobody"})
	outcomes, skipped := map[string]bool{}, 0
	for !outcomes[tail.Granted] || !outcomes[tail.Deferred] || skipped == 0 {
		d.run(10)
		for len(lines) > 0 {
			l := <-lines
			outcomes[l.Outcome] = true
			skipped += l.Skipped
		}
	}
	all, err := stop()
	if err != nil {
		t.Errorf("Watch = %v, want nil at its end", err)
	}
	if others, err := stopOther(); err != nil || len(others) > 0 {
		t.Errorf("of a rule that nobody has: %+v, %v", others, err)
	}
	seconds := make(map[int64]int)
	for _, l := range all {
		seconds[l.At.Unix()]++
		text, err := json.Marshal(l)
		if err != nil || strings.Contains(string(text), "+49") {
			t.Errorf("%s, %v: want no key", text, err)
		}
		if l.Queue != "default" || l.Task == "" || !slices.Equal(l.Rules, []string{"phone"}) || l.Process == "" {
			t.Errorf("something is missing: %s", text)
		}
		if l.Outcome == tail.Deferred && (l.Until.IsZero() || l.Wait <= 0 && l.Until.After(l.At) || l.Type != "sms") {
			t.Errorf("a deferred task has no instant: %s", text)
		}
	}
	for second, n := range seconds {
		if n > 2*rate {
			t.Errorf("%d lines of second %d, want at most %d of each of two pools", n, second, rate)
		}
	}
	for { // a pool may have heard of the end a moment later
		before := published(t, rdb)
		if d.run(6); published(t, rdb) == before {
			break
		}
	}
}

// On Redis Cluster it does not matter which nodes pools and those who look are connected to.
func TestTailOnCluster(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts a cluster")
	}
	d := startTailing(t, redistest.StartCluster(t, 3))
	var stops []func() ([]tail.Line, error)
	for range 3 { // their channels are on several nodes
		lines, stop := d.watch(tail.Ask{Rate: 10})
		stops = append(stops, stop)
		for len(lines) == 0 {
			d.run(2)
		}
	}
	for _, stop := range stops {
		if all, err := stop(); err != nil || len(all) == 0 {
			t.Errorf("%d lines, %v", len(all), err)
		}
	}
}
