package worker_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"
)

// lineOf defers n tasks to the phone +1, one by one: that is the order of the
// line, and it is returned.
func (r *rig) lineOf(n int) []string {
	r.Helper()
	var ids []string
	for i := range n {
		ids = append(ids, fmt.Sprintf("s%d", i))
	}
	r.deferred(ids...)
	return ids
}

// One worker is busy while a line becomes due. Now and then the waker takes a
// woken task for lost and wakes the next: it comes behind the one before it.
func TestLineKeepsItsOrderWhileWorkersAreBusy(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	release := make(chan struct{})
	r.exhausted(time.Second, asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		if task.Type() == "block" {
			<-release
			return nil
		}
		seen.note(ctx, task)
		return nil
	}), asynq.Config{Concurrency: 1})
	want := r.lineOf(5)
	r.enqueue("block", "block", "{}")
	r.eventually("three woken", func() bool { return r.queueInfo().Pending >= 3 })
	close(release)
	seen.ran(t, len(want))
	if got := seen.ids(); !slices.Equal(got, want) {
		t.Errorf("they ran in the order %v, want %v", got, want)
	}
	r.wantGaps(seen, time.Second)
}

// A whole line becomes due while its queue is paused.
func TestLineKeepsItsOrderInAPause(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	r.exhausted(time.Second, seen.handler(), asynq.Config{Concurrency: 1})
	want := r.lineOf(6)
	if err := r.insp.PauseQueue("default"); err != nil {
		t.Fatal(err)
	}
	r.eventually("all woken", func() bool { return r.queueInfo().Pending+len(seen.all()) == len(want) })
	if err := r.insp.UnpauseQueue("default"); err != nil {
		t.Fatal(err)
	}
	seen.ran(t, len(want))
	if got := seen.ids(); !slices.Equal(got, want) {
		t.Errorf("they ran in the order %v, want %v", got, want)
	}
	r.wantGaps(seen, time.Second)
}
