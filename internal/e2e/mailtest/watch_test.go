package mailtest

import (
	"strings"
	"testing"
	"time"

	"github.com/headwayq/headway/queue/batch"
)

func TestProgressText(t *testing.T) {
	t.Parallel()
	gate := gateOf(t, "09:00-21:00")
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	c := Clock{Zone: time.UTC}
	for _, test := range []struct {
		p    batch.Progress
		want string
	}{
		{
			batch.Progress{Spec: batch.Spec{Total: 240}, State: batch.Running, Now: noon.Add(-4 * time.Hour), Fed: true},
			"[------------------------] sent 0 of 240, 0 open, 0.0/s, end not known yet, running, gate shut",
		},
		{
			batch.Progress{Spec: batch.Spec{Total: 240}, State: batch.Running, Now: noon, Done: 100, Failed: 10, Refused: 10, Open: 60, Rate: 9.96, ExpectedEnd: noon.Add(time.Hour)},
			"[############------------] sent 100 of 240, 60 open, 10.0/s, end about 13:00, running, nobody feeds it",
		},
		{
			batch.Progress{Spec: batch.Spec{Total: 24}, State: batch.Running, Now: noon, Fed: true, Rate: 1, ExpectedEnd: noon.Add(20 * time.Hour)},
			"[------------------------] sent 0 of 24, 0 open, 1.0/s, end about Mar 2 08:00, running",
		},
		{
			batch.Progress{Spec: batch.Spec{Total: 3}, State: batch.Paused, Now: noon, Done: 1},
			"[########----------------] sent 1 of 3, 0 open, 0.0/s, end not known yet, paused",
		},
		{
			batch.Progress{Spec: batch.Spec{Total: 3}, State: batch.Ended, Now: noon, Done: 3, Ended: noon.Add(-time.Hour)},
			"[########################] sent 3 of 3, 0 open, 0.0/s, ended at 11:00, ended",
		},
	} {
		if got := ProgressText(test.p, c, gate); got != test.want {
			t.Errorf("ProgressText = %q, want %q", got, test.want)
		}
	}
}

// TestNoTick: a run whose schedule did not tick says so, and does not wait for ever.
func TestNoTick(t *testing.T) {
	t.Parallel()
	w := &Watch{Clock: Clock{Zone: time.UTC}, Tick: time.Now().Add(-tickLate / 2)}
	if _, err := w.look(t.Context()); err != nil {
		t.Errorf("look = %v, want none yet", err)
	}
	w.Tick = time.Now().Add(-tickLate - time.Second)
	if _, err := w.look(t.Context()); err == nil || !strings.Contains(err.Error(), "no batch came of the tick") {
		t.Errorf("look = %v, want that no batch came", err)
	}
}
