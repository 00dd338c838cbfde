package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/headwayq/headway/worker"
)

func TestWatch(t *testing.T) {
	t.Parallel()
	var w watch
	start := time.Unix(1_000_000, 0)
	if got := w.nextIn(start); got != 0 {
		t.Errorf("nothing deferred: next in %v, want 0", got)
	}
	for _, step := range []struct {
		kind worker.EventKind
		task string
		at   time.Duration // after start
		now  time.Duration
		want time.Duration
	}{
		{worker.EventDeferred, "a", 60 * sec, 0, 60 * sec},
		{worker.EventDeferred, "b", 50 * sec, 1 * sec, 49 * sec},
		{worker.EventMoved, "b", 70 * sec, 1 * sec, 59 * sec},
		{worker.EventWoken, "a", 60 * sec, 59 * sec, 11 * sec},
		{worker.EventDeferred, "c", 65 * sec, 66 * sec, 4 * sec}, // another process woke c
		{worker.EventGranted, "b", 70 * sec, 66 * sec, 0},
	} {
		w.Observe(worker.Event{Kind: step.kind, Task: step.task, At: start.Add(step.at)})
		if got := w.nextIn(start.Add(step.now)); got != step.want {
			t.Errorf("%+v: next in %v, want %v", step, got, step.want)
		}
	}
	w.Observe(worker.Event{Kind: worker.EventGranted, Promised: start, Late: 3 * time.Millisecond})
	if diff := cmp.Diff([]time.Duration{3 * time.Millisecond}, w.lateness()); diff != "" {
		t.Errorf("lateness: only of those that waited (-want +got):\n%s", diff)
	}
}
