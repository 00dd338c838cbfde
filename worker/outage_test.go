package worker_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// Redis is gone for 6 s from the moment at which the handler is through.
func TestOutageAfterTheHandlerReturned(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t, redistest.AOF()), &runs{}
	began, goOn := make(chan struct{}, 10), make(chan struct{})
	p, _ := r.start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		seen.note(ctx, task)
		began <- struct{}{}
		<-goOn
		return nil
	}), policies(phone("sms", time.Hour)))
	r.enqueue("sms", "gone", to("+1"), asynq.MaxRetry(0))
	r.enqueue("sms", "kept", to("+2"), asynq.MaxRetry(0), asynq.Retention(time.Hour))
	<-began
	<-began
	r.srv.Stop()
	close(goOn)
	never(t, 6*time.Second, "another run", func() bool { return len(seen.all()) > 2 })
	if !p.Adapter().IsRecentlyDone("default", "gone") || !p.Adapter().IsRecentlyDone("default", "kept") {
		t.Error("it is not remembered that they are through")
	}
	r.srv.StartAgain()
	r.eventually("both written", func() bool {
		q, err := r.insp.GetQueueInfo("default")
		return err == nil && q.Active == 0 && q.Completed == 1 && r.info("gone") == nil
	})
	// what Redis has written is forgotten when its answer is there
	r.eventually("both forgotten", func() bool {
		return !p.Adapter().IsRecentlyDone("default", "gone") && !p.Adapter().IsRecentlyDone("default", "kept")
	})
	if n := len(seen.all()); n != 2 {
		t.Errorf("%d runs, want 2", n)
	}
	r.wantQueue(2, 0, 0)
}

// Redis does not answer for longer than asynq's lease of 30 s: asynq recovers
// the task and delivers it once more, and it does not run again.
func TestVirtualOutageBeyondTheLease(t *testing.T) {
	t.Parallel()
	for _, forgets := range []bool{false, true} {
		t.Run(fmt.Sprintf("forgets %v", forgets), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				clients, m := mini(t, 1)
				seen := &runs{}
				cfg := policies(phone("sms", time.Second))
				cfg.Asynq.Concurrency = 2
				cfg.Asynq.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return 0 }
				enqueue(t, clients[0], queue.NewTask("sms", []byte(to("+1")), asynq.TaskID("a"), asynq.MaxRetry(3)))
				p := started(t, clients[0], asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
					if seen.note(ctx, task); len(seen.all()) == 1 {
						m.SetError("LOADING an outage")
					}
					return nil
				}), cfg)
				time.Sleep(45500 * ms) // of the bubble, and between two looks
				m.SetError("")
				if forgets {
					p.Adapter().ForgetRecentlyDone()
				}
				time.Sleep(90 * time.Second)
				want := 1
				if forgets {
					want = 2 // what plain asynq does: the test can fail
				}
				if n := len(seen.all()); n != want {
					t.Errorf("%d runs, want %d", n, want)
				}
				if m.Exists("asynq:{default}:t:a") {
					t.Error("the task is still there")
				}
			})
		})
	}
}

// The reply to the first acquire is lost after the script ran.
func TestLostReplyChargesOnce(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		retries int // of go-redis
	}{{"go-redis asks again", 3}, {"the pool asks again", -1}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r, seen := newRig(t), &runs{}
			rdb, proxy := redistest.Behind(t, r.srv, func(o *redis.Options) { o.MaxRetries = tc.retries })
			p, _ := r.startOn(rdb, seen.handler(), policies(queue.Policy{
				Type:  "sms",
				Rules: []queue.Rule{{Name: "sms", Limit: throttle.Sliding(3, time.Hour), Key: queue.MustJSONKey("$.to")}},
			}))
			lim := r.limiter("sms", throttle.Sliding(3, time.Hour))
			acquire := func(request []byte) bool { return bytes.Contains(request, []byte("hw:{+1}:sms:line")) }
			for i := range 3 {
				proxy.CutNext(acquire)
				r.enqueue("sms", fmt.Sprintf("t%d", i), to("+1"), asynq.MaxRetry(0))
				seen.ran(t, i+1)
				if s := r.peek(lim, "+1"); s.Available != 2-i {
					t.Errorf("%d permits left after %d runs", s.Available, i+1)
				}
			}
			if proxy.Cuts() != 3 {
				t.Fatalf("%d replies were lost, want 3", proxy.Cuts())
			}
			// a booking whose reply is lost is one place
			proxy.CutNext(acquire)
			r.enqueue("sms", "waits", to("+1"), asynq.MaxRetry(0))
			r.eventually("deferred", func() bool { return r.is("waits", asynq.TaskStateRetry) })
			if s := r.peek(lim, "+1"); s.Waiting != 1 {
				t.Errorf("%d wait, want 1", s.Waiting)
			}
			// what Redis has written is counted when its answer is there
			r.eventually("one deferral counted", func() bool { return p.Stats().Deferred == 1 })
			if got := p.Stats(); got.Granted != 3 || got.Deferred != 1 {
				t.Errorf("%+v", got)
			}
			r.eventually("three written", func() bool { return r.queueInfo().ProcessedTotal >= 3 })
			r.wantQueue(3, 0, 0)
		})
	}
}

// The reply to asynq's own calls is lost: a fetch, a deferral, a wake-up.
func TestLostRepliesOfTheWay(t *testing.T) {
	t.Parallel()
	r, w, seen := newRig(t), &witness{}, &runs{}
	rdb, proxy := redistest.Behind(t, r.srv, nil)
	cfg := policies(phone("sms", 300*ms))
	cfg.Asynq = w.config()
	r.startOn(rdb, seen.handler(), cfg)
	n := 0
	for what, keys := range map[string][]string{
		"defer": {"asynq:{default}:active", "hw:{default}:due"},
		"wake":  {"asynq:{default}:pending", "hw:{default}:due"},
		"check": {"hw:{+1}:sms:line"},
		"done":  {"asynq:{default}:lease", "asynq:{default}:processed"},
	} {
		for range 2 { // the second has to wait
			n++
			r.enqueue("sms", fmt.Sprint(what, n), to("+1"), asynq.MaxRetry(0))
		}
		proxy.CutNext(func(request []byte) bool {
			for _, k := range keys {
				if !bytes.Contains(request, []byte(k)) {
					return false
				}
			}
			return true
		})
		seen.ran(t, n)
		r.eventually("an empty queue after a lost reply to "+what, func() bool { return r.queueInfo().Size == 0 })
	}
	if proxy.Cuts() < 3 {
		t.Errorf("%d replies were lost, want 4", proxy.Cuts())
	}
	r.wantGaps(seen, 300*ms)
	if got := r.queueInfo().FailedTotal; got != 0 || len(seen.all()) != n {
		t.Errorf("%d failures and %d runs, want 0 and %d", got, len(seen.all()), n)
	}
	w.want(t, 0, 0)
}

func TestScriptCacheIsFlushed(t *testing.T) {
	t.Parallel()
	r, w, seen := newRig(t, redistest.Own()), &witness{}, &runs{}
	cfg := policies(phone("sms", 50*ms))
	cfg.Asynq = w.config()
	r.start(seen.handler(), cfg)
	const n = 40
	for i := range n {
		r.enqueue("sms", fmt.Sprint(i), to("+1"), asynq.MaxRetry(0))
	}
	r.eventually("all through, with flushes on the way", func() bool {
		if err := r.rdb.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		return len(seen.all()) == n && r.queueInfo().Size == 0
	})
	r.wantGaps(seen, 50*ms)
	r.wantQueue(n, 0, 0)
	w.want(t, 0, 0)
	r.quiet()
}

// Redis is full for 5 s: nothing runs, nothing is lost, nobody shouts.
func TestFullRedis(t *testing.T) {
	t.Parallel()
	r, w, seen := newRig(t, redistest.Arg("maxmemory-policy", "noeviction")), &witness{}, &runs{}
	cfg := policies(phone("sms", 300*ms))
	cfg.Asynq = w.config()
	r.start(seen.handler(), cfg)
	const n = 12
	for i := range n {
		r.enqueue("sms", fmt.Sprint(i), to("+1"), asynq.MaxRetry(0))
	}
	for i := range 100 { // more than the pool has workers, on their way in
		r.enqueue("sms", fmt.Sprint("p", i), to(fmt.Sprint("+2", i)), asynq.MaxRetry(0))
	}
	seen.ran(t, 3)
	full := func(limit string) {
		if err := r.rdb.ConfigSet(t.Context(), "maxmemory", limit).Err(); err != nil {
			t.Fatal(err)
		}
	}
	full("100kb")
	before := r.logs.Len()
	end := time.Now().Add(5 * time.Second)
	r.eventually("5s", func() bool { return time.Now().After(end) })
	full("0")
	r.eventually("an empty queue", func() bool { return r.queueInfo().Size == 0 })
	var lines []string
	for _, e := range r.logs.All()[before:] {
		lines = append(lines, e.Level.String()+" "+e.Message)
	}
	if len(lines) > 60 {
		t.Errorf("%d lines are logged:\n%s", len(lines), strings.Join(lines, "\n"))
	}
	t.Logf("%d lines", len(lines))
	for i := range n {
		if got := seen.count(fmt.Sprint(i)); got != 1 {
			t.Errorf("task %d ran %d times", i, got)
		}
	}
	var one runs
	for _, run := range seen.all() {
		if run.payload == to("+1") {
			one.list = append(one.list, run)
		}
	}
	r.wantGaps(&one, 300*ms)
	r.wantQueue(n+100, 0, 0)
	w.want(t, 0, 0)
}

// Redis goes away while tasks are deferred and comes back: nobody is lost, the
// limits hold, and no task fails.
func TestOutageWhileTasksWait(t *testing.T) {
	t.Parallel()
	r, w, seen := newRig(t, redistest.AOF()), &witness{}, &runs{}
	cfg := policies(phone("sms", 500*ms))
	cfg.Asynq, cfg.Servers = w.config(), 4 // which log as much as one
	r.start(seen.handler(), cfg)
	const n = 8
	for i := range n {
		r.enqueue("sms", fmt.Sprint(i), to("+1"), asynq.MaxRetry(0))
	}
	seen.ran(t, 2)
	r.srv.Kill()
	end := time.Now().Add(4 * time.Second)
	r.eventually("4s", func() bool { return time.Now().After(end) })
	before := r.logs.Len()
	r.srv.StartAgain()
	seen.ran(t, n)
	r.eventually("an empty queue", func() bool { q, err := r.insp.GetQueueInfo("default"); return err == nil && q.Size == 0 })
	r.wantGaps(seen, 500*ms)
	if len(seen.all()) != n {
		t.Errorf("%d runs, want %d", len(seen.all()), n)
	}
	if before > 120 {
		t.Errorf("%d lines are logged in 4s", before)
	}
	r.wantQueue(n, 0, 0)
	w.want(t, 0, 0)
}
