package batch

import (
	"context"
	"iter"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"
)

// A source that does not heed its context keeps Run from nothing: what it yields later is
// not enqueued, and its feeder does not call it a second time before it has returned.
func TestFeederOfASourceThatDoesNotHeedItsContext(t *testing.T) {
	t.Parallel()
	c := newClient(t, redistest.Client(t))
	b := NewControl(c)
	if _, err := b.Start(t.Context(), winter()); err != nil {
		t.Fatal(err)
	}
	var calls atomic.Int64
	asked, release, late := make(chan struct{}), make(chan struct{}), make(chan bool, 1)
	deaf := func(context.Context, Spec, Position) iter.Seq2[Element, error] {
		return func(yield func(Element, error) bool) {
			if calls.Add(1) == 1 {
				close(asked)
				<-release
				late <- yield(Element{ID: "late"}, nil)
				return
			}
			yield(Element{ID: "on-time"}, nil)
		}
	}
	f, err := NewFeeder(c, FeederConfig{Queues: []string{"default"}, Sources: map[string]Source{"messages": deaf}})
	if err != nil {
		t.Fatal(err)
	}
	run := func() (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx) }()
		return func() {
			t.Helper()
			cancel()
			select {
			case err := <-done:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(10 * time.Second):
				close(release)
				t.Fatal("Run has not returned 10 s after its context ended")
			}
		}
	}
	stop := run()
	<-asked
	stop()
	if p, err := b.Progress(t.Context(), "default", "winter"); err != nil || p.Fed {
		t.Errorf("Progress = %+v, %v, want it free for others", p, err)
	}
	if !f.holds("default", "winter") {
		t.Error("the feeder may take the batch again, and read its source twice at a time")
	}
	stop = run()
	defer func() { stop() }()
	close(release)
	if <-late {
		t.Error("the source is asked for more, want it to end")
	}
	within(t, "the batch is fed", func() bool {
		p, err := b.Progress(t.Context(), "default", "winter")
		return err == nil && p.Enqueued > 0
	})
	if n := clientOf(c).Redis().Exists(t.Context(), "asynq:{default}:t:batch:winter:late").Val(); n != 0 || calls.Load() < 2 {
		t.Errorf("what came late is enqueued (%d), by %d calls", n, calls.Load())
	}
}

// within polls until cond holds.
func within(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick, over := time.NewTicker(10*time.Millisecond), time.After(20*time.Second)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-over:
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}
