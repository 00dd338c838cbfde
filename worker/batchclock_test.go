package worker_test

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headwayq/headway/queue/batch"
)

// A batch that is paused for a moment goes on without a feeder, too. Pools that do not know
// yet that it goes on must not defer its tasks for an hour.
func TestVirtualBatchResumedWithoutAFeeder(t *testing.T) {
	t.Parallel()
	for _, paused := range []time.Duration{100 * ms, 2 * time.Second} {
		t.Run(paused.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := virtualBatchRig(t, provider())
				h.pool(2)
				stop := h.feed(map[string]batch.Source{"messages": messages(200, 1)})
				h.begin(batch.Spec{ID: "winter", Type: "sms", Source: "messages"})
				h.until("some ran", func() bool { return len(h.seen.all()) > 50 })
				stop()
				if err := h.batches.Pause(t.Context(), "default", "winter"); err != nil {
					t.Fatal(err)
				}
				time.Sleep(paused)
				if err := h.batches.Resume(t.Context(), "default", "winter"); err != nil {
					t.Fatal(err)
				}
				time.Sleep(20 * time.Second)
				if p := h.progress("winter"); p.Open > 0 {
					t.Errorf("%d of %d wait 20 s after it was resumed, want none", p.Open, p.Enqueued)
				}
			})
		})
	}
}

// The clock of Redis went back by an hour, as a failover may have it: what was written
// before it, the lease of a feeder that died or a resume, keeps no batch standing.
func TestVirtualBatchWhoseClockWentBack(t *testing.T) {
	t.Parallel()
	for name, fields := range map[string][]string{"a dead feeder's lease": {"owner", "12345678", "until"}, "a resume": {"resumed"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := virtualBatchRig(t, provider())
				h.pool(2)
				h.begin(batch.Spec{ID: "winter", Type: "sms", Source: "messages", Total: 200, Window: 20})
				ahead := strconv.FormatInt(time.Now().Add(time.Hour).UnixMicro(), 10)
				h.rdb.HSet(t.Context(), "hw:{default}:batch:winter", append(fields, ahead))
				if h.progress("winter").Fed {
					t.Error("it is said to be fed")
				}
				h.feed(map[string]batch.Source{"messages": messages(200, 1)})
				time.Sleep(20 * time.Second)
				if n := len(h.seen.all()); n != 200 {
					t.Errorf("%d ran, want all 200", n)
				}
			})
		})
	}
}
