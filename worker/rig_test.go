package worker_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

const (
	ms = time.Millisecond
	// within is how long a test waits for what has to come at all: a loaded
	// machine is slow, and no test is about that.
	within = 30 * time.Second
)

// rig is a Redis with what a test does to it. Its pools log into logs.
type rig struct {
	*testing.T
	srv  *redistest.Server
	rdb  *redis.Client
	insp *asynq.Inspector
	log  *zap.Logger
	logs *observer.ObservedLogs
}

func newRig(t *testing.T, opts ...redistest.Option) *rig {
	t.Helper()
	srv := redistest.Start(t, opts...)
	return rigOn(t, srv, srv.Client(t))
}

func rigOn(t *testing.T, srv *redistest.Server, rdb *redis.Client) *rig {
	core, logs := observer.New(zapcore.DebugLevel)
	return &rig{
		T: t, srv: srv, rdb: rdb, insp: asynq.NewInspectorFromRedisClient(rdb),
		log: zap.New(core), logs: logs,
	}
}

// start runs a pool until the test ends, or until stop is called.
func (r *rig) start(h asynq.Handler, cfg worker.Config) (p *worker.Pool, stop func()) {
	r.Helper()
	return r.startOn(r.rdb, h, cfg)
}

func (r *rig) startOn(rdb redis.UniversalClient, h asynq.Handler, cfg worker.Config) (p *worker.Pool, stop func()) {
	r.Helper()
	if cfg.Logger == nil {
		cfg.Logger = r.log
	}
	if len(cfg.Policies) == 0 && cfg.Unlimited == worker.UnlimitedWarn {
		cfg.Unlimited = worker.UnlimitedAllow // such a test limits in its handlers, and looks at other warnings
	}
	if cfg.Asynq.Concurrency == 0 {
		cfg.Asynq.Concurrency = 4
	}
	if cfg.Asynq.DelayedTaskCheckInterval == 0 {
		cfg.Asynq.DelayedTaskCheckInterval = 100 * ms
	}
	p = started(r.T, rdb, h, cfg)
	return p, p.Shutdown
}

// started is a pool just as it was configured, until the test ends.
func started(t *testing.T, rdb redis.UniversalClient, h asynq.Handler, cfg worker.Config) *worker.Pool {
	t.Helper()
	p, err := worker.New(rdb, h, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Shutdown)
	return p
}

// enqueue enqueues through our client, which knows no policy here.
func (r *rig) enqueue(typ, id, payload string, opts ...asynq.Option) {
	r.Helper()
	if err := r.tryEnqueue(typ, id, payload, opts...); err != nil {
		r.Fatalf("Enqueue(%s): %v", id, err)
	}
}

func (r *rig) tryEnqueue(typ, id, payload string, opts ...asynq.Option) error {
	r.Helper()
	return tryEnqueue(r.T, r.rdb, queue.NewTask(typ, []byte(payload), append(opts, asynq.TaskID(id))...))
}

func tryEnqueue(t *testing.T, rdb redis.UniversalClient, task *queue.Task) error {
	t.Helper()
	c, err := queue.NewClient(rdb, queue.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Enqueue(t.Context(), task)
	return err
}

func enqueue(t *testing.T, rdb redis.UniversalClient, task *queue.Task) {
	t.Helper()
	if err := tryEnqueue(t, rdb, task); err != nil {
		t.Fatal(err)
	}
}

// enqueuePlain enqueues with a plain asynq client.
func (r *rig) enqueuePlain(typ, id, payload string, opts ...asynq.Option) {
	r.Helper()
	c := asynq.NewClientFromRedisClient(r.rdb)
	task := asynq.NewTask(typ, []byte(payload), append(opts, asynq.TaskID(id))...)
	if _, err := c.Enqueue(task); err != nil {
		r.Fatalf("Enqueue(%s): %v", id, err)
	}
}

// info is what asynq says of a task, nil when it is gone.
func (r *rig) info(id string) *asynq.TaskInfo {
	r.Helper()
	info, err := r.insp.GetTaskInfo("default", id)
	if err != nil {
		return nil
	}
	return info
}

// is says whether a task is in a state.
func (r *rig) is(id string, s asynq.TaskState) bool {
	info := r.info(id)
	return info != nil && info.State == s
}

func (r *rig) queueInfo() *asynq.QueueInfo {
	r.Helper()
	info, err := r.insp.GetQueueInfo("default")
	if err != nil {
		r.Fatal(err)
	}
	return info
}

// wantQueue checks asynq's statistics of all time, and its archive.
func (r *rig) wantQueue(processed, failed, archived int) {
	r.Helper()
	q := r.queueInfo()
	if q.ProcessedTotal != processed || q.FailedTotal != failed || q.Archived != archived {
		r.Errorf("asynq counts %d processed, %d failed, %d archived, want %d, %d, %d",
			q.ProcessedTotal, q.FailedTotal, q.Archived, processed, failed, archived)
	}
}

// limiter is one of the test's own, on the rig's client.
func (r *rig) limiter(rule string, limit throttle.Limit) *throttle.Limiter {
	r.Helper()
	l, err := throttle.New(r.rdb, rule, limit, throttle.Config{})
	if err != nil {
		r.Fatal(err)
	}
	return l
}

// take spends a permit now.
func (r *rig) take(l *throttle.Limiter, key string) throttle.Decision {
	r.Helper()
	d, err := l.TryAcquire(r.Context(), key, 1)
	if err != nil || !d.Granted {
		r.Fatalf("TryAcquire(%s) = %v, %v, want a grant", key, d, err)
	}
	return d
}

func (r *rig) peek(l *throttle.Limiter, key string) throttle.State {
	r.Helper()
	s, err := l.Peek(context.WithoutCancel(r.Context()), key, 100)
	if err != nil {
		r.Fatal(err)
	}
	return s
}

// eventually polls until cond holds.
func (r *rig) eventually(what string, cond func() bool) {
	r.Helper()
	eventually(r.T, what, cond)
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	end := time.NewTimer(within)
	defer end.Stop()
	tick := time.NewTicker(3 * ms)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-end.C:
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

// never watches for d that cond does not hold.
func never(t *testing.T, d time.Duration, what string, cond func() bool) {
	t.Helper()
	end := time.NewTimer(d)
	defer end.Stop()
	tick := time.NewTicker(10 * ms)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if cond() {
				t.Fatalf("within %v: %s", d, what)
			}
		case <-end.C:
			return
		}
	}
}

// run is one call of a handler.
type run struct {
	id      string
	payload string
	grant   throttle.Decision
	limited bool
	at      time.Time
}

// runs notes the calls of a handler, in the order in which they start.
type runs struct {
	mu   sync.Mutex
	list []run
}

func (s *runs) note(ctx context.Context, task *asynq.Task) run {
	id, _ := asynq.GetTaskID(ctx)
	d, ok := worker.GrantFrom(ctx)
	n := run{id: id, payload: string(task.Payload()), grant: d, limited: ok, at: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, n)
	return n
}

// handler notes a call and is done.
func (s *runs) handler() asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		s.note(ctx, task)
		return nil
	})
}

func (s *runs) all() []run {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]run(nil), s.list...)
}

func (s *runs) ids() []string {
	var ids []string
	for _, n := range s.all() {
		ids = append(ids, n.id)
	}
	return ids
}

func (s *runs) count(id string) int {
	n := 0
	for _, r := range s.all() {
		if r.id == id {
			n++
		}
	}
	return n
}

func (s *runs) first(id string) run {
	for _, r := range s.all() {
		if r.id == id {
			return r
		}
	}
	return run{}
}

// ran waits for n calls in all.
func (s *runs) ran(t *testing.T, n int) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("want %d runs, there are %v", n, s.ids())
		}
	}()
	eventually(t, "the runs", func() bool { return len(s.all()) >= n })
}

// sized is a size of a test: the small one in the short form, the other in the full one.
func sized(small, full int) int {
	if testing.Short() {
		return small
	}
	return full
}

// phone is a policy of one permit per window and phone.
func phone(typ string, per time.Duration) queue.Policy {
	return queue.Policy{Type: typ, Rules: []queue.Rule{{Name: typ, Limit: throttle.Sliding(1, per), Key: queue.MustJSONKey("$.to")}}}
}

func to(phone string) string { return fmt.Sprintf(`{"to":%q}`, phone) }

func policies(p ...queue.Policy) worker.Config { return worker.Config{Policies: p} }
