package inspect

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/presence"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/throttle"
)

// A key tells what was spent on it, for every kind of limit, and who closed it. Reading
// changes nothing.
func TestKeyTellsWhatWasSpent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		limit throttle.Limit
		want  string // seconds since the start and permits, the newest first
	}{
		{throttle.Sliding(10, time.Minute), "20:2 10:1 0:3"},
		{throttle.Fixed(10, time.Minute), "20:6"},
		{throttle.Bucket(10, time.Minute, 10), "20:6"},
		{throttle.GCRA(10, time.Minute, 10), "20:6"},
		{throttle.Concurrent(5, time.Minute), "80:1 70:1"},
	} {
		t.Run(c.limit.Kind(), func(t *testing.T) {
			t.Parallel()
			d := newRig(t)
			p := queue.Policy{Type: "x", Rules: []queue.Rule{{Name: "r", Limit: c.limit, Key: queue.MustJSONKey("$.to")}}}
			i := d.inspector(throttle.Config{}, p)
			l, err := throttle.New(d.timed, "r", c.limit, throttle.Config{})
			if err != nil {
				t.Fatal(err)
			}
			costs := map[int]int{0: 3, 10: 1, 20: 2}
			if c.limit.IsConcurrent() {
				costs = map[int]int{10: 1, 20: 1}
			}
			for _, at := range []int{0, 10, 20} {
				if costs[at] == 0 {
					continue
				}
				d.at(time.Duration(at) * time.Second)
				if _, err := l.TryAcquire(t.Context(), "k", costs[at]); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 {
				k, err := i.Key(t.Context(), "r", "k")
				if err != nil {
					t.Fatal(err)
				}
				var got []string
				for _, s := range k.Spent {
					got = append(got, fmt.Sprintf("%d:%d", int(s.At.Sub(d.start).Seconds()), s.Permits))
				}
				if text := strings.Join(got, " "); text != c.want {
					t.Errorf("spent were %s, want %s", text, c.want)
				}
				if k.ID != "k" || k.Limit != c.limit || k.Available == 0 || !k.Closed.IsZero() {
					t.Errorf("Key = %+v", k)
				}
			}
		})
	}
}

// What was spent is forgotten with its window, and the list is bounded.
func TestSpentIsBounded(t *testing.T) {
	t.Parallel()
	d := newRig(t)
	p := queue.Policy{Type: "x", Rules: []queue.Rule{{Name: "r", Limit: throttle.Sliding(1000, time.Minute), Key: queue.MustJSONKey("$.to")}}}
	i := d.inspector(throttle.Config{}, p)
	l, err := throttle.New(d.timed, "r", p.Rules[0].Limit, throttle.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for n := range SpentMax + 50 {
		d.at(time.Duration(n) * 10 * time.Millisecond)
		if _, err := l.TryAcquire(t.Context(), "k", 1); err != nil {
			t.Fatal(err)
		}
	}
	if k, err := i.Key(t.Context(), "r", "k"); err != nil || len(k.Spent) != SpentMax || k.Spent[0].At.Before(k.Spent[1].At) {
		t.Errorf("Key lists %d grants, %v, want %d, the newest first", len(k.Spent), err, SpentMax)
	}
	d.at(2 * time.Minute)
	if k, err := i.Key(t.Context(), "r", "k"); err != nil || len(k.Spent) != 0 {
		t.Errorf("after the window Key = %+v, %v", k, err)
	}
}

// ByID takes keys as answers have them, also where a secret hides them, and refuses what
// can't stand in Redis.
func TestByID(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]throttle.Config{"clear": {}, "secret": {Secret: []byte("sixteen bytes ..")}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newRig(t)
			d.Client = newClient(t, d.timed, queue.ClientConfig{Policies: []queue.Policy{perMinute()}, Throttle: cfg})
			i := d.inspector(cfg, perMinute())
			d.booked("+15550100", 0, asynq.TaskID("a"))
			d.booked("+15550100", time.Minute, asynq.TaskID("b"))
			e, err := i.Explain(t.Context(), "default", "b")
			if err != nil || len(e.Rules) != 1 {
				t.Fatalf("%+v, %v", e, err)
			}
			id := e.Rules[0].Key
			if of, err := i.IDOf(t.Context(), "phone", "+15550100"); of != id || err != nil {
				t.Errorf("IDOf = %q, %v, want %q", of, err, id)
			}
			by := i.ByID()
			want, err := i.LinePage(t.Context(), "phone", "+15550100", "", 10)
			if err != nil {
				t.Fatal(err)
			}
			if page, err := by.LinePage(t.Context(), "phone", id, "", 10); err != nil || !cmp.Equal(page.Waiting, want.Waiting) || page.All == 0 {
				t.Errorf("by id the line is %+v, %v, want %+v", page, err, want)
			}
			if until, err := by.CloseKey(t.Context(), "phone", id, time.Hour, because); err != nil || until.IsZero() {
				t.Errorf("CloseKey = %v, %v", until, err)
			}
			if k, err := i.Key(t.Context(), "phone", "+15550100"); err != nil || k.Closed.IsZero() || k.Who != "ann" || k.ID != id {
				t.Errorf("Key = %+v, %v, want it closed by ann", k, err)
			}
			if err := by.OpenKey(t.Context(), "phone", id, because); err != nil {
				t.Error(err)
			}
			if n, err := by.CancelKey(t.Context(), "default", "phone", id, because); n == 0 || err != nil {
				t.Errorf("CancelKey = %d, %v", n, err)
			}
			for _, bad := range []string{"", "a{b}", strings.Repeat("x", 65)} {
				if _, err := by.Key(t.Context(), "phone", bad); !errors.Is(err, throttle.ErrInvalidKey) {
					t.Errorf("Key(%q) = %v, want %v", bad, err, throttle.ErrInvalidKey)
				}
			}
		})
	}
}

// The keys whose tasks start last come first.
func TestFarKeys(t *testing.T) {
	t.Parallel()
	d := newExactRig(t, perMinute())
	i := d.inspector(throttle.Config{}, perMinute())
	for n, tasks := range []int{2, 5, 3} {
		for k := range tasks {
			d.booked(fmt.Sprintf("+1555010%d", n), time.Duration(k)*time.Minute, asynq.TaskID(fmt.Sprintf("%d-%d", n, k)))
		}
	}
	keys, looked, err := i.FarKeys(t.Context(), "phone", []string{"default", "none"})
	if err != nil || looked < 7 {
		t.Fatalf("%d tasks were looked at, %v", looked, err)
	}
	var got []string
	for _, k := range keys {
		got = append(got, fmt.Sprintf("%s %s %v", k.ID, k.Task, k.Last.Sub(d.start)))
	}
	want := []string{"+15550101 1-4 4m0s", "+15550102 2-2 2m0s", "+15550100 0-1 1m0s"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
	if _, _, err := i.FarKeys(t.Context(), "none", nil); !errors.Is(err, queue.ErrInvalidPolicy) {
		t.Errorf("FarKeys of a rule that is not there: %v", err)
	}
}

// Ticks on a day on which clocks are changed say so.
func TestTicksTellOfClockChanges(t *testing.T) {
	t.Parallel()
	running := []Process{{Kind: "scheduler", Entries: []presence.Entry{{Name: "nightly", Queue: "q", Spec: "CRON_TZ=Europe/Berlin 30 2 * * *"}, {Name: "bad", Spec: "?"}}}}
	for day, want := range map[time.Time]string{
		time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC):  "clocks go forward that day",
		time.Date(2026, 10, 24, 12, 0, 0, 0, time.UTC): "clocks go back that day",
		time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC):   "",
	} {
		entries, ticks := Schedules(running, day, 2)
		if len(entries) != 2 || entries[0].Problem == "" || len(ticks) != 2 || ticks[0].Note != want || ticks[1].Note != "" {
			t.Errorf("%v: %+v, %+v, want the first with %q", day, entries, ticks, want)
		}
	}
}

// Changes of batches are audited, with the value before.
func TestBatchChangesAreAudited(t *testing.T) {
	t.Parallel()
	d := newRig(t, perMinute())
	i := d.inspector(throttle.Config{}, perMinute())
	if _, err := batch.NewControl(d.Client).Start(t.Context(), batch.Spec{ID: "b", Type: "sms", Source: "s"}); err != nil {
		t.Fatal(err)
	}
	err := errors.Join(i.SetPace(t.Context(), "default", "b", batch.Pace{N: 5, Per: time.Second}, because), i.SetWeight(t.Context(), "default", "b", 40, because),
		i.PauseBatch(t.Context(), "default", "b", because), i.ResumeBatch(t.Context(), "default", "b", because), i.CancelBatch(t.Context(), "default", "b", because))
	if err != nil {
		t.Fatal(err)
	}
	if err := i.PauseBatch(t.Context(), "default", "none", because); !errors.Is(err, batch.ErrNotFound) {
		t.Errorf("PauseBatch of a batch that is not there: %v", err)
	}
	changes, err := i.Audit(t.Context(), 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range changes {
		got = append(got, fmt.Sprintf("%s %s %s<-%s %t", c.Action, c.Batch, c.Value, c.Before, c.Failed != ""))
	}
	want := []string{
		"pause batch none <- true", "pause batch none <- false", "cancel batch b <- false", "resume batch b <- false", "pause batch b <- false",
		"set weight b 40%<-100% false", "set pace b 5/1s<-as the limits allow false",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
}
