package e2e

import (
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/headwayq/headway/event"
)

func TestTally(t *testing.T) {
	t.Parallel()
	var tally Tally
	if got := tally.Phones(); len(got) != 0 {
		t.Errorf("Phones of the zero Tally = %v, want none", got)
	}
	for _, s := range []struct {
		phone string
		at    time.Duration
	}{
		{"+12025550117", 120 * sec}, {"+12025550117", 0}, {"+12025550117", 60 * sec}, // out of order
		{"+447700900142", 5 * sec},
		{"+61491570156", 0}, {"+61491570156", 90 * sec},
		{"+61491570157", 0}, {"+61491570157", 80 * sec},
	} {
		tally.Sent(s.phone, s.at.Microseconds())
	}
	tally.Failed()
	want := []PhoneTally{
		{Phone: "+12…0117", Sent: 3, MinGap: new(60 * sec)},
		{Phone: "+61…0157", Sent: 2, MinGap: new(80 * sec)},
		{Phone: "+61…0156", Sent: 2, MinGap: new(90 * sec)},
		{Phone: "+44…0142", Sent: 1},
	}
	if diff := cmp.Diff(want, tally.Phones()); diff != "" {
		t.Errorf("phones (-want +got):\n%s", diff)
	}
	if sent, failed := tally.Counts(); sent != 8 || failed != 1 {
		t.Errorf("Counts = %d, %d, want 8, 1", sent, failed)
	}
}

func TestTallyCountsManyAtOnce(t *testing.T) {
	t.Parallel()
	var tally Tally
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 100 {
				tally.Sent(p1, int64(i))
				tally.Failed()
				_ = tally.Phones()
			}
		})
	}
	wg.Wait()
	if sent, failed := tally.Counts(); sent != 800 || failed != 800 {
		t.Errorf("Counts = %d, %d, want 800, 800", sent, failed)
	}
}

func TestWatch(t *testing.T) {
	t.Parallel()
	var w Watch
	start := time.Unix(1_000_000, 0)
	if got := w.NextIn(start); got != 0 {
		t.Errorf("nothing deferred: next in %v, want 0", got)
	}
	o := w.Observer()
	deferred := func(id string, at time.Duration) {
		o.Deferred(t.Context(), event.Deferred{Task: event.Task{ID: id}, At: start.Add(at)})
	}
	for _, step := range []struct {
		happens func()
		now     time.Duration // after start
		want    time.Duration
	}{
		{func() { deferred("a", 60*sec) }, 0, 60 * sec},
		{func() { deferred("b", 50*sec) }, 1 * sec, 49 * sec},
		{func() { o.Moved(t.Context(), event.Moved{Task: event.Task{ID: "b"}, At: start.Add(70 * sec)}) }, 1 * sec, 59 * sec},
		{func() { o.Woken(t.Context(), event.Woken{Task: event.Task{ID: "a"}}) }, 59 * sec, 11 * sec},
		{func() { deferred("c", 65*sec) }, 66 * sec, 4 * sec}, // another process woke c
		{func() { o.Granted(t.Context(), event.Granted{Task: event.Task{ID: "b"}}) }, 66 * sec, 0},
	} {
		step.happens()
		if got := w.NextIn(start.Add(step.now)); got != step.want {
			t.Errorf("%v after the start: next in %v, want %v", step.now, got, step.want)
		}
	}
	o.Granted(t.Context(), event.Granted{Promised: start, Late: 3 * time.Millisecond})
	if diff := cmp.Diff([]time.Duration{3 * time.Millisecond}, w.Lateness()); diff != "" {
		t.Errorf("lateness: only of those that waited (-want +got):\n%s", diff)
	}
}
