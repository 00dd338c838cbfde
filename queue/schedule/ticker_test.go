package schedule

import (
	"strings"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/internal/backend"
)

// The example of docs/schedules.md: an hourly entry whose ticks are decided up to
// 08:00, when processes are there again.
func TestDueTicks(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	client := newClient(t, rdb)
	for _, tt := range []struct {
		now    string
		missed Missed
		within time.Duration
		most   int
		want   string
	}{
		{"12:00:30", MissedSkip, 0, 0, "12"},
		{"12:00:30", MissedRunOnce, 0, 0, "12"},
		{"12:00:30", MissedRunAll, 0, 0, "09 10 11 12"},
		{"11:30:00", MissedSkip, 0, 0, ""},
		{"11:30:00", MissedRunOnce, 0, 0, "11"},
		{"11:30:00", MissedRunAll, 0, 0, "09 10 11"},
		{"11:30:00", MissedRunAll, 2 * time.Hour, 0, "10 11"},
		{"11:30:00", MissedRunAll, 0, 1, "11"},
		{"11:30:00", MissedRunOnce, 20 * time.Minute, 0, ""},
		{"09:00:59", MissedSkip, 0, 0, "09"}, // late, and not missed
		{"09:01:00", MissedSkip, 0, 0, ""},
		{"09:01:00", MissedRunOnce, 0, 0, "09"},
		{"09:00:00", MissedSkip, 0, 0, "09"},
		{"08:59:59", MissedRunAll, 0, 0, ""},
	} {
		e, faults := Entry{Name: "a", Spec: "@hourly", Task: queue.NewTask("t", nil), Missed: tt.missed, MissedWithin: tt.within, MissedMax: tt.most}.ready(backend.Of(client))
		if len(faults) > 0 {
			t.Fatal(faults)
		}
		now, err := time.Parse(time.DateTime, "2026-06-01 "+tt.now)
		if err != nil {
			t.Fatal(err)
		}
		var hours []string
		for _, due := range e.due(time.Date(2026, 6, 1, 8, 0, 0, 0, time.UTC), now) {
			hours = append(hours, due.at.Format("15"))
			if !due.by.After(now) {
				t.Errorf("at %s with %v the tick of %v is over by %v", tt.now, tt.missed, due.at, due.by)
			}
		}
		if got := strings.Join(hours, " "); got != tt.want {
			t.Errorf("due at %s with missed %d within %v, %d at most: %q, want %q", tt.now, tt.missed, tt.within, tt.most, got, tt.want)
		}
	}
}
