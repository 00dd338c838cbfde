package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// TestRecord: every kind on a real Redis, with windows of 100 ms.
func TestRecord(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	const window = 100 * ms
	short := []time.Duration{0, 80 * ms, 80 * ms, 80 * ms, 80 * ms, 300 * ms}
	for _, p := range []picture{
		{"sliding", throttle.Sliding(2, window), 0},
		{"fixed", throttle.Fixed(2, window), 1},
		{"calendar", throttle.Calendar(6, throttle.Minute, "UTC"), 6},
		{"bucket", throttle.Bucket(2, window, 3), 2},
		{"bucket-step", throttle.SteppedBucket(2, window, 3), 2},
		{"gcra", throttle.GCRA(2, window, 2), 1},
		{"leaky", throttle.Leaky(2, window), 0},
		{"smooth", throttle.Smooth(2, window, 2), 2},
		{"warmup", throttle.WarmUp(2, window, window, 3), 0},
	} {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			r, err := record(t.Context(), rdb, p.limit, short, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			if err := r.check(p); err != nil {
				t.Error(err)
			}
			if len(r.jobs) != len(short) || r.jobs[0].arrival != 0 {
				t.Fatalf("recorded %v, want %d jobs from 0 on", r.jobs, len(short))
			}
			for i, j := range r.jobs[1:] {
				if j.arrival < r.jobs[i].arrival {
					t.Errorf("job %d came at %v, before the one ahead of it, at %v", i+1, j.arrival, r.jobs[i].arrival)
				}
			}
			elements(t, draw(p, r))
		})
	}
}

func TestRecordEndsWithItsContext(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	stopped := errors.New("stopped")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*ms, stopped)
	defer cancel()
	// The second job waits an hour.
	_, err := record(ctx, rdb, throttle.Sliding(1, time.Hour), []time.Duration{0, 0}, time.Now())
	if !errors.Is(err, stopped) {
		t.Errorf("record = %v, want %v", err, stopped)
	}
}

// TestSizes: only a log grows with its permits, by 7 bytes each or more.
func TestSizes(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	var b strings.Builder
	if err := printSizes(t.Context(), rdb, &b); err != nil {
		t.Fatal(err)
	}
	rows := strings.Split(strings.TrimSpace(b.String()), "\n")[2:]
	if len(rows) != len(sized)+1 {
		t.Fatalf("%d rows, want one for each of %d limits and one for the tokens:\n%s", len(rows), len(sized), &b)
	}
	for i, limit := range sized {
		var one, hundred, thousand int
		form := "| `" + limit.String() + "` | %d | %d | %d |"
		if _, err := fmt.Sscanf(rows[i], form, &one, &hundred, &thousand); err != nil {
			t.Errorf("%q: %v", rows[i], err)
			continue
		}
		switch grows := thousand >= hundred+900*7; {
		case one == 0:
			t.Errorf("%q: a key that costs nothing", rows[i])
		case limit.Kind() == "sliding" && !grows, limit.Kind() != "sliding" && thousand-one > 64:
			t.Errorf("%q: only sliding grows with its permits", rows[i])
		}
	}
}
