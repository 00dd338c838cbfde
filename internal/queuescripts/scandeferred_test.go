package queuescripts

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// ScanDeferred sees each task once, in portions, also where more of them than a
// portion holds have one instant, and some move on the way.
func TestScanDeferredSeesEachTaskOnce(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	var want []string
	for i := range 25 {
		id := fmt.Sprintf("t%02d", i)
		want = append(want, id)
		a.put("active", id)
		a.deferTask(id, time.Duration(i/10)*minute, "") // 10 at once, 10 at minute 1, 5 at minute 2
	}
	var seen []string
	from, skip := time.Time{}, 0
	for {
		r, err := ScanDeferred(t.Context(), a.rdb, a.q, from, skip, 4)
		if err != nil {
			t.Fatal(err)
		}
		if !r.Last.Equal(start.Add(2*minute)) && !r.Last.Equal(start.Add(9*minute)) || !r.Now.Equal(start) {
			t.Errorf("ScanDeferred = now %v, last %v", r.Now, r.Last)
		}
		if len(r.Tasks) == 0 {
			break
		}
		for _, task := range r.Tasks {
			if seen = append(seen, task.ID); task.Record != "sms 1 key" {
				t.Errorf("%s waits for %q", task.ID, task.Record)
			}
			if !task.At.Equal(from) {
				from, skip = task.At, 0
			}
			if task.ID == "t12" && skip > 0 { // it moves away: it is not to be skipped
				if _, err := Retime(t.Context(), a.rdb, a.q, []Retiming{{ID: "t12", At: start.Add(9 * minute)}}); err != nil {
					t.Fatal(err)
				}
				continue
			}
			skip++
		}
	}
	if again := append(want, "t12"); !slices.Equal(seen, again) && !slices.Equal(seen, want) {
		t.Errorf("seen %v, want %v, and t12 once more", seen, want)
	}
	r, err := ScanDeferred(t.Context(), a.rdb, NewQueueKeys("hw", "empty"), time.Time{}, 0, 4)
	if err != nil || !r.Last.IsZero() || len(r.Tasks) > 0 {
		t.Errorf("ScanDeferred of an empty queue = %+v, %v", r, err)
	}
}
