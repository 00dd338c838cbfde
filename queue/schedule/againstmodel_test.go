package schedule

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/queue"
)

// Three replicas whose clocks are seconds apart and drift are killed, also within
// a call, and started at random, for hours around both changes of the clock. What
// becomes of each tick is what the model says, for every choice; no task is there
// twice.
func TestVirtualScheduleEqualsTheModel(t *testing.T) {
	t.Parallel()
	zoneNames := []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe"}
	for overlap := OverlapAllow; overlap <= OverlapQueueOne; overlap++ {
		for missed := MissedSkip; missed <= MissedRunAll; missed++ {
			n := int(overlap)*3 + int(missed)
			zone := zoneOf(t, zoneNames[(n+n/3)%3])
			spec := []string{"*/20 * 0-23 * * *", "*/20 * * * * *"}[n%2]
			t.Run(fmt.Sprintf("overlap %d missed %d %s in %v", overlap, missed, spec, zone), func(t *testing.T) {
				t.Parallel()
				w := newScheduleWorld(t, uint64(n), Entry{ // #nosec G115
					Name: "nightly", Spec: spec, Zone: zone, Queue: "low", Task: queue.NewTask("t", nil, asynq.MaxRetry(1)),
					Overlap: overlap, Missed: missed, LateMax: 15 * time.Second, MissedWithin: 4 * time.Minute, MissedMax: 7,
				})
				changes := []int{0, 1}
				if testing.Short() {
					changes = changes[n/2%2:][:1]
				}
				w.around(zone, changes)
			})
		}
	}
}

// around runs the world around changes of the clock in 2026, of which there are two.
func (w *scheduleWorld) around(zone *time.Location, changes []int) {
	w.Helper()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, zone)
	span := 3 * time.Hour
	if !MustCron(w.entry.Spec, zone).elapsed {
		span += 30 * time.Minute // half of the ticks that do not come twice
	}
	for i := range 2 {
		_, change := at.ZoneBounds()
		at = change
		if !slices.Contains(changes, i) {
			continue
		}
		from, until := change.Add(-span/2), change.Add(span/2)
		w.model.ticks = MustCron(w.entry.Spec, zone).between(from.Add(-time.Hour), until)
		w.model.all = append(w.model.all, MustCron(w.entry.Spec, zone).between(from, until)...)
		w.run(from, until)
	}
	count := make(map[Outcome]int)
	for _, d := range w.got {
		count[d.outcome]++
	}
	w.Logf("%d ticks decided: %v", len(w.got), count)
	if len(w.got) < 250*len(changes) || count[OutcomeEnqueued] < 50*len(changes) {
		w.Errorf("%d ticks were decided, want a world with more in it", len(w.got))
	}
	w.inTime()
	w.noMore()
}

// inTime checks that a tick at which a replica was there is decided at once.
func (w *scheduleWorld) inTime() {
	w.Helper()
	const atOnce = 5 * time.Millisecond
	at := make(map[int64]time.Time)
	for _, d := range w.got {
		if at[d.tick.Unix()].IsZero() {
			at[d.tick.Unix()] = d.at
		}
	}
	n := 0
	for _, tick := range w.model.all {
		if !slices.ContainsFunc(w.lives, func(l life) bool { return l.from.Before(tick) && l.to.After(tick.Add(atOnce)) }) {
			continue
		}
		n++
		if d := at[tick.Unix()]; d.Before(tick) || d.After(tick.Add(atOnce)) {
			w.Errorf("%v is decided at %v, and a replica was there", tick, d)
		}
	}
	if n < len(w.model.all)/2 {
		w.Errorf("a replica was there for %d of %d ticks, want more", n, len(w.model.all))
	}
}

// noMore checks that Redis has the tasks that the world knows, and no other.
func (w *scheduleWorld) noMore() {
	w.Helper()
	const prefix = "asynq:{low}:t:"
	var want, got []string
	pending := 0
	for _, task := range w.tasks {
		want = append(want, task.id)
		if !task.running {
			pending++
		}
	}
	for _, key := range w.raw.Keys(w.Context(), prefix+"*").Val() {
		if s := w.raw.HGet(w.Context(), key, "state").Val(); s != "archived" && s != "completed" {
			got = append(got, strings.TrimPrefix(key, prefix))
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		w.Errorf("tasks in Redis, - want + got:\n%s", diff)
	}
	if n := w.raw.LLen(w.Context(), "asynq:{low}:pending").Val(); n != int64(pending) {
		w.Errorf("%d tasks are pending, want %d", n, pending)
	}
	for _, key := range w.raw.Keys(w.Context(), "hw:*").Val() {
		if w.raw.PTTL(w.Context(), key).Val() <= 0 {
			w.Errorf("%s has no TTL", key)
		}
	}
}
