package worker_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/headwayq/headway/queue/batch"
)

// A feeder that has no batch any more says why.
func TestVirtualBatchThatIsFedNoMoreSaysWhy(t *testing.T) {
	t.Parallel()
	for want, end := range map[string]func(*batchRig){
		"the batch has ended": func(h *batchRig) { h.ends() },
		"the batch is gone": func(h *batchRig) {
			if _, err := h.batches.Cancel(h.Context(), "default", "winter"); err != nil {
				h.Fatal(err)
			}
		},
		"the batch is another's": func(h *batchRig) {
			h.rdb.HSet(h.Context(), "hw:{default}:batch:winter", "owner", "12345678")
		},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := virtualBatchRig(t)
				h.pool(1)
				h.takes = 100 * ms
				h.feed(map[string]batch.Source{"messages": messages(50, 1)})
				h.begin(batch.Spec{ID: "winter", Type: "sms", Source: "messages", Window: 3})
				h.until("some ran", func() bool { return len(h.seen.all()) > 5 })
				end(h)
				time.Sleep(time.Second)
				said := 0
				for _, line := range h.logs.All() {
					switch line.Message {
					case want:
						said++
					case "the batch has ended", "the batch is gone", "the batch is another's", "the batch is another's, or gone":
						t.Errorf("it says %q, want %q", line.Message, want)
					}
				}
				if said != 1 {
					t.Errorf("it says %q %d times, want once", want, said)
				}
			})
		})
	}
}
