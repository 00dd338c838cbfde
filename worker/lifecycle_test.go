package worker_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

func TestRunAndShutdown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p, err := worker.New(r.rdb, new(runs).handler(), worker.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	r.eventually("a server", func() bool { s, err := r.insp.Servers(); return err == nil && len(s) > 0 })
	if err := p.Run(t.Context()); err == nil || errors.Is(err, worker.ErrClosed) {
		t.Errorf("a second Run = %v, want an error that says that it runs", err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Run = %v, want nil after its context", err)
	}
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(p.Shutdown)
	}
	wg.Wait()
	if err := p.Run(t.Context()); !errors.Is(err, worker.ErrClosed) {
		t.Errorf("Run after Shutdown = %v, want %v", err, worker.ErrClosed)
	}
}

func TestShutdownBeforeRun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p, err := worker.New(r.rdb, new(runs).handler(), worker.Config{})
	if err != nil {
		t.Fatal(err)
	}
	p.Shutdown()
	p.Shutdown()
	if err := p.Run(t.Context()); !errors.Is(err, worker.ErrClosed) {
		t.Errorf("Run after Shutdown = %v, want %v", err, worker.ErrClosed)
	}
}

func TestShutdownEndsRun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p, err := worker.New(r.rdb, new(runs).handler(), worker.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- p.Run(t.Context()) }()
	r.eventually("a server", func() bool { s, err := r.insp.Servers(); return err == nil && len(s) > 0 })
	p.Shutdown()
	if err := <-ended; err != nil {
		t.Errorf("Run = %v, want nil", err)
	}
}

func TestRunWithoutRedisSaysSo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.srv.Stop()
	p, err := worker.New(r.rdb, new(runs).handler(), worker.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "worker: ") {
		t.Errorf("Run without Redis = %v, want an error", err)
	}
	r.srv.StartAgain()
	p.Shutdown()
}

func TestSeveralServersShareTheConcurrency(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	cfg := policies(phone("sms", 100*ms))
	cfg.Servers, cfg.Asynq.Concurrency = 3, 5
	r.start(seen.handler(), cfg)
	r.eventually("three servers", func() bool { s, err := r.insp.Servers(); return err == nil && len(s) == 3 })
	servers, err := r.insp.Servers()
	if err != nil {
		t.Fatal(err)
	}
	var shares []int
	for _, s := range servers {
		shares = append(shares, s.Concurrency)
	}
	slices.Sort(shares)
	if !slices.Equal(shares, []int{1, 2, 2}) {
		t.Errorf("the servers have %v workers, want 1 2 2", shares)
	}
	for i := range 60 {
		r.enqueue("sms", string(rune('A'+i)), to(string(rune('a'+i%12))), asynq.MaxRetry(0))
	}
	seen.ran(t, 60)
	r.eventually("an empty queue", func() bool { return r.queueInfo().Size == 0 })
	r.wantQueue(60, 0, 0)
}

// A task that was granted 900 ms ahead waits them in its slot. A shutdown hands
// it back at once, and it keeps the first place in the line.
func TestShutdownEndsAnInlineWait(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	const per = 950 * ms
	cfg := policies(phone("sms", per))
	cfg.Throttle.InlineWait = time.Second
	p, stop := r.start(seen.handler(), cfg)
	lim := p.Limiter("sms")
	spent := r.take(lim, "+1").At
	r.enqueue("sms", "a", to("+1"), asynq.MaxRetry(0))
	r.eventually("granted", func() bool { return p.Stats().Admissions == 1 })
	if _, err := lim.Policy().Book(t.Context(), throttle.Request{Key: "+1", Cost: 1, Job: "other"}); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	stop()
	if took := time.Since(start); took > 600*ms {
		t.Errorf("Shutdown took %v", took)
	}
	if n := len(seen.all()); n > 0 {
		t.Fatal("the handler ran before its instant")
	}
	if s := r.peek(lim, "+1"); s.Waiting != 2 || s.Booked[0].Job != worker.Job("default", "a") {
		t.Errorf("in the line: %+v, want the task first of two", s.Booked)
	}
	if !r.is("a", asynq.TaskStateRetry) {
		t.Errorf("the task: %+v, want it deferred", r.info("a"))
	}
	if s := p.Stats(); len(s.Rules) > 0 {
		t.Errorf("the rules that made it wait: %+v, want none: it was granted", s.Rules)
	}
	next, _ := r.start(seen.handler(), policies(phone("sms", per)))
	seen.ran(t, 1)
	if gap := seen.first("a").grant.At.Sub(spent); gap < per {
		t.Errorf("granted %v after the last, want at least %v", gap, per)
	}
	r.eventually("done", func() bool { return r.info("a") == nil })
	if s := next.Stats(); slices.ContainsFunc(s.Rules, func(of worker.RuleStats) bool { return of.Waits > of.Bound }) {
		t.Errorf("the rules that made it wait: %+v, want none for which the pool before had handed it back", s.Rules)
	}
	r.wantQueue(1, 0, 0)
}

func TestShutdownGivesHandlersTheirTime(t *testing.T) {
	t.Parallel()
	for _, enough := range []bool{true, false} {
		r, began := newRig(t), make(chan struct{})
		cfg := worker.Config{Asynq: asynq.Config{ShutdownTimeout: 500 * ms}}
		if enough {
			cfg.Asynq.ShutdownTimeout = within
		}
		_, stop := r.start(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
			close(began)
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
			return ctx.Err()
		}), cfg)
		r.enqueue("any", "a", "{}", asynq.MaxRetry(0))
		<-began
		stop()
		if enough && r.info("a") != nil {
			t.Errorf("time enough: the task is %v, want done", r.info("a").State)
		}
		if !enough && !r.is("a", asynq.TaskStatePending) {
			t.Errorf("not time enough: the task is %+v, want pending", r.info("a"))
		}
	}
}

func TestConfigNamesAllFaults(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	cfg := worker.Config{
		Servers: 65, Policies: []queue.Policy{{Type: "sms", Rules: []queue.Rule{{}}}},
		Throttle: throttle.Config{Prefix: "a b", InlineWait: time.Minute},
		Asynq: asynq.Config{
			Concurrency: -1, Queues: map[string]int{"": 1, "a{b": 1, "c": 0},
			TaskCheckInterval: time.Second, GroupGracePeriod: ms, ShutdownTimeout: -1,
		},
	}
	_, err := worker.New(r.rdb, new(runs).handler(), cfg)
	for _, want := range []error{worker.ErrInvalidConfig, queue.ErrInvalidPolicy, throttle.ErrInvalidConfig} {
		if !errors.Is(err, want) {
			t.Errorf("New = %v, want %v among it", err, want)
		}
	}
	for _, want := range []string{
		"Servers", "Concurrency", "without a name", `"a{b"`, `"c" has priority 0`, "TaskCheckInterval",
		"GroupGracePeriod", "ShutdownTimeout", "no name", "neither a limit", "Prefix", "InlineWait",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not name %s: %v", want, err)
		}
	}
	if err := (worker.Config{}).Validate(); err != nil {
		t.Errorf("the zero Config: %v", err)
	}
}

func TestVirtualOtherNumbersAreLoggedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clients, _ := mini(t, 2)
		var logs []*observer.ObservedLogs
		for i, rdb := range clients {
			core, seen := observer.New(zapcore.WarnLevel)
			logs = append(logs, seen)
			cfg := policies(phone("sms", time.Duration(i+1)*time.Minute), phone("mail", time.Minute))
			cfg.Logger, cfg.Servers = zap.New(core), 1
			started(t, rdb, new(runs).handler(), cfg)
		}
		time.Sleep(125 * time.Second) // of the bubble: two comparisons after the first
		for i, l := range logs {
			lines := l.FilterMessageSnippet("other numbers").All()
			if len(lines) != 1 || lines[0].ContextMap()["rule"] != "sms" {
				t.Errorf("pool %d logged %v, want one line about sms", i, lines)
			}
		}
	})
}

func TestAdapterOnAPlainServer(t *testing.T) {
	t.Parallel()
	r, w, seen := newRig(t), &witness{}, &runs{}
	cfg := policies(phone("sms", 300*ms))
	cfg.Logger, cfg.Asynq.Concurrency = r.log, 2
	a, err := worker.NewAdapter(r.rdb, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	base := w.config()
	base.Concurrency = 2
	srv := asynq.NewServerFromRedisClient(a.Client(), a.Server(base))
	if err := srv.Start(a.Handler(seen.handler())); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "b", "c"} {
		r.enqueuePlain("sms", id, to("+1"), asynq.MaxRetry(0))
	}
	seen.ran(t, 3)
	r.eventually("an empty queue", func() bool { return r.queueInfo().Size == 0 })
	a.Stop()
	srv.Shutdown()
	a.Close()
	a.Close()
	r.wantGaps(seen, 300*ms)
	r.wantQueue(3, 0, 0)
	w.want(t, 0, 0)
	r.quiet()
}

// An asynq that is not as pinned would archive a task that is throttled on its
// last attempt: it waits in its slot, in a shutdown too.
func TestUnknownAsynqWaitsInPlace(t *testing.T) {
	t.Parallel()
	r, w, seen := newRig(t), &witness{}, &runs{}
	const per = 1600 * ms
	cfg := policies(phone("sms", per))
	cfg.Asynq = w.config()
	p, _ := r.start(seen.handler(), cfg)
	p.Adapter().DistrustAsynq()
	spent := r.take(p.Limiter("sms"), "+1").At
	r.enqueue("sms", "last", to("+1"), asynq.MaxRetry(0))
	r.eventually("in line", func() bool { return r.peek(p.Limiter("sms"), "+1").Waiting == 1 })
	r.enqueue("sms", "other", to("+1"), asynq.MaxRetry(1))
	r.eventually("the other deferred", func() bool { return r.is("other", asynq.TaskStateRetry) })
	if !r.is("last", asynq.TaskStateActive) {
		t.Errorf("on its last attempt: %+v, want active", r.info("last"))
	}
	seen.ran(t, 2)
	if gap := seen.first("last").grant.At.Sub(spent); gap < per || gap > per+900*ms {
		t.Errorf("granted %v after the last permit, want %v", gap, per)
	}
	if n := p.Stats().Deferred; n != 1 {
		t.Errorf("%d deferrals, want 1", n)
	}
	w.want(t, 0, 0)
}

// So does one whose provider asks to come again, until it was asked too often, and one whose
// limit can't be read.
func TestUnknownAsynqPostponesInPlace(t *testing.T) {
	t.Parallel()
	r, w, seen := newRig(t), &witness{}, &runs{}
	cfg := policies(phone("sms", ms))
	cfg.Policies[0].MaxPostpones = 2
	cfg.Asynq = w.config()
	noted := seen.handler()
	p, _ := r.start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		_ = noted.ProcessTask(ctx, task)
		id, _ := asynq.GetTaskID(ctx)
		if id == "last" && seen.count(id) > 2 {
			return nil
		}
		return worker.RetryAfter(errBusy, 300*ms)
	}), cfg)
	p.Adapter().DistrustAsynq()
	r.enqueue("sms", "last", to("+1"), asynq.MaxRetry(0))
	r.eventually("done", func() bool { return seen.count("last") == 3 && r.info("last") == nil })
	all := seen.all()
	for i, n := range all[1:] {
		if gap := n.at.Sub(all[i].at); gap < 300*ms {
			t.Errorf("run %d came %v after the one before, want 300ms or more", i+2, gap)
		}
	}
	if s := p.Stats(); s.Deferred != 0 || s.Postponed != 2 || s.Archived != 0 {
		t.Errorf("%d deferred, %d postponed, %d archived, want 0, 2, 0", s.Deferred, s.Postponed, s.Archived)
	}
	w.want(t, 0, 0)
	wantNobody(t, r, "last")
	r.enqueue("sms", "ever", to("+1"), asynq.MaxRetry(0))
	r.eventually("archived", func() bool { return r.is("ever", asynq.TaskStateArchived) })
	if n := seen.count("ever"); n != 3 {
		t.Errorf("it ran %d times, want 3: it may be postponed twice", n)
	}
}

func TestUnknownAsynqWaitsInPlaceForAnUnreadableLimit(t *testing.T) {
	t.Parallel()
	r, w, seen := newRig(t), &witness{}, &runs{}
	cfg := policies(phone("sms", ms))
	cfg.Asynq = w.config()
	r.rdb.Set(t.Context(), "hw:limit:sms", "junk", 0)
	p, _ := r.start(seen.handler(), cfg)
	p.Adapter().DistrustAsynq()
	r.enqueue("sms", "last", to("+1"), asynq.MaxRetry(0))
	r.eventually("it is told", func() bool { return r.logs.FilterMessageSnippet("a rule can't be asked").Len() > 0 })
	never(t, 500*ms, "it left its worker slot", func() bool { return !r.is("last", asynq.TaskStateActive) })
	if err := p.Limiter("sms").UnsetLimit(t.Context()); err != nil {
		t.Fatal(err)
	}
	seen.ran(t, 1)
	r.eventually("done", func() bool { return r.info("last") == nil })
	if n := p.Stats().Deferred; n != 0 {
		t.Errorf("%d deferrals, want none", n)
	}
	w.want(t, 0, 0)
}

func TestUnknownAsynqHandsBackAtItsOwnShutdown(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	cfg := policies(phone("sms", time.Hour))
	cfg.Asynq.ShutdownTimeout = 300 * ms
	p, stop := r.start(seen.handler(), cfg)
	p.Adapter().DistrustAsynq()
	r.take(p.Limiter("sms"), "+1")
	r.enqueue("sms", "a", to("+1"), asynq.MaxRetry(0))
	r.eventually("in line", func() bool { return r.peek(p.Limiter("sms"), "+1").Waiting == 1 })
	stop()
	if !r.is("a", asynq.TaskStatePending) || p.Stats().Deferred != 0 {
		t.Errorf("after the shutdown: %+v and %d deferrals, want pending and none", r.info("a"), p.Stats().Deferred)
	}
	r.wantQueue(0, 0, 0)
	never(t, 300*ms, "a run without a grant", func() bool { return len(seen.all()) > 0 })
}
