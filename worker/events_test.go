package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hibiken/asynq"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// told writes down what a pool's observer hears, by task; what concerns no task stands
// under "".
type told struct {
	*testing.T
	mu     sync.Mutex
	byTask map[string][]string
}

func (w *told) observer() event.Observer {
	return event.All(func(_ context.Context, e event.Event) {
		if text := fmt.Sprintf("%+v", e); strings.Contains(text, "+491") {
			w.Errorf("an event holds a key: %s", text)
		}
		var task event.Task
		text := strings.TrimPrefix(fmt.Sprintf("%T", e), "event.")
		switch e := e.(type) {
		case event.Granted:
			task, text = e.Task, fmt.Sprint(text, " ", e.Rules, " waited: ", !e.Promised.IsZero())
		case event.Refused:
			task, text = e.Task, fmt.Sprint(text, " ", e.Rule, ": ", e.Reason)
		case event.Deferred:
			task, text = e.Task, fmt.Sprint(text, " ", e.Rule, ": ", e.Reason)
			if (e.Reason == event.Booked) == e.At.IsZero() {
				w.Errorf("%s has the instant %v", text, e.At)
			}
		case event.Moved:
			task, text = e.Task, fmt.Sprint(text, " ", e.Rule, " later: ", e.At.After(e.Was))
		case event.Promoted:
			task = e.Task
		case event.Woken:
			task, text = e.Task, fmt.Sprint(text, " ", e.Policy)
		case event.Postponed:
			task, text = e.Task, fmt.Sprint(text, " ", e.Rule, " ", e.Wait, " ", e.Times)
		case event.LeaseLost:
			task, text = e.Task, fmt.Sprint(text, " ", e.Rule)
		case event.Adjusted:
			task, text = e.Task, fmt.Sprint(text, " ", e.Rule, " ", e.From, " ", e.To)
		case event.LimitChanged:
			text = fmt.Sprint(text, " ", e.Rule, " ", e.Limit)
		case event.KeyClosed:
			text = fmt.Sprint(text, " ", e.Rule)
		}
		if task.ID != "" && task.Queue != "default" {
			w.Errorf("%s: the queue is %q", text, task.Queue)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.byTask == nil {
			w.byTask = make(map[string][]string)
		}
		w.byTask[task.ID] = append(w.byTask[task.ID], text)
	})
}

// of is what was told of a task.
func (w *told) of(id string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.byTask[id]...)
}

// inOrder puts a wake-up before the grant that it led to: a task may be granted before the
// answer to its wake-up has come back.
func inOrder(told []string) []string {
	for i := 1; i < len(told); i++ {
		if strings.HasPrefix(told[i], "Woken") && strings.HasPrefix(told[i-1], "Granted") {
			told[i-1], told[i] = told[i], told[i-1]
		}
	}
	return told
}

// want waits for as many events of a task as are wanted, and compares them.
func (w *told) want(id string, want ...string) {
	w.Helper()
	eventually(w.T, fmt.Sprintf("%d events of %q", len(want), id), func() bool { return len(w.of(id)) >= len(want) })
	if diff := cmp.Diff(want, inOrder(w.of(id))); diff != "" {
		w.Errorf("told of %q (-want +got):\n%s", id, diff)
	}
}

// An observer is told of each step on a task's way, with its queue and the rule.
func TestObserverIsToldOfATasksWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // a grant that a busy machine takes long to start is given back, and its task has waited
		rdb, _ := redistest.Mini(t)
		observedWay(t, rigOn(t, nil, rdb))
	})
}

func observedWay(t *testing.T, r *rig) {
	w := &told{T: t}
	cfg := policies(phone("sms", 300*ms), phone("busy", ms), queue.Policy{Type: "paid", Rules: []queue.Rule{
		{Name: "budget", Limit: throttle.Sliding(9, time.Hour), Key: queue.MustJSONKey("$.to"), Cost: queue.MustJSONCost("$.n")},
	}})
	cfg.Observer = w.observer()
	busy := true
	p, _ := r.start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		switch {
		case task.Type() == "paid":
			return worker.Adjust(ctx, 2)
		case task.Type() == "busy" && busy:
			busy = false
			return worker.RetryAfter(errors.New("429"), 100*ms)
		}
		return nil
	}), cfg)

	r.take(p.Limiter("sms"), "+4917")
	r.enqueue("sms", "waits", to("+4917"))
	w.want("waits", "Deferred sms: booked", "Woken sms", "Granted [sms] waited: true")
	r.enqueue("sms", "goes", to("+4918"))
	w.want("goes", "Granted [sms] waited: false")
	r.enqueue("sms", "keyless", `{}`)
	w.want("keyless", "Refused : invalid")
	r.enqueue("paid", "adjusted", `{"to":"+4917","n":5}`)
	w.want("adjusted", "Granted [budget] waited: false", "Adjusted budget 5 2")
	r.enqueue("paid", "dear", `{"to":"+4917","n":10}`)
	w.want("dear", "Refused budget: exceeds limit")
	r.enqueue("busy", "postponed", to("+4917"))
	w.want("postponed", "Granted [busy] waited: false", "Postponed busy 100ms 1", "Deferred busy: retry after", "Woken busy", "Granted [busy] waited: true")
	w.want("", "KeyClosed busy")
}

// A lowered limit is told of by the pool that goes by it, and so is each task that it moves;
// a cancelled one lets the next come earlier.
func TestObserverIsToldOfMoves(t *testing.T) {
	t.Parallel()
	r, w := newRig(t), &told{T: t}
	cfg := policies(phone("sms", time.Hour))
	cfg.Observer = w.observer()
	p, _ := r.start(new(runs).handler(), cfg)
	r.take(p.Limiter("sms"), "+4917")
	r.enqueue("sms", "first", to("+4917"))
	w.want("first", "Deferred sms: booked")
	r.enqueue("sms", "second", to("+4917"))
	w.want("second", "Deferred sms: booked")

	other := r.limiter("sms", throttle.Sliding(1, time.Hour)) // of an operator's program
	if _, err := other.SetLimit(t.Context(), throttle.Sliding(1, 2*time.Hour), throttle.SetLimitOptions{}); err != nil {
		t.Fatal(err)
	}
	w.want("", "LimitChanged sms sliding 1/2h")
	w.want("first", "Deferred sms: booked", "Moved sms later: true")
	w.want("second", "Deferred sms: booked", "Moved sms later: true")

	// Until the pool has planned the queue to the end, it may move the second task itself.
	r.eventually("the changed limit is planned", func() bool {
		version := r.rdb.HGet(t.Context(), "hw:{default}:planned", "sms").Val()
		return version != "" && version != "0" // 0 is the limit in code
	})

	promoted, err := other.Policy().Cancel(t.Context(), throttle.Request{Key: "+4917", Cost: 1, Job: luascripts.JobID("default", "first")})
	if err != nil || len(promoted) == 0 {
		t.Fatalf("Cancel = %v, %v, want the next", promoted, err)
	}
	p.Adapter().Promote(promoted...)
	r.eventually("the promotion is told of", func() bool { return slices.Contains(w.of("second"), "Promoted") })
}

// A lease that ends while its handler runs is told of once, and names the task.
func TestObserverIsToldOfALostLease(t *testing.T) {
	t.Parallel()
	r, w := newRig(t), &told{T: t}
	cfg := policies(queue.Policy{Type: "call", Rules: []queue.Rule{{Name: "slots", Limit: throttle.Concurrent(1, time.Second), Constant: "pbx"}}})
	cfg.Observer = w.observer()
	var p *worker.Pool
	started := make(chan struct{})
	p, _ = r.start(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		<-started
		d, _ := worker.GrantFrom(ctx)
		if _, err := p.Limiter("slots").Policy().Release(ctx, d); err != nil { // as if it had ended by itself
			t.Error(err)
		}
		<-ctx.Done()
		return fmt.Errorf("%w: %w", asynq.SkipRetry, context.Cause(ctx))
	}), cfg)
	close(started)
	r.enqueue("call", "a", "{}")
	w.want("a", "Granted [slots] waited: false", "LeaseLost slots")
	if got := p.Stats().LeasesLost; got != 1 {
		t.Errorf("LeasesLost = %d, want 1", got)
	}
}

// An outage is told of once, and its end once, though a pool notices it in many places.
func TestVirtualObserverIsToldOfAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clients, m := mini(t, 1)
		w, seen := &told{T: t}, &runs{}
		cfg := policies(phone("sms", time.Hour))
		cfg.Asynq.Concurrency, cfg.Observer = 2, w.observer()
		lines, logs := observer.New(zap.WarnLevel)
		cfg.Logger = zap.New(lines)
		started(t, clients[0], seen.handler(), cfg)
		for range 2 {
			m.SetError("LOADING an outage")
			time.Sleep(10 * time.Second) // of the bubble
			m.SetError("")
			time.Sleep(10 * time.Second)
		}
		enqueue(t, clients[0], queue.NewTask("sms", []byte(to("+4917"))))
		time.Sleep(time.Second)
		if len(seen.all()) != 1 {
			t.Errorf("%d runs, want 1", len(seen.all()))
		}
		w.want("", "RedisAway", "RedisBack", "RedisAway", "RedisBack")
		if away, back := logs.FilterMessageSnippet("Redis is away").Len(), logs.FilterMessageSnippet("Redis is back").Len(); away != 2 || back != 2 {
			t.Errorf("the log says %d times that Redis is away and %d times that it is back, want each twice", away, back)
		}
	})
}

// BenchmarkPoolObserver runs tasks that are granted at once, with nobody who hears of it,
// with the history, which is the default, with an observer that counts, and with one behind a
// buffer.
func BenchmarkPoolObserver(b *testing.B) {
	var heard atomic.Int64
	all := event.All(func(context.Context, event.Event) { heard.Add(1) })
	for _, with := range []string{"none", "history", "counting", "buffer"} {
		b.Run(with, func(b *testing.B) {
			srv := redistest.Start(b)
			rdb := srv.Client(b)
			cfg := policies(queue.Policy{Type: "sms", Rules: []queue.Rule{
				{Name: "phone", Limit: throttle.Sliding(1, time.Minute), Key: queue.MustJSONKey("$.to")},
			}})
			cfg.Asynq.Concurrency, cfg.NoHistory = 64, with != "history"
			switch with {
			case "counting":
				cfg.Observer = all
			case "buffer":
				buffer := event.NewBuffer(1024, all)
				defer buffer.Close()
				cfg.Observer = buffer.Observer()
			}
			c, err := queue.NewClient(rdb, queue.ClientConfig{})
			if err != nil {
				b.Fatal(err)
			}
			for n := range b.N {
				if _, err := c.Enqueue(b.Context(), queue.NewTask("sms", []byte(to(fmt.Sprint(n))))); err != nil {
					b.Fatal(err)
				}
			}
			var wg sync.WaitGroup
			wg.Add(b.N)
			pool, err := worker.New(rdb, asynq.HandlerFunc(func(context.Context, *asynq.Task) error { wg.Done(); return nil }), cfg)
			if err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			if err := pool.Start(b.Context()); err != nil {
				b.Fatal(err)
			}
			wg.Wait()
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tasks/s")
			pool.Shutdown()
		})
	}
}
