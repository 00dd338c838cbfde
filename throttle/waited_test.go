package throttle_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/headwayq/headway/throttle"
)

// Acquire tells what was waited, as Guava's acquire does.
func TestAcquireTellsWhatWasWaited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, err := throttle.NewLocal("sms", throttle.Sliding(1, time.Minute), throttle.Config{})
		if err != nil {
			t.Fatal(err)
		}
		for n, want := range []time.Duration{0, time.Minute, time.Minute} {
			d, err := l.Policy().Acquire(t.Context(), throttle.Request{Key: key, Cost: 1})
			if err != nil || d.Waited < want-ms || d.Waited > want+ms {
				t.Errorf("Acquire %d = %v, %v, waited %v, want %v", n, d, err, d.Waited, want)
			}
		}
		d, err := l.TryAcquire(t.Context(), key, 1)
		if err != nil || d.Waited != 0 {
			t.Errorf("TryAcquire = %v, %v, waited %v, want 0", d, err, d.Waited)
		}
	})
}
