package worker_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// Tasks of 20 ms by a rate and by leases of half a minute. A task that waits
// for a lease keeps its booking in the rate, and its instant is the lease's end. That comes
// nearer as leases are given back: no task may be left with its first instant.
func TestVirtualInstantsComeNearerWithTheLeases(t *testing.T) {
	t.Parallel()
	const tasks = 200
	for name, tt := range map[string]struct {
		rule queue.Rule
		most time.Duration
	}{
		"provider": {queue.Rule{Name: "provider", Limit: throttle.Sliding(10, 100*ms), Constant: "acme"}, 4 * time.Second},
		"phone":    {queue.Rule{Name: "phone", Limit: throttle.Sliding(1, 500*ms), Key: queue.MustJSONKey("$.to")}, 6 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				slots := queue.Rule{Name: "slots", Limit: throttle.Concurrent(3, 30*time.Second), Constant: "gateway"}
				h := virtualBatchRig(t, queue.Policy{Type: "sms", Rules: []queue.Rule{tt.rule, slots}})
				h.takes = 20 * ms
				h.pool(10)
				client, err := queue.NewClient(h.connect(), queue.ClientConfig{Policies: h.policies})
				if err != nil {
					t.Fatal(err)
				}
				for i := range tasks {
					if _, err := client.Enqueue(t.Context(), queue.NewTask("sms", []byte(to(fmt.Sprint("+", i%20))))); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(tt.most)
				if ran := len(h.seen.all()); ran != tasks {
					t.Errorf("%d of %d tasks ran in %v, want all", ran, tasks, tt.most)
				}
			})
		})
	}
}
