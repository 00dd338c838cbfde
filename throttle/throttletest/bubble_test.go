package throttletest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/headwayq/headway/throttle"
)

// Blocking calls are tested in a bubble, with a limiter that was made there: two
// hours pass at once.
func TestBlockingCallsInABubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hourly := local(t, throttle.Sliding(1, time.Hour))
		begin := time.Now()
		for range 3 {
			if err := hourly.Acquire(t.Context(), "tenant", 1); err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(begin); took != 2*time.Hour {
			t.Errorf("three reports took %v, want 2h", took)
		}
	})
}
