package inspect

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/presence"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

var because = Reason{Who: "ann", Why: "a test"}

// Every change is in the audit list with who, why and until when, also one that fails, and
// nothing is changed without a reason.
func TestEveryChangeIsAudited(t *testing.T) {
	t.Parallel()
	d := newRig(t, perMinute())
	i := d.inspector(throttle.Config{}, perMinute())
	d.booked("+15550100", 0)
	limit := throttle.Sliding(5, time.Minute)
	if _, err := i.CloseKey(t.Context(), "phone", "+15550100", time.Hour, Reason{Who: "ann"}); !errors.Is(err, ErrInvalidReason) {
		t.Fatalf("CloseKey without a reason: %v", err)
	}
	if _, err := i.CloseRule(t.Context(), "phone", -time.Hour, because); err == nil {
		t.Fatal("a closing for less than nothing is made")
	}
	for name, change := range map[string]func() error{
		"close": func() error {
			_, err := i.CloseKey(t.Context(), "phone", "+15550100", time.Hour, because)
			return err
		},
		"set": func() error { return i.SetLimit(t.Context(), "phone", limit, 0, because) },
	} {
		if err := change(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := errors.Join(i.OpenKey(t.Context(), "phone", "+15550100", because), i.PauseQueue(t.Context(), "default", because)); err != nil {
		t.Fatal(err)
	}
	changes, err := i.Audit(t.Context(), 0, 250)
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]int)
	for _, c := range changes {
		if c.Who != "ann" || c.Why != "a test" || c.At.IsZero() {
			t.Errorf("%+v lacks who, why or when", c)
		}
		if c.Key != "" && c.Action == ActionClose && c.Until.Sub(c.At) != time.Hour {
			t.Errorf("%+v, want it until an hour later", c)
		}
		got[fmt.Sprint(c.Action, " ", c.Rule, c.Queue, " ", c.Key, " ", c.Value, " ", c.Failed != "")]++
	}
	want := map[string]int{
		"close phone   false": 1, "close phone   true": 1, "close phone +15550100  false": 1, "open phone +15550100  false": 1,
		"set limit phone  sliding 5/1m false": 1, "pause queue default   false": 1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("audit, want -, got +:\n%s", diff)
	}
	if rules := i.Rules(t.Context()); len(rules) != 1 || rules[0].Limit != limit || !rules[0].Stored {
		t.Errorf("Rules = %+v, want %v stored", rules, limit)
	}
	if page, err := i.Audit(t.Context(), 1, 2); err != nil || len(page) != 2 || !cmp.Equal(page, changes[1:3]) {
		t.Errorf("a page of two behind one is %+v, %v", page, err)
	}
}

// A change that failed was not made: both of its entries are left out, and whoever closed a key
// before it is named.
func TestMade(t *testing.T) {
	t.Parallel()
	d := newRig(t, perMinute())
	i := d.inspector(throttle.Config{}, perMinute())
	bob := Reason{Who: "bob", Why: "an outage"}
	if _, err := i.CloseKey(t.Context(), "phone", "+1", time.Hour, bob); err != nil {
		t.Fatal(err)
	}
	refused := d.inspector(throttle.Config{}, perMinute())
	if _, err := refused.CloseKey(t.Context(), "phone", "+1", 2*pauseMax, because); err == nil {
		t.Fatal("a closing of two years is made")
	}
	changes, err := i.Audit(t.Context(), 0, 250)
	if err != nil || len(changes) != 3 {
		t.Fatalf("the audit list is %+v, %v, want three entries", changes, err)
	}
	if made := Made(changes); len(made) != 1 || made[0].Who != "bob" {
		t.Errorf("made were %+v, want bob's closing", made)
	}
	at := time.Now()
	same := []Change{
		{At: at, Who: "ann", Action: ActionClose, Rule: "phone", Failed: "away"}, {At: at.UTC(), Who: "ann", Action: ActionClose, Rule: "phone"},
		{At: at, Who: "ann", Action: ActionClose, Rule: "provider"},
	}
	if made := Made(same); len(made) != 1 || made[0].Rule != "provider" {
		t.Errorf("of two at one instant %+v were made, want the one that did not fail", made)
	}
	until := changes[1].Until
	list := []Change{changes[0], changes[1], {At: at, Who: "bob", Why: "an outage", Action: ActionClose, Rule: "phone", Key: "+1", Until: until}}
	if who, _ := closedBy(Made(list), "phone", "+1", until); who != "bob" {
		t.Errorf("%q closed the key, want bob: the other closing failed", who)
	}
	limit, code := throttle.Sliding(3, time.Minute), perMinute().Rules[0].Limit
	l, err := throttle.New(d.timed, "phone", code, throttle.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := throttle.ForWorkers.FollowFile(t.Context(), l, code, limit); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(i.SetLimit(t.Context(), "phone", throttle.Sliding(4, time.Minute), 0, because), i.UnsetLimit(t.Context(), "phone", because)); err != nil {
		t.Fatal(err)
	}
	if changes, err = i.Audit(t.Context(), 0, 2); err != nil || changes[0].BeforeFile || !changes[1].BeforeFile || changes[1].Before != limit.String() {
		t.Errorf("the changes are %+v, %v, want that the first replaced a limit of a file", changes, err)
	}
}

// While Redis is away nothing is changed, and the error says so.
func TestNoChangeWithoutAudit(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	defer rdb.Close()
	i, err := New(rdb, Config{Policies: []queue.Policy{perMinute()}})
	if err != nil {
		t.Fatal(err)
	}
	if err := i.SetLimit(t.Context(), "phone", throttle.Sliding(1, time.Hour), 0, because); !errors.Is(err, throttle.ErrUnavailable) {
		t.Errorf("SetLimit = %v, want %v", err, throttle.ErrUnavailable)
	}
	if _, err := i.CloseRule(t.Context(), "phones", time.Hour, because); !errors.Is(err, queue.ErrInvalidPolicy) {
		t.Errorf("CloseRule of a rule that is not there = %v", err)
	}
}

// All faults of a reason are told at once.
func TestReasonsAreChecked(t *testing.T) {
	t.Parallel()
	for _, r := range []Reason{{}, {Who: " ", Why: "\t"}, {Who: strings.Repeat("x", 129), Why: strings.Repeat("x", 513)}, {Who: "a\nb", Why: "\xff"}} {
		err := r.validate()
		if !errors.Is(err, ErrInvalidReason) || strings.Count(err.Error(), "\n") != 1 {
			t.Errorf("validate(%q) = %v, want two faults", r, err)
		}
	}
	if err := because.validate(); err != nil {
		t.Error(err)
	}
}

// Of a key at most half is shown, and a hash as it is.
func TestMask(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"": "", "a": "…", "ab": "…b", "+15550100": "+…100", "+8613612345678": "+86…5678", "#hash": "#hash", "ümläüt": "ü…üt",
	} {
		if got := Mask(key); got != want {
			t.Errorf("Mask(%q) = %q, want %q", key, got, want)
		}
	}
}

// The tasks of a queue are counted by where they are, and by when they come due.
func TestQueues(t *testing.T) {
	t.Parallel()
	d := newExactRig(t, perMinute())
	i := d.inspector(throttle.Config{}, perMinute())
	for n := range 100 {
		d.booked("+1", time.Duration(n)*time.Minute)
	}
	d.at(30 * time.Second)
	got, err := i.Queues(t.Context())
	now := d.start.Add(30 * time.Second)
	want := []QueueStatus{{Queue: "default", Pending: 1, Waiting: 99, Within1m: 1, Within1h: 60, Next: d.start.Add(time.Minute), Now: now}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("Queues: %v, want -, got +:\n%s", err, diff)
	}
	if left, err := i.Left(t.Context(), "default"); err != nil || left != 100 {
		t.Errorf("Left = %d, %v, want 100", left, err)
	}
	minutes, err := i.Planned(t.Context(), "default")
	for n, planned := range minutes {
		if planned != 1 {
			t.Errorf("in minute %d %d tasks start, want 1, %v", n, planned, err)
		}
	}
	d.at(3 * time.Minute)
	if got, err := i.Queues(t.Context()); err != nil || got[0].Overdue != 3 {
		t.Errorf("Queues = %+v, %v, want 3 overdue", got, err)
	}
}

// pool is one that says a sliding limit for "phone".
func pool(pid int, since time.Time, limit, typ string) Process {
	return Process{Kind: presence.Pool, Host: "h", PID: pid, Since: since, Policies: []presence.Policy{{Type: typ, Rules: []presence.Rule{
		{Name: "day", Gate: "08:00-20:00 recipient"}, {Name: "phone", Limit: limit},
	}}}}
}

// Of pools that run a rule with several numbers the majority is right, and of equals the
// one that started last.
func TestDifferences(t *testing.T) {
	t.Parallel()
	start := time.Now()
	old, other, last := pool(1, start, "sliding 1/1m", "sms"), pool(2, start.Add(1), "sliding 1/1m", "sms"), pool(3, start.Add(2), "sliding 2/1m", "ad")
	wrong := Difference{Rule: "phone", Want: "sliding 1/1m", Got: "sliding 2/1m", Pool: "h:3"}
	if diff := cmp.Diff([]Difference{wrong}, Differences(nil, []Process{old, other, last})); diff != "" {
		t.Errorf("of three, want -, got +:\n%s", diff)
	}
	late := Difference{Rule: "phone", Want: "sliding 2/1m", Got: "sliding 1/1m", Pool: "h:1"}
	if diff := cmp.Diff([]Difference{late}, Differences(nil, []Process{old, last})); diff != "" {
		t.Errorf("of two, want -, got +:\n%s", diff)
	}
	policies := PoliciesOf([]Process{last, other, old})
	if len(policies) != 2 || policies[0].Type != "ad" || policies[0].Rules[1].Limit != throttle.Sliding(1, time.Minute) || policies[0].Rules[0].Gate.IsZero() {
		t.Fatalf("PoliciesOf = %+v, want both types with 1/1m and the gate", policies)
	}
	if diff := cmp.Diff([]Difference{wrong}, Differences(policies, []Process{old, other, last})); diff != "" {
		t.Errorf("against policies, want -, got +:\n%s", diff)
	}
	against := Differences(policies[1:], []Process{last})
	if len(against) != 2 || against[0].Type != "ad" || against[0].Want != "" {
		t.Errorf("of a type without policy: %+v", against)
	}
}

// Two applications under one prefix list the rules that they share in another order: one of the two is left out,
// and nobody else's policy.
func TestPoliciesThatContradictEachOther(t *testing.T) {
	t.Parallel()
	of := func(typ string, rules ...string) (p Process) {
		said := presence.Policy{Type: typ}
		for _, name := range rules {
			said.Rules = append(said.Rules, presence.Rule{Name: name, Limit: "sliding 1/1m"})
		}
		return Process{Kind: presence.Pool, Policies: []presence.Policy{said}}
	}
	var types []string
	for _, p := range PoliciesOf([]Process{of("a", "x", "y"), of("b", "y", "x"), of("c", "x"), of("z", "z")}) {
		types = append(types, p.Type)
	}
	if want := []string{"a", "c", "z"}; !slices.Equal(types, want) {
		t.Errorf("PoliciesOf has %q, want %q", types, want)
	}
}

// An opened key promotes the task that waits on it. Another rule may hold that task up for
// longer: then it is listed at that instant, and not as due now.
func TestOpenedKeyLeavesOneTruth(t *testing.T) {
	t.Parallel()
	phone := queue.Rule{Name: "phone", Limit: throttle.Sliding(10, time.Hour), Key: queue.MustJSONKey("$.to")}
	day := queue.Rule{Name: "day", Limit: throttle.Sliding(1, 24*time.Hour), Key: queue.MustJSONKey("$.to")}
	p := queue.Policy{Type: "sms", Rules: []queue.Rule{phone, day}}
	d := newExactRig(t, p)
	i := d.inspector(throttle.Config{}, p)
	d.booked("A", 0, asynq.TaskID("first"))
	if _, err := i.CloseKey(t.Context(), "phone", "A", 48*time.Hour, because); err != nil {
		t.Fatal(err)
	}
	d.booked("A", 48*time.Hour, asynq.TaskID("second"))
	if err := i.OpenKey(t.Context(), "phone", "A", because); err != nil {
		t.Fatal(err)
	}
	e, err := i.Explain(t.Context(), "default", "second")
	if err != nil || e.At.Sub(d.start) < 23*time.Hour {
		t.Fatalf("Explain = %+v, %v, want an instant in a day", e, err)
	}
	for w, err := range i.Deferred(t.Context(), "default") {
		if err != nil || w.ID == "second" && !w.At.Equal(e.At) {
			t.Errorf("%s is listed at %v, %v, and explained at %v", w.ID, w.At, err, e.At)
		}
	}
}
