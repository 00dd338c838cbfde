package inspect

import (
	"errors"
	"testing"

	"github.com/headwayq/headway/throttle"
)

// To pause what is paused, and to resume what is not, is an error that says so.
func TestPauseTwice(t *testing.T) {
	t.Parallel()
	d := newRig(t, perMinute())
	i, why := d.inspector(throttle.Config{}, perMinute()), Reason{Who: "ann", Why: "a test"}
	for n, step := range []struct {
		pause bool
		want  error
	}{{false, ErrNotPaused}, {true, nil}, {true, ErrPaused}, {false, nil}, {false, ErrNotPaused}} {
		do := i.ResumeQueue
		if step.pause {
			do = i.PauseQueue
		}
		if err := do(t.Context(), "default", why); !errors.Is(err, step.want) {
			t.Errorf("step %d: %v, want %v", n, err, step.want)
		}
	}
}
