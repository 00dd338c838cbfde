package inspect

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// ids are the tasks of a list, in its order.
func ids(t *testing.T, list func(func(WaitingTask, error) bool)) (out []string) {
	t.Helper()
	for w, err := range list {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, w.ID)
	}
	return out
}

// A line is listed in its order and to its end, and what leaves or comes between two
// pages moves nobody else out of the list.
func TestLine(t *testing.T) {
	t.Parallel()
	const n = pageMax + 7
	policy := queue.Policy{Type: "sms", Rules: []queue.Rule{{Name: "phone", Limit: throttle.Sliding(1, time.Second), Key: queue.MustJSONKey("$.to")}}}
	d := newRig(t, policy)
	i := d.inspector(throttle.Config{}, policy)
	var tasks []*queue.Task
	var want []string
	for k := range n {
		want = append(want, fmt.Sprintf("t%03d", k))
		tasks = append(tasks, smsTo("+1", asynq.TaskID(want[k])))
	}
	for _, r := range d.BookMany(t.Context(), tasks) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	limiter := i.set.Lookup("phone").Rules()[0]
	if _, err := limiter.Policy().Book(t.Context(), throttle.Request{Key: "+1", Cost: 1, Job: "somebody"}); err != nil {
		t.Fatal(err)
	}
	before := redistest.Content(t, d.raw)
	if got := ids(t, i.Line(t.Context(), "phone", "+1")); !slices.Equal(got, append(slices.Clone(want), "")) {
		t.Errorf("Line = %q, want %q and one that is no task", got, want)
	}
	if got := ids(t, i.Line(t.Context(), "phone", "+2")); len(got) != 0 {
		t.Errorf("the line of another key is %q", got)
	}
	if after := redistest.Content(t, d.raw); !maps.Equal(before, after) {
		t.Error("a list changed what Redis holds")
	}

	leave := func(k int) {
		t.Helper()
		if _, err := limiter.Policy().Cancel(t.Context(), throttle.Request{Key: "+1", Cost: 1, Job: luascripts.JobID("default", want[k])}); err != nil {
			t.Fatal(err)
		}
	}
	first, err := i.LinePage(t.Context(), "phone", "+1", "", 100)
	if err != nil || len(first.Waiting) != 100 || first.All != n+1 || first.Next == "" {
		t.Fatalf("the first page: %d places of %d, next %q, %v", len(first.Waiting), first.All, first.Next, err)
	}
	for k, w := range first.Waiting {
		if !w.At.Equal(d.start.Add(time.Duration(k)*time.Second)) || w.Cost != 1 || w.Queue != "default" || w.Parked {
			t.Fatalf("place %d is %+v", k, w)
		}
	}
	leave(0)
	leave(99) // the last of the page
	leave(150)
	second, err := i.LinePage(t.Context(), "phone", "+1", first.Next, 100)
	if err != nil || len(second.Waiting) != 100 || second.Waiting[0].ID != "t100" || second.Waiting[50].ID != "t151" {
		t.Fatalf("the second page has %d places from %+v on, %v, want 100 from t100 on, without t150", len(second.Waiting), second.Waiting[:1], err)
	}
	if at := d.start.Add(98 * time.Second); !second.Waiting[0].At.Equal(at) {
		t.Errorf("t100 comes at %v, want %v: two before it left", second.Waiting[0].At, at)
	}
	if w, err := i.Explain(t.Context(), "default", "t151"); err != nil || !w.At.Equal(second.Waiting[50].At) || w.Jobs != 148 {
		t.Errorf("Explain(t151) = %+v, %v, want as listed, %v, behind 148", w, err, second.Waiting[50].At)
	}
}

// Everything that pools will wake on a queue is listed once, the first to come first,
// also where many have one instant.
func TestDeferred(t *testing.T) {
	t.Parallel()
	d := newExactRig(t, perMinute())
	i := d.inspector(throttle.Config{}, perMinute())
	var tasks []*queue.Task
	want := map[string]time.Time{}
	for k := range 2 * pageMax {
		phone, turn := fmt.Sprint("+", k%(pageMax-1)), k/(pageMax-1)
		id := fmt.Sprintf("t%03d", k)
		tasks = append(tasks, smsTo(phone, asynq.TaskID(id)))
		if turn > 0 {
			want[id] = d.start.Add(time.Duration(turn) * time.Minute)
		}
	}
	d.BookMany(t.Context(), tasks)
	for _, most := range []int{1, 100, pageMax} {
		got, last := map[string]time.Time{}, time.Time{}
		list := pages(func(from Cursor) (Page, error) { return i.DeferredPage(t.Context(), "default", from, most) })
		for w, err := range list {
			if err != nil {
				t.Fatal(err)
			}
			if _, twice := got[w.ID]; twice || w.At.Before(last) || w.Queue != "default" || !slices.Equal(w.Rules, []string{"phone"}) {
				t.Errorf("%+v comes after %v, twice is %v", w, last, twice)
			}
			got[w.ID], last = w.At, w.At
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("pages of %d, want -, got +:\n%s", most, diff)
		}
	}
	if got := ids(t, i.Deferred(t.Context(), "default")); len(got) != len(want) {
		t.Errorf("Deferred lists %d, want %d", len(got), len(want))
	}
	if got := ids(t, i.Deferred(t.Context(), "other")); len(got) != 0 {
		t.Errorf("another queue has %q", got)
	}
}

// With a Secret the inspector finds a line by its key in clear, and neither an answer nor
// Redis shows that key.
func TestInspectorWithSecret(t *testing.T) {
	t.Parallel()
	const phone = "+15550100"
	cfg := throttle.Config{Secret: []byte("0123456789abcdef"), Prefix: "mine"}
	d := newRig(t, perMinute())
	c, err := queue.NewClient(d.timed, queue.ClientConfig{Policies: []queue.Policy{perMinute()}, Throttle: cfg})
	if err != nil {
		t.Fatal(err)
	}
	for n := range 2 {
		if _, err := c.Book(t.Context(), smsTo(phone, asynq.TaskID(fmt.Sprint("t", n)))); err != nil {
			t.Fatal(err)
		}
	}
	i := d.inspector(cfg, perMinute())
	w, err := i.Explain(t.Context(), "default", "t1")
	if err != nil || w.Jobs != 1 || w.Rule != "phone" {
		t.Errorf("Explain = %+v, %v, want one behind another", w, err)
	}
	p, err := i.LinePage(t.Context(), "phone", phone, "", 10)
	if err != nil || len(p.Waiting) != 2 {
		t.Errorf("LinePage = %+v, %v, want two", p, err)
	}
	away, err := i.DeferredPage(t.Context(), "default", "", 10)
	if err != nil || len(away.Waiting) != 1 {
		t.Errorf("DeferredPage = %+v, %v, want one", away, err)
	}
	if shown := fmt.Sprintf("%+v %+v %+v", w, p, away); strings.Contains(shown, phone[1:]) {
		t.Errorf("an answer shows the phone: %s", shown)
	}
}

// On Redis Cluster each queue and each key has its slot.
func TestInspectorOnCluster(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3)
	c := newClient(t, rdb, queue.ClientConfig{Policies: []queue.Policy{perMinute()}})
	i, err := New(rdb, Config{Policies: []queue.Policy{perMinute()}})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{} // by phone
	for k := range 12 {
		id, queue, phone := fmt.Sprint("t", k), fmt.Sprint("q", k%2), fmt.Sprint("+", k%3)
		if k < 3 { // or the first may run, and is parked when no pool takes it
			if g, err := i.set.Lookup("phone").TryAcquire(t.Context(), throttle.Request{Key: phone, Cost: 1}); err != nil || !g.Granted {
				t.Fatal(g, err)
			}
		}
		b, err := c.Book(t.Context(), smsTo(phone, asynq.TaskID(id), asynq.Queue(queue)))
		if err != nil {
			t.Fatal(err)
		}
		w, err := i.Explain(t.Context(), queue, id)
		if err != nil || w.State != StateLimit || w.Rule != b.Rule || !w.At.Equal(b.At) || w.Jobs != k/3 {
			t.Errorf("Explain(%s) = %+v, %v, want it as it was booked, %+v, behind %d", id, w, err, b, k/3)
		}
		want[phone] = append(want[phone], id)
	}
	for phone, want := range want {
		if got := ids(t, i.Line(t.Context(), "phone", phone)); !slices.Equal(got, want) {
			t.Errorf("the line of %s is %q, want %q", phone, got, want)
		}
	}
	if got := ids(t, i.Deferred(t.Context(), "q0")); len(got) != 6 {
		t.Errorf("on one queue %q are put away, want 6", got)
	}
}
