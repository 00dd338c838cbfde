package inspect

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
)

// explains asks about a task of the default queue, and sees that nothing has changed by that.
func (d *rig) explains(i *Inspector, id string, want Explanation) {
	d.Helper()
	before := redistest.Content(d.T, d.raw)
	got, err := i.Explain(d.Context(), "default", id)
	if err != nil {
		d.Errorf("Explain(%s): %v", id, err)
	}
	if after := redistest.Content(d.T, d.raw); !maps.Equal(before, after) {
		d.Errorf("Explain(%s) changed what Redis holds", id)
	}
	clock, err := queuescripts.ScanDeferred(d.Context(), d.timed, queuescripts.NewQueueKeys("hw", "default"), time.Time{}, 0, 1)
	if err != nil || !got.Now.Equal(clock.Now) {
		d.Errorf("Explain(%s) is as of %v, want %v, %v", id, got.Now, clock.Now, err)
	}
	got.Now = time.Time{}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Explanation{}, "Type", "Rules", "Before", "Asynq", "Since", "Moved", "Cause")); diff != "" {
		d.Errorf("Explain(%s), want -, got +:\n%s", id, diff)
	}
}

// Who waits for permits is told for which rule, until when, and behind how many; the
// others where they are.
func TestExplain(t *testing.T) {
	t.Parallel()
	d := newExactRig(t, perMinute())
	i := d.inspector(throttle.Config{}, perMinute())
	deadline := d.start.Add(time.Hour)
	for n := range 4 {
		d.booked("+1", time.Duration(n)*time.Minute, asynq.TaskID(fmt.Sprint("t", n)), asynq.Deadline(deadline))
	}
	d.explains(i, "t0", Explanation{State: StatePending})
	d.explains(i, "t1", Explanation{State: StateLimit, Rule: "phone", At: d.start.Add(time.Minute), Permits: 1, Jobs: 1, Booked: true, Deadline: deadline})
	d.explains(i, "t3", Explanation{State: StateLimit, Rule: "phone", At: d.start.Add(3 * time.Minute), Permits: 3, Jobs: 3, Booked: true, Deadline: deadline})
	d.explains(i, "nobody", Explanation{State: StateMissing})

	later := d.start.Add(time.Hour)
	plain := asynq.NewClientFromRedisClient(d.raw)
	for id, opt := range map[string]asynq.Option{"own": asynq.ProcessAt(later), "grouped": asynq.Group("g")} {
		if _, err := plain.Enqueue(asynq.NewTask("sms", []byte(`{"to":"+9"}`)), asynq.TaskID(id), opt); err != nil {
			t.Fatal(err)
		}
	}
	d.explains(i, "own", Explanation{State: StateScheduled, At: later})
	d.explains(i, "grouped", Explanation{State: StateGroup})
	if err := d.asynq.ArchiveTask("default", "own"); err != nil {
		t.Fatal(err)
	}
	d.explains(i, "own", Explanation{State: StateEnded})

	// Who leaves makes the others move up, also those who were told nothing of it.
	if _, err := i.set.Lookup("phone").Cancel(t.Context(), throttle.Request{Key: "+1", Cost: 1, Job: luascripts.JobID("default", "t2")}); err != nil {
		t.Fatal(err)
	}
	d.explains(i, "t3", Explanation{State: StateLimit, Rule: "phone", At: d.start.Add(2 * time.Minute), Permits: 2, Jobs: 2, Booked: true, Deadline: deadline})
	d.explains(i, "t2", Explanation{State: StateNoPlace, At: d.start.Add(2 * time.Minute), Booked: true, Deadline: deadline})
}

// A key that is closed, slots that are taken, and a gate that is shut are told from
// permits that are spent.
func TestExplainNotPermits(t *testing.T) {
	t.Parallel()
	start := time.Now().UTC()
	opening := start.Truncate(time.Hour).Add(3 * time.Hour)
	hours, err := gate.Parse(fmt.Sprintf("%s-%s UTC", opening.Format("15:04"), opening.Add(time.Hour).Format("15:04")))
	if opening.Hour() == 23 {
		hours, err = gate.Parse("23:00-24:00 UTC")
	}
	if err != nil {
		t.Fatal(err)
	}
	key := queue.MustJSONKey("$.to")
	policies := []queue.Policy{
		perMinute(),
		{Type: "call", Rules: []queue.Rule{{Name: "lines", Limit: throttle.Concurrent(1, time.Minute), Key: key}}},
		{Type: "ad", Rules: []queue.Rule{{Name: "hours", Gate: hours}, {Name: "ads", Limit: throttle.Sliding(1, time.Minute), Key: key}}},
	}
	d := newExactRig(t, policies...)
	i := d.inspector(throttle.Config{}, policies...)
	book := func(typ, id string) {
		t.Helper()
		if _, err := d.Book(t.Context(), queue.NewTask(typ, []byte(`{"to":"+1"}`), asynq.TaskID(id))); err != nil {
			t.Fatal(err)
		}
	}

	if _, err := i.set.Lookup("phone").Rules()[0].CloseKey(t.Context(), "+1", time.Hour); err != nil {
		t.Fatal(err)
	}
	book("sms", "closed")
	open := d.start.Add(time.Hour)
	d.explains(i, "closed", Explanation{State: StateClosed, Rule: "phone", At: open, Closed: open, Booked: true})

	if g, err := i.set.Lookup("lines").TryAcquire(t.Context(), throttle.Request{Key: "+1", Cost: 1}); err != nil || !g.Granted {
		t.Fatal(g, err)
	}
	book("call", "first")
	book("call", "second")
	d.explains(i, "first", Explanation{State: StateSlot, Rule: "lines", At: d.start.Add(time.Minute), Booked: true})
	d.explains(i, "second", Explanation{State: StateSlot, Rule: "lines", At: d.start.Add(2 * time.Minute), Permits: 1, Jobs: 1, Booked: true})

	book("ad", "early")
	d.explains(i, "early", Explanation{State: StateGate, Rule: "hours", At: opening.In(time.Local), Booked: true})
}

// Who is told an instant while the gate is open waits for it when it shuts before then.
func TestClosedBetween(t *testing.T) {
	t.Parallel()
	var gates []gate.InZone
	for rule, text := range map[string]string{"days": "00:00-24:00 UTC", "hours": "09:00-21:00 UTC"} {
		hours, err := gate.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		gates = append(gates, gate.InZone{Rule: rule, Gate: hours})
	}
	day := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		now, at time.Duration
		rule    string
	}{
		{20 * time.Hour, 20*time.Hour + time.Minute, ""},
		{20 * time.Hour, 33 * time.Hour, "hours"},
		{20 * time.Hour, 33*time.Hour + time.Minute, "hours"},
		{22 * time.Hour, 33 * time.Hour, "hours"},
		{22 * time.Hour, 22 * time.Hour, "hours"},
		{9 * time.Hour, 8 * time.Hour, ""}, // overdue
	} {
		if rule, shut := closedBetween(gates, day.Add(tt.now), day.Add(tt.at)); rule != tt.rule || shut != (rule != "") {
			t.Errorf("between %v and %v %q is shut, %v, want %q", tt.now, tt.at, rule, shut, tt.rule)
		}
	}
}

// Of several rules the one is told in whose line the task stands; another inspector,
// which does not know them all, tells when it is woken.
func TestExplainSeveralRules(t *testing.T) {
	t.Parallel()
	policy := perMinute()
	policy.Rules = append(policy.Rules, queue.Rule{Name: "provider", Limit: throttle.Sliding(1, time.Second), Constant: "acme"})
	d := newExactRig(t, policy)
	i := d.inspector(throttle.Config{}, policy)
	for n, want := range []Explanation{
		{State: StatePending},
		{State: StateLimit, Rule: "phone", At: d.start.Add(time.Minute), Permits: 1, Jobs: 1, Booked: true},
		{State: StateLimit, Rule: "provider", At: d.start.Add(time.Second), Permits: 1, Jobs: 1, Booked: true},
	} {
		id := fmt.Sprint("t", n)
		if _, err := d.Book(t.Context(), smsTo([]string{"+1", "+1", "+2"}[n], asynq.TaskID(id))); err != nil {
			t.Fatal(err)
		}
		d.explains(i, id, want)
	}
	d.explains(d.inspector(throttle.Config{}, perMinute()), "t2", Explanation{State: StateLimit, At: d.start.Add(time.Second), Booked: true})
	d.explains(d.inspector(throttle.Config{PerClient: true}, policy), "t2", Explanation{State: StateLimit, At: d.start.Add(time.Second), Booked: true})
}

// Who does not come at its instant stands aside, and first.
func TestExplainParked(t *testing.T) {
	t.Parallel()
	d := newRig(t, perMinute())
	i := d.inspector(throttle.Config{}, perMinute())
	for n := range 3 {
		d.booked("+1", time.Duration(n)*time.Minute, asynq.TaskID(fmt.Sprint("t", n)))
	}
	d.at(90 * time.Second)
	now := d.start.Add(90 * time.Second)
	d.explains(i, "t1", Explanation{State: StateLimit, Rule: "phone", At: now, Booked: true, Parked: true})
	d.explains(i, "t2", Explanation{State: StateLimit, Rule: "phone", At: now, Booked: true})
	p, err := i.LinePage(t.Context(), "phone", "+1", "", 10)
	want := []WaitingTask{
		{Queue: "default", ID: "t0", Cost: 1, At: d.start, Parked: true},
		{Queue: "default", ID: "t1", Cost: 1, At: d.start.Add(time.Minute), Parked: true},
		{Queue: "default", ID: "t2", Cost: 1, At: now},
	}
	if diff := cmp.Diff(want, p.Waiting); err != nil || diff != "" || p.All != 3 || !p.Now.Equal(now) || p.Next != "" {
		t.Errorf("LinePage = %+v, %v; want -, got +:\n%s", p, err, diff)
	}
}

// Since when a task waits, how often its instant was changed and why is told until it has run.
func TestExplainSinceWhen(t *testing.T) {
	t.Parallel()
	d := newRig(t, perMinute())
	i := d.inspector(throttle.Config{}, perMinute())
	d.booked("+15550100", 0, asynq.TaskID("first"))
	d.booked("+15550100", time.Minute, asynq.TaskID("before"))
	d.booked("+15550100", 2*time.Minute, asynq.TaskID("it"))
	want := func(id string, since time.Time, moved int, cause Cause) {
		t.Helper()
		e, err := i.Explain(t.Context(), "default", id)
		if err != nil || !e.Since.Equal(since) || e.Moved != moved || e.Cause != cause {
			t.Fatalf("%s waits since %v, moved %d times, by %q, %v", id, e.Since, e.Moved, e.Cause, err)
		}
	}
	want("first", time.Time{}, 0, CauseNone)
	want("it", d.start, 0, CauseBooked)
	if err := i.Front(t.Context(), "default", "it", because); err != nil {
		t.Fatal(err)
	}
	want("it", d.start, 1, CauseEarlier)
}
