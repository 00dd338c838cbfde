package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// The master of some phones stands still, and more of their tasks come than there are workers. The tasks of other phones run all the
// same, long before the time-outs of the client are over, and those of the silent master when it is back.
func TestPoolOnClusterServesOtherKeysWhileTheirMasterIsSilent(t *testing.T) {
	t.Parallel()
	f := newFrozen(t)
	seen := &runs{}
	cfg := policies(phone("sms", 10*ms))
	cfg.Asynq.Concurrency = 4
	started(t, f.rdb, seen.handler(), cfg)
	for i, p := range f.phones {
		f.send(t, fmt.Sprint("before ", i), p)
	}
	seen.ran(t, len(f.phones))
	f.nodes[f.silent].Pause()
	t.Cleanup(f.nodes[f.silent].Resume)
	for i := range cfg.Asynq.Concurrency + 2 {
		f.send(t, fmt.Sprint("silent ", i), f.phones[f.silent])
	}
	began := time.Now()
	f.send(t, "other", f.phones[f.ofQueue])
	eventually(t, "the other phone's task runs", func() bool { return seen.count("other") > 0 })
	t.Logf("it ran after %v", time.Since(began).Round(ms))
	f.nodes[f.silent].Resume()
	seen.ran(t, len(f.phones)+cfg.Asynq.Concurrency+3)
}

// Tasks of all phones wait, and the master of one stands still. Those of the others are woken all the same. Nothing but the waker wakes them.
func TestPoolOnClusterWakesOtherTasksWhileAMasterIsSilent(t *testing.T) {
	t.Parallel()
	f := newFrozen(t)
	seen := &runs{}
	cfg := policies(phone("sms", 3*time.Second))
	cfg.Asynq.DelayedTaskCheckInterval = time.Hour
	p := started(t, f.rdb, seen.handler(), cfg)
	for i, to := range f.phones {
		f.send(t, fmt.Sprint("before ", i), to)
	}
	seen.ran(t, len(f.phones))
	f.send(t, "silent", f.phones[f.silent]) // due before the other
	f.send(t, "other", f.phones[f.ofQueue])
	eventually(t, "both wait", func() bool { return p.Stats().Deferred >= 2 })
	f.nodes[f.silent].Pause()
	t.Cleanup(f.nodes[f.silent].Resume)
	eventually(t, "the other phone's task is woken", func() bool { return seen.count("other") > 0 })
	f.nodes[f.silent].Resume()
	seen.ran(t, len(f.phones)+2)
}

// The master of a phone stands still. Where the configuration says what to do without Redis, its tasks run before it is back, and long before
// the time-outs of the client are over.
func TestPoolOnClusterDecidesWithoutASilentMaster(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		throttle.Config
		second bool // a second task of the phone runs, too
	}{
		"FailOpen":  {throttle.Config{OnUnavailable: throttle.FailOpen}, true},
		"FailLocal": {throttle.Config{OnUnavailable: throttle.FailLocal}, false}, // the limit is kept in this process
		"Shadow":    {throttle.Config{Shadow: true}, true},
	} {
		t.Run(name, func(t *testing.T) { // one after the other: each has three servers
			f := newFrozen(t)
			seen := &runs{}
			cfg := policies(phone("sms", time.Hour))
			cfg.Throttle = tc.Config
			p := started(t, f.rdb, seen.handler(), cfg)
			f.send(t, "before", f.phones[f.ofQueue])
			seen.ran(t, 1)
			f.nodes[f.silent].Pause()
			t.Cleanup(f.nodes[f.silent].Resume)
			f.send(t, "first", f.phones[f.silent])
			began := time.Now()
			eventually(t, "it runs", func() bool { return seen.count("first") > 0 })
			t.Logf("it ran after %v", time.Since(began).Round(ms))
			f.send(t, "second", f.phones[f.silent])
			if tc.second {
				eventually(t, "the second one runs", func() bool { return seen.count("second") > 0 })
			} else {
				never(t, 5*time.Second, "the second one runs", func() bool { return seen.count("second") > 0 })
			}
			f.nodes[f.silent].Resume()
			l, err := throttle.New(f.shared, "sms", throttle.Sliding(1, time.Hour), throttle.Config{})
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "the calls that were given up are taken back", func() bool {
				free, err := l.Available(t.Context(), f.phones[f.silent])
				if !tc.second && seen.count("second") > 0 {
					free++ // it stood behind the call of the first, and was woken when that was taken back: it has the permit
				}
				return err == nil && free == 1
			})
			if n := p.Stats().Admissions; n > 4 {
				t.Errorf("%d admissions, want three, and one more when the master is back", n)
			}
		})
	}
}

// A slot that was granted without a silent master is held for as long as the handler runs.
func TestPoolOnClusterHoldsALocalSlotWhileTheMasterIsSilent(t *testing.T) {
	t.Parallel()
	f := newFrozen(t)
	held := make(chan error, 1)
	cfg := policies(queue.Policy{Type: "sms", Rules: []queue.Rule{{Name: "sms", Limit: throttle.Concurrent(1, time.Second), Key: queue.MustJSONKey("$.to")}}})
	cfg.Throttle = throttle.Config{OnUnavailable: throttle.FailLocal}
	before := make(chan struct{}, 1)
	started(t, f.rdb, asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		if id, _ := asynq.GetTaskID(ctx); id == "before" {
			before <- struct{}{}
			return nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(4 * time.Second): // several leases
		}
		held <- context.Cause(ctx)
		return nil
	}), cfg)
	f.send(t, "before", f.phones[f.ofQueue])
	<-before
	f.nodes[f.silent].Pause()
	t.Cleanup(f.nodes[f.silent].Resume)
	f.send(t, "first", f.phones[f.silent])
	select {
	case err := <-held:
		if err != nil {
			t.Errorf("the handler's context ended with %v, want it to last", err)
		}
	case <-time.After(within):
		t.Error("it does not run")
	}
}

// frozen is a cluster of which a test lets one master stand still: one that has neither the queue nor the stored limit of the rule "sms".
type frozen struct {
	nodes   []*redistest.Server
	phones  []string             // one of each node
	rdb     *redis.ClusterClient // of the pool; its time-outs are longer than the test
	shared  *redis.ClusterClient
	client  *asynq.Client
	ofQueue int // the node of the queue
	silent  int // the one that is to stand still
}

func newFrozen(t *testing.T) *frozen {
	t.Helper()
	f := &frozen{}
	f.shared, f.nodes = redistest.StartNodes(t, 3)
	redistest.ServeInPart(t, f.nodes)
	nodeOf := func(key string) int { return redistest.NodeOf(t, f.shared, f.nodes, key) }
	o := *f.shared.Options()
	o.ReadTimeout = 10 * time.Minute
	f.rdb = redis.NewClusterClient(&o)
	t.Cleanup(func() { _ = f.rdb.Close() })
	f.client = asynq.NewClientFromRedisClient(f.shared) // it notes a queue in Redis once, on a node that may be the silent one
	f.phones = make([]string, len(f.nodes))
	for i := 0; slices.Contains(f.phones, ""); i++ {
		key := fmt.Sprint("+", i)
		f.phones[nodeOf("{"+key+"}")] = key
	}
	f.ofQueue = nodeOf("{default}")
	for f.silent == f.ofQueue || f.silent == nodeOf("hw:limit:sms") {
		f.silent++
	}
	return f
}

// send enqueues a task to a phone.
func (f *frozen) send(t *testing.T, id, phone string) {
	t.Helper()
	if _, err := f.client.Enqueue(asynq.NewTask("sms", []byte(to(phone)), asynq.TaskID(id))); err != nil {
		t.Fatal(err)
	}
}

// The master of a phone stands still while its task's handler runs, and the pool has one worker. The worker is free again long before the
// client's time-outs are over, whatever is to be settled after the handler. That is settled when the master is back.
func TestPoolOnClusterSettlesInTheBackgroundWhileAMasterIsSilent(t *testing.T) {
	t.Parallel()
	later := worker.RetryAfter(errors.New("429"), ms)
	for name, tc := range map[string]struct {
		limit  throttle.Limit
		answer error
	}{
		"a lease is released":                    {throttle.Concurrent(1, time.Hour), nil},
		"permits are refunded":                   {throttle.Sliding(1, time.Hour), errors.Join(worker.NotCharged(errors.New("no")), asynq.SkipRetry)},
		"a lease is released, and a key closed":  {throttle.Concurrent(1, time.Hour), errors.Join(later, asynq.SkipRetry)},
		"permits are refunded, and a key closed": {throttle.Sliding(1, time.Hour), errors.Join(worker.NotCharged(later), asynq.SkipRetry)},
	} {
		t.Run(name, func(t *testing.T) { settlesWhileAMasterIsSilent(t, tc.limit, tc.answer) }) // one after the other: each has three servers
	}
}

func settlesWhileAMasterIsSilent(t *testing.T, limit throttle.Limit, answer error) {
	t.Helper()
	f := newFrozen(t)
	seen := &runs{}
	began, goOn := make(chan struct{}), make(chan struct{})
	cfg := policies(queue.Policy{Type: "sms", Rules: []queue.Rule{{Name: "sms", Limit: limit, Key: queue.MustJSONKey("$.to")}}})
	cfg.Asynq.Concurrency = 1
	started(t, f.rdb, asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		if seen.note(ctx, task).id != "first" {
			return nil
		}
		close(began)
		<-goOn
		return answer
	}), cfg)
	f.send(t, "first", f.phones[f.silent])
	<-began
	f.nodes[f.silent].Pause()
	t.Cleanup(f.nodes[f.silent].Resume)
	f.send(t, "other", f.phones[f.ofQueue])
	returned := time.Now()
	close(goOn)
	eventually(t, "the other phone's task runs", func() bool { return seen.count("other") > 0 })
	t.Logf("it ran after %v", time.Since(returned).Round(ms))
	f.nodes[f.silent].Resume()
	f.send(t, "again", f.phones[f.silent])
	eventually(t, "the first phone's next task runs", func() bool { return seen.count("again") > 0 })
}
