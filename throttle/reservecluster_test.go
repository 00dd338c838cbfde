package throttle_test

import (
	"errors"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// TestReservationOnCluster: a slot that granted takes its grant back while the slot of a wider rule refuses, or when
// its answer is lost, and with it the token. The reservation is granted all the same.
func TestReservationOnCluster(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]bool{"the provider refuses": false, "an answer of the provider is lost": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.StartCluster(t, 3)
			lost := &lostHook{tag: "{acme}"}
			rdb.AddHook(lost)
			p := clusterPolicy(t, rdb, throttle.Sliding(1, 100*time.Millisecond), throttle.Sliding(1, 5*time.Second))
			first, err := p.Reserve(t.Context(), clusterRequest(1))
			if err != nil || !first.Granted() {
				t.Fatalf("Reserve = %v, %v, want a grant", first, err)
			}
			v, err := p.Reserve(t.Context(), clusterRequest(2))
			if err != nil || v.Granted() {
				t.Fatalf("Reserve = %v, %v, want a place", v, err)
			}
			if fail {
				time.Sleep(v.Delay())
				lost.armed.Store(true)
				if _, err := v.Take(t.Context()); !errors.Is(err, throttle.ErrUnavailable) {
					t.Fatalf("Take = %v, want %v", err, throttle.ErrUnavailable)
				}
			}
			if err := v.Wait(t.Context()); err != nil {
				t.Errorf("Wait = %v, want the grant", err)
			}
		})
	}
}
