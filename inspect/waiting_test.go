package inspect

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// What waits is counted for the one rule that holds each task, by when it comes due. A task
// that somebody deleted does not count.
func TestWaitingByRule(t *testing.T) {
	t.Parallel()
	p := queue.Policy{Type: "sms", Rules: []queue.Rule{
		{Name: "phone", Limit: throttle.Sliding(1, time.Minute), Key: queue.MustJSONKey("$.to")},
		{Name: "all", Limit: throttle.Sliding(3, 2*time.Hour), Constant: "all"},
	}}
	d := newExactRig(t, p)
	i := d.inspector(throttle.Config{}, p)
	d.booked("+15550100", 0)
	d.booked("+15550100", time.Minute, asynq.TaskID("second"))
	d.booked("+15550100", 2*time.Minute, asynq.TaskID("third"))
	d.booked("+15550101", 0)
	d.booked("+15550102", 0) // all has no permits left
	for _, id := range []string{"a", "b", "deleted"} {
		d.booked("+1555020"+id, 2*time.Hour, asynq.TaskID(id))
	}
	if n, err := d.raw.Del(t.Context(), "asynq:{default}:t:deleted").Result(); n != 1 || err != nil {
		t.Fatal(n, err)
	}

	got, err := i.WaitingByRule(t.Context(), "default", "empty")
	want := WaitingByRule{
		Rules: []RuleCount{
			{Rule: "all", Waiting: 2, Next: d.start.Add(2 * time.Hour), Since: d.start},
			{Rule: "phone", Waiting: 2, Within1m: 1, Within1h: 2, Next: d.start.Add(time.Minute), Since: d.start},
		},
		Queues: []SampledQueue{{"default", 5, 5}, {"empty", 0, 0}}, Now: d.start,
	}
	if err != nil || !cmp.Equal(got, want) {
		t.Errorf("WaitingByRule: %v\n%s", err, cmp.Diff(want, got))
	}
	for _, within := range []time.Duration{time.Second, time.Hour, 24 * time.Hour} {
		if !got.Counts(within) {
			t.Errorf("all were looked at, and Counts(%v) is false", within)
		}
	}
}

// Of a long queue those are counted that start first. The answer says up to which instant
// that is all of them.
func TestWaitingByRuleIsBounded(t *testing.T) {
	t.Parallel()
	d := newExactRig(t, perMinute())
	i := d.inspector(throttle.Config{}, perMinute())
	tasks := make([]*queue.Task, WaitingByRuleMax+201) // the first of them starts now, and then one each minute
	for n := range tasks {
		tasks[n] = smsTo("+15550100")
	}
	for _, r := range d.BookMany(t.Context(), tasks) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	got, err := i.WaitingByRule(t.Context(), "default")
	want := WaitingByRule{
		Rules: []RuleCount{{Rule: "phone", Waiting: WaitingByRuleMax, Within1m: 1, Within1h: 60, Next: d.start.Add(time.Minute), Since: d.start}},
		Until: d.start.Add(WaitingByRuleMax * time.Minute), Queues: []SampledQueue{{"default", WaitingByRuleMax + 200, WaitingByRuleMax}}, Now: d.start,
	}
	if err != nil || !cmp.Equal(got, want) {
		t.Errorf("WaitingByRule: %v\n%s", err, cmp.Diff(want, got))
	}
	if !got.Counts(time.Hour) || got.Counts(24*time.Hour) {
		t.Error("Counts says something else than Until")
	}
}
