package main

import (
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
