package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// The slot of a queue moves to another node of a Cluster, or nobody serves it, while one task runs, one is about to be deferred by its
// handler, one waits for its instant, and one is enqueued. Each runs as often as it has to, no limit is broken, no failure is
// counted, and no line of the log shows a redirect.
func TestPoolWhileItsSlotMoves(t *testing.T) {
	t.Parallel()
	// what stays are the tasks' own keys
	for _, fault := range redistest.SlotFaults(func(key string) bool { return strings.Contains(key, ":t:") }) {
		t.Run(fault.Name, func(t *testing.T) {
			t.Parallel()
			poolWhileItsSlotMoves(t, fault)
		})
	}
}

func poolWhileItsSlotMoves(t *testing.T, fault redistest.SlotFault) {
	t.Helper()
	const window = 3 * time.Second
	shared, cluster := redistest.StartMovable(t, 2)
	rdb := fault.Client(t, shared)
	own, err := throttle.New(rdb, "own", throttle.Sliding(1, window), throttle.Config{})
	if err != nil {
		t.Fatal(err)
	}
	seen, entered := &runs{}, make(chan struct{})
	handler := asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		switch seen.note(ctx, task).id {
		case "runs":
			<-entered
		case "asks":
			<-entered
			return own.Acquire(ctx, "k", 1)
		}
		return nil
	})
	core, logs := observer.New(zapcore.DebugLevel)
	cfg := policies(phone("sms", window))
	cfg.Logger = zap.New(core)
	cfg.Asynq.Concurrency = 4
	p := started(t, rdb, handler, cfg)
	client, err := queue.NewClient(rdb, queue.ClientConfig{Policies: cfg.Policies})
	if err != nil {
		t.Fatal(err)
	}
	send := func(id, phone string) error {
		_, err := client.Enqueue(t.Context(), queue.NewTask("sms", []byte(to(phone)), asynq.TaskID(id), asynq.MaxRetry(0)))
		if err != nil && redistest.RawRedirect.MatchString(err.Error()) {
			t.Errorf("Enqueue = %v, want no redirect", err)
		}
		return err
	}
	for i, task := range []struct{ id, phone string }{{"runs", "+2"}, {"asks", "+3"}, {"before", "+1"}} {
		if err := send(task.id, task.phone); err != nil {
			t.Fatal(err)
		}
		seen.ran(t, i+1)
	}
	if err := send("waits", "+1"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "one waits", func() bool { return p.Stats().Deferred == 1 })
	if d, err := own.TryAcquire(t.Context(), "k", 1); err != nil || !d.Granted {
		t.Fatalf("TryAcquire = %v, %v, want it granted", d, err)
	}

	leave := fault.Enter(t, cluster, "{default}")
	began := time.Now()
	close(entered)
	sent := make(chan error, 1)
	go func() { sent <- send("new", "+4") }()
	switch { // the fault lasts
	case fault.Long:
		time.Sleep(window + time.Second)
	case !fault.Over:
		time.Sleep(100 * ms)
	}
	if err := leave(); err != nil {
		t.Fatal(err)
	}
	lasted := time.Since(began)
	if err := <-sent; err != nil {
		if fault.Over || fault.Moving && lasted < 500*ms {
			t.Errorf("Enqueue = %v, want it done", err)
		}
		eventually(t, "a task is enqueued", func() bool {
			err := send("new", "+4")
			return err == nil || errors.Is(err, asynq.ErrTaskIDConflict)
		})
	}
	inspector := asynq.NewInspectorFromRedisClient(shared)
	var info *asynq.QueueInfo
	defer func() {
		if t.Failed() {
			t.Logf("%v ran; %+v; %+v", seen.ids(), info, p.Stats())
		}
	}()
	eventually(t, "all are done", func() bool {
		info, err = inspector.GetQueueInfo("default")
		return err == nil && len(seen.all()) >= 5 && info.Size == 0
	})
	t.Logf("all done %v after the fault, which lasted for %v", (time.Since(began) - lasted).Round(ms), lasted.Round(ms))
	if info.ProcessedTotal != 5 || info.FailedTotal != 0 {
		t.Errorf("asynq counts %d processed and %d failed, want 5 and none", info.ProcessedTotal, info.FailedTotal)
	}
	for id, want := range map[string]int{"before": 1, "runs": 1, "waits": 1, "new": 1} {
		if n := seen.count(id); n != want {
			t.Errorf("%q ran %d times, want %d", id, n, want)
		}
	}
	if gap := seen.first("waits").at.Sub(seen.first("before").at); gap < window-window/10-5*ms {
		t.Errorf("two messages to one phone start %v apart, want %v less a tenth", gap, window)
	}
	for _, line := range logs.All() {
		if text := fmt.Sprint(line.Message, " ", line.ContextMap()); redistest.RawRedirect.MatchString(text) {
			t.Errorf("the log shows a redirect: %s", text)
		}
	}
}
