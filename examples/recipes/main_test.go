package recipes

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/phonezone"
	"github.com/headwayq/headway/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start is Sunday, 1 March 2026, 3 o'clock in UTC.
var start = time.Date(2026, 3, 1, 3, 0, 0, 0, time.UTC)

// bed is a pool in a bubble, where an hour takes no time. It begins at start.
type bed struct {
	*testing.T
	rdb    *redis.Client
	server *miniredis.Miniredis
	client *queue.Client
	pool   *worker.Pool
	queues map[string]int // of the pool; asynq's default queue when nil

	mu   sync.Mutex
	runs []run
}

// run is one call of a handler: its task, when it began, and when it was granted.
type run struct {
	id          string
	at, granted time.Duration // since start
}

func inBubble(t *testing.T, f func(t *testing.T, b *bed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(start)) // a bubble begins in the year 2000
		b := &bed{T: t}
		b.rdb, b.server = redistest.Mini(t)
		f(t, b)
	})
}

// work starts a pool under policies; a failed task is tried again after a second.
func (b *bed) work(handler asynq.HandlerFunc, policies ...queue.Policy) {
	b.Helper()
	b.enqueueing(policies...)
	pool, err := worker.New(b.rdb, b.noted(handler), worker.Config{
		Policies: policies,
		Asynq: asynq.Config{
			Concurrency:    10,
			Queues:         b.queues,
			RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Second },
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	if err := pool.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Shutdown)
	b.pool = pool
}

func (b *bed) enqueueing(policies ...queue.Policy) {
	b.Helper()
	client, err := queue.NewClient(b.rdb, queue.ClientConfig{Policies: policies})
	if err != nil {
		b.Fatal(err)
	}
	b.client = client
}

// beside runs something, such as a feeder, until stop is called. stop waits for its end: what still runs when a bubble ends is
// taken for a deadlock.
func (b *bed) beside(run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := run(ctx); err != nil {
			b.Error(err)
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

// noted writes down the calls of a handler.
func (b *bed) noted(handler asynq.HandlerFunc) asynq.HandlerFunc {
	return func(ctx context.Context, task *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		r := run{id: id, at: time.Since(start)}
		if d, ok := worker.GrantFrom(ctx); ok {
			r.granted = d.At.Sub(start)
		}
		b.mu.Lock()
		b.runs = append(b.runs, r)
		b.mu.Unlock()
		return handler(ctx, task)
	}
}

// enqueue adds a task of a type; those before it have come to rest.
func (b *bed) enqueue(typ, id, payload string) {
	b.Helper()
	task := queue.NewTask(typ, []byte(payload), asynq.TaskID(id), asynq.MaxRetry(5))
	if _, err := b.client.Enqueue(b.Context(), task); err != nil {
		b.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond) // of the bubble
}

// ran are the tasks that ran, in order.
func (b *bed) ran() []run {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.runs)
}

// grants are the instants at which a task was granted.
func (b *bed) grants(id string) []time.Duration {
	var out []time.Duration
	for _, r := range b.ran() {
		if r.id == id {
			out = append(out, r.granted)
		}
	}
	return out
}

// want checks that a task ran once, at an instant and at most 100 ms after it.
func (b *bed) want(id string, at time.Duration) {
	b.Helper()
	all := b.grants(id)
	if len(all) != 1 || all[0] < at || all[0] > at+100*time.Millisecond {
		b.Errorf("%s was granted at %v, want once at %v", id, all, at)
	}
}

// waits checks that a task is first in the line of a key, for an instant.
func (b *bed) waits(rule, key, id string, at time.Duration) {
	b.Helper()
	line, err := b.pool.Limiter(rule).Peek(b.Context(), key, 1)
	if err != nil || line.Waiting != 1 {
		b.Fatalf("%d wait for %s, %v, want %s alone", line.Waiting, rule, err, id)
	}
	first := line.Booked[0]
	if off := first.At.Sub(start) - at; !strings.HasSuffix(first.Job, ":"+id) || off < 0 || off > 100*time.Millisecond {
		b.Errorf("%s waits for %s until %v, want %s until %v", first.Job, rule, first.At.Sub(start), id, at)
	}
}

// left is what a rule has left for a key.
func (b *bed) left(rule, key string) int {
	b.Helper()
	n, err := b.pool.Limiter(rule).Available(b.Context(), key)
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// done is a handler that has nothing to do.
func done(context.Context, *asynq.Task) error { return nil }

// policiesOf reads the YAML that docs/policies.md has under a heading.
func policiesOf(t *testing.T, heading string) []queue.Policy {
	t.Helper()
	policies, err := queue.Funcs{PhoneZone: phonezone.Of}.ReadPolicies("policies.yaml", strings.NewReader(yamlOf(t, heading)))
	if err != nil {
		t.Fatal(err)
	}
	return policies
}
