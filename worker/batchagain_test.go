package worker_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/throttle"
)

// A batch that is started again under the id of one that was just cancelled begins at the
// beginning: neither its feeder nor a pool takes it for the one before.
func TestVirtualBatchStartedAgainAfterACancel(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]time.Duration{"at once": 0, "soon": 100 * ms, "later": 400 * ms} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := sized(150, 500) // no round comes that far
				h := virtualBatchRig(t, phoneAndProvider(time.Second, throttle.Sliding(10, 100*ms)))
				h.pool(4)
				h.feed(map[string]batch.Source{"messages": messages(n, 3*n/5)})
				spec := batch.Spec{ID: "winter", Type: "sms", Source: "messages", Total: int64(n), Window: 100}
				for round := range sized(2, 5) {
					h.begin(spec)
					h.until("some ran", func() bool { return h.progress("winter").Done > int64(50+20*round) })
					time.Sleep(time.Duration(round) * 70 * ms)
					if _, err := h.batches.Cancel(t.Context(), "default", "winter"); err != nil {
						t.Fatal(err)
					}
					h.until("it is gone", func() bool {
						_, err := h.batches.Progress(t.Context(), "default", "winter")
						return errors.Is(err, batch.ErrNotFound)
					})
					time.Sleep(after)
				}
				h.begin(spec)
				if p := h.ends(); p.Done != int64(n) || p.Dropped != 0 || p.Enqueued != int64(n) {
					t.Errorf("the last one ended as %+v, want %d done", p, n)
				}
			})
		})
	}
}

// While the last task of a cancelled batch runs, the batch can't be started again.
func TestVirtualBatchStartedWhileACancelledOneRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := virtualBatchRig(t)
		h.takes = 5 * time.Second
		h.pool(1)
		h.feed(map[string]batch.Source{"messages": messages(10, 1)})
		spec := batch.Spec{ID: "winter", Type: "sms", Source: "messages"}
		h.begin(spec)
		h.until("one runs", func() bool { return len(h.seen.all()) == 1 })
		if p, err := h.batches.Cancel(t.Context(), "default", "winter"); err != nil || p.Open != 1 {
			t.Fatalf("Cancel = %+v, %v, want one open", p, err)
		}
		if started, err := h.batches.Start(t.Context(), spec); started || !errors.Is(err, batch.ErrState) {
			t.Errorf("Start = %v, %v, want ErrState", started, err)
		}
	})
}

// A source that yields nothing but errors, and never ends, costs neither the lease nor a
// flood of lines; the feeder ends when it is stopped.
func TestVirtualBatchOfASourceOfErrors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := virtualBatchRig(t)
		n := 0
		stop := h.feed(map[string]batch.Source{"messages": func(context.Context, batch.Spec, batch.Position) iter.Seq2[batch.Element, error] {
			return func(yield func(batch.Element, error) bool) {
				for n++; yield(batch.Element{}, errors.New("broken")); n++ {
					if n > 100_000 {
						return
					}
				}
			}
		}})
		h.begin(batch.Spec{ID: "winter", Type: "sms", Source: "messages"})
		for range 100 {
			time.Sleep(100 * ms)
			if p := h.progress("winter"); p.Now.Sub(p.Started) > time.Second && !p.Fed {
				t.Fatal("the lease was not renewed")
			}
		}
		stop()
		if lines := h.logs.FilterMessage("the source of a batch failed").Len(); lines == 0 || lines > 20 {
			t.Errorf("%d lines say that it fails, want some", lines)
		}
		if n > 1000 {
			t.Errorf("%s errors were read in 10 s, want far fewer", fmt.Sprint(n))
		}
	})
}
