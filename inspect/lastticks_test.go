package inspect

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/schedulescripts"
	"github.com/headwayq/headway/queue/schedule"
	"github.com/headwayq/headway/throttle"
)

// LastTicks tells what became of each tick, in its order, and of no more than was asked for.
func TestLastTicks(t *testing.T) {
	t.Parallel()
	d := newRig(t, perMinute())
	i := d.inspector(throttle.Config{}, perMinute())
	k, ctx := i.keys("default"), t.Context()
	began := time.Now().UTC().Truncate(time.Hour).Add(-2 * time.Hour)
	every := "@every 1m0s"
	at := func(minute int) time.Time { return began.Add(time.Duration(minute) * time.Minute) }
	id := func(minute int) string { return "beat@" + at(minute).Format(time.RFC3339) }
	set := func(now time.Time) {
		t.Helper()
		d.timed.SetTime(now)
	}
	var from time.Time
	tick := func(minute int, want int64, overlap schedulescripts.TickOverlap, message string) {
		t.Helper()
		a := schedulescripts.TickArgs{Spec: schedulescripts.TickSpec(every), Life: time.Hour, From: from, Overlap: overlap}
		if minute > 0 {
			a.At, a.By, a.ID, a.Message = at(minute), at(1000), id(minute), []byte(message)
			set(at(minute))
		}
		r, err := schedulescripts.Tick(ctx, d.timed, k, "beat", a)
		if err != nil || r.Code != want {
			t.Fatalf("the tick of minute %d: %+v, %v, want the code %d", minute, r, err, want)
		}
		from = r.From
	}
	entries := []Entry{{Entry: "beat", Queue: "default", Spec: every}, {Entry: "none", Queue: "default", Spec: every}, {Entry: "beat", Queue: "low", Spec: every}}
	says := func(minute, most int, want ...string) {
		t.Helper()
		all, err := i.LastTicks(ctx, entries, at(minute), most)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range all {
			got = append(got, fmt.Sprintf("%d %s", int(p.At.Sub(began)/time.Minute), p.Became))
			if p.Entry != "beat" || p.Queue != "default" {
				t.Errorf("a tick of %s on %s", p.Entry, p.Queue)
			}
			if entry, tick, ok := schedule.ParseTaskID(p.Task); p.Task != "" && (!ok || entry != "beat" || !tick.Equal(p.At)) {
				t.Errorf("the task of the tick %v is %q", p.At, p.Task)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("the last ticks are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	says(1, 5)
	set(at(0))
	tick(0, schedulescripts.TickPassed, schedulescripts.TickRuns, "")
	tick(1, schedulescripts.TickEnqueued, schedulescripts.TickRuns, "m")
	tick(4, schedulescripts.TickEnqueued, schedulescripts.TickRuns, "m") // 2 and 3 are missed
	tick(5, schedulescripts.TickSkipped, schedulescripts.TickIsSkipped, "m")
	tick(6, schedulescripts.TickHeld, schedulescripts.TickIsHeld, "m")
	tick(7, schedulescripts.TickGivenUp, schedulescripts.TickRuns, "")
	says(7, 10, "7 given up: it had no task that could run", "6 held until an earlier one has ended", "5 skipped: an earlier one had not ended",
		"4 pending", "3 missed", "2 missed", "1 pending")
	says(9, 3, "9 not decided yet", "8 not decided yet", "7 given up: it had no task that could run", "6 held until an earlier one has ended")
	// Where the tasks are.
	for minute := 8; minute <= 11; minute++ {
		tick(minute, schedulescripts.TickEnqueued, schedulescripts.TickRuns, "m")
	}
	for minute, state := range map[int]string{4: "archived", 8: "active", 9: "completed"} {
		d.raw.HSet(ctx, k.Task(id(minute)), "state", state)
	}
	d.raw.Del(ctx, k.Task(id(10)), k.Task(id(11)))
	if _, err := d.Book(ctx, smsTo("+15550100", asynq.TaskID("first"))); err != nil {
		t.Fatal(err)
	}
	d.booked("+15550100", time.Minute, asynq.TaskID(id(10))) // its limits hold it
	d.raw.HSet(ctx, k.Task(id(3)), "state", "retry")         // an older version enqueued it, and kept no tick
	says(11, 10, "11 ended, and deleted", "10 waiting", "9 done", "8 running", "7 given up: it had no task that could run",
		"6 held until an earlier one has ended", "5 skipped: an earlier one had not ended", "4 failed", "3 to be tried again", "2 missed")
}
