package worker_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/worker"
)

// A pool that may wait starts when Redis does. One that may not fails at once.
func TestStartWaitsForRedis(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	srv.Stop()
	seen := &runs{}
	core, logs := observer.New(zap.WarnLevel)
	quick := policies(phone("sms", time.Minute))
	quick.Logger = zap.New(core)
	impatient, err := worker.New(rdb, seen.handler(), quick)
	if err != nil {
		t.Fatal(err)
	}
	if err := impatient.Start(t.Context()); err == nil || !strings.Contains(err.Error(), srv.Addr()) || !strings.Contains(err.Error(), "WaitForRedis") {
		t.Errorf("a pool that does not wait starts without Redis: %v, want an error with the address and the remedy", err)
	}
	impatient.Shutdown()
	if n := logs.FilterMessageSnippet("has not answered yet").FilterField(zap.String("addr", srv.Addr())).Len(); n != 1 {
		t.Errorf("%d lines say that Redis has not answered yet, want 1 while go-redis dials again and again", n)
	}

	cfg := policies(phone("sms", time.Minute))
	cfg.WaitForRedis = true
	p, err := worker.New(rdb, seen.handler(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Shutdown)
	started := make(chan error, 1)
	go func() { started <- p.Start(t.Context()) }()
	never(t, 200*ms, "it starts without Redis", func() bool { return len(started) > 0 })
	srv.StartAgain()
	if err := <-started; err != nil {
		t.Fatalf("Start = %v", err)
	}
	enqueue(t, srv.Client(t), queue.NewTask("sms", []byte(to("+15550100"))))
	seen.ran(t, 1)
}

// A wait for Redis ends with its context, and by a Shutdown.
func TestWaitForRedisEnds(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	srv.Stop()
	cfg := policies(phone("sms", time.Minute))
	cfg.WaitForRedis = true
	gaveUp := errors.New("gave up")
	for name, c := range map[string]struct {
		end  func(p *worker.Pool, cancel context.CancelCauseFunc)
		want error
	}{
		"context":  {func(_ *worker.Pool, cancel context.CancelCauseFunc) { cancel(gaveUp) }, gaveUp},
		"shutdown": {func(p *worker.Pool, _ context.CancelCauseFunc) { p.Shutdown() }, worker.ErrClosed},
	} {
		p, err := worker.New(rdb, (&runs{}).handler(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.Start(ctx) }()
		never(t, 100*ms, "it starts without Redis", func() bool { return len(ended) > 0 })
		c.end(p, cancel)
		if err := <-ended; !errors.Is(err, c.want) {
			t.Errorf("%s: Start = %v, want %v", name, err, c.want)
		}
		cancel(nil)
		p.Shutdown()
	}
}
