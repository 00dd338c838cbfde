package worker_test

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/worker"
)

// commands is how many commands Redis has run.
func (r *rig) commands() int {
	r.Helper()
	_, rest, _ := strings.Cut(r.rdb.Info(r.Context(), "stats").Val(), "total_commands_processed:")
	text, _, _ := strings.Cut(rest, "\r\n")
	n, err := strconv.Atoi(text)
	if err != nil {
		r.Fatal(err)
	}
	return n
}

// Stop is what asynq's Server.Stop is: no more tasks are fetched, and the one that runs goes on
// to its end. A pool that is stopped asks Redis no more than one that is idle: 9,194 commands a
// second were seen where the bound is 300.
func TestStopFetchesNoMoreAndKeepsQuiet(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	begun, end := make(chan struct{}), make(chan struct{})
	var ran atomic.Int64
	p, _ := r.start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		if ran.Add(1) == 1 {
			close(begun)
			<-end
		}
		return nil
	}), worker.Config{})
	r.enqueue("any", "running", `{}`)
	<-begun
	p.Stop()
	r.enqueue("any", "waiting", `{}`)
	before, since := r.commands(), time.Now()
	time.Sleep(time.Second) // Redis runs commands meanwhile, or does not
	if n, took := r.commands()-before, time.Since(since); float64(n) > 300*took.Seconds() {
		t.Errorf("%d commands in %v after Stop, want at most 300 a second", n, took)
	}
	if !r.is("waiting", asynq.TaskStatePending) || ran.Load() != 1 {
		t.Errorf("after Stop another task was fetched: %v, %d ran", r.info("waiting").State, ran.Load())
	}
	close(end)
	r.eventually("the running task has ended", func() bool { return r.queueInfo().ProcessedTotal == 1 })
	if !r.is("waiting", asynq.TaskStatePending) {
		t.Error("after the first task another one was fetched")
	}
}
