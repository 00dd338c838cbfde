package inspect

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// onTheKey are the ids of what waits for the rule "phone" on the key "+1".
func (d *rig) onTheKey(i *Inspector) (ids []string) {
	d.Helper()
	for w, err := range i.OnKey(d.Context(), "default", "phone", "+1") {
		if err != nil {
			d.Fatal(err)
		}
		ids = append(ids, w.ID)
	}
	return ids
}

// waits compares until when a task waits.
func (d *rig) waits(i *Inspector, id string, want time.Duration) {
	d.Helper()
	e, err := i.Explain(d.Context(), "default", id)
	if wait := e.At.Sub(d.start); err != nil || wait.Truncate(10*time.Millisecond) != want {
		d.Errorf("%s is %v and waits for %v, %v, want %v", id, e.State, wait, err, want)
	}
}

// All that waits on a key is cancelled with its places; other keys, and a task that is
// pending, are left alone.
func TestCancelKey(t *testing.T) {
	t.Parallel()
	d := newRig(t, perMinute())
	i := d.inspector(throttle.Config{}, perMinute())
	for n := range 4 {
		d.booked("+1", time.Duration(n)*time.Minute, asynq.TaskID(fmt.Sprint("t", n)))
		d.booked("+2", time.Duration(n)*time.Minute, asynq.TaskID(fmt.Sprint("u", n)))
	}
	if got := d.onTheKey(i); !slices.Equal(got, []string{"t1", "t2", "t3"}) {
		t.Errorf("on the key are %q", got)
	}
	if err := i.Cancel(t.Context(), "default", "t2", because); err != nil {
		t.Fatal(err)
	}
	d.waits(i, "t3", 2*time.Minute)
	for _, id := range []string{"t2", "nobody"} {
		if err := i.Cancel(t.Context(), "default", id, because); !errors.Is(err, ErrNotWaiting) {
			t.Errorf("Cancel(%s) = %v, want %v", id, err, ErrNotWaiting)
		}
	}
	if n, err := i.CancelKey(t.Context(), "default", "phone", "+1", because); err != nil || n != 2 {
		t.Errorf("CancelKey = %d, %v, want 2", n, err)
	}
	if got := d.onTheKey(i); got != nil {
		t.Errorf("on the key are %q still", got)
	}
	d.booked("+1", time.Minute, asynq.TaskID("next"))
	d.waits(i, "u3", 3*time.Minute)
	d.takes("t0")
	if err := i.Cancel(t.Context(), "default", "t0", because); !errors.Is(err, ErrNotWaiting) {
		t.Errorf("Cancel of one that runs = %v, want %v", err, ErrNotWaiting)
	}
	changes, err := i.Audit(t.Context(), 0, 10)
	if err != nil || changes[0].Failed == "" || changes[2].Action != ActionCancel || changes[2].Key != "+1" || changes[2].Rule != "phone" || changes[2].Queue != "default" {
		t.Errorf("audit %+v, %v", changes, err)
	}
}

// A task goes to the front of its line, and the others come later by its permits.
func TestFront(t *testing.T) {
	t.Parallel()
	d := newRig(t, perMinute())
	i := d.inspector(throttle.Config{}, perMinute())
	for n := range 4 {
		d.booked("+1", time.Duration(n)*time.Minute, asynq.TaskID(fmt.Sprint("t", n)))
	}
	d.takes("t0")
	r := throttle.Request{Key: "+1", Cost: 1, Job: luascripts.JobID("default", "t0")}
	if g, err := i.set.Lookup("phone").Redeem(t.Context(), r); err != nil || !g.Granted {
		t.Fatal(g, err)
	}
	if err := i.Front(t.Context(), "default", "t3", because); err != nil {
		t.Fatal(err)
	}
	d.waits(i, "t3", time.Minute)
	d.waits(i, "t1", 2*time.Minute)
	d.waits(i, "t2", 3*time.Minute)
	if page, err := i.DeferredPage(t.Context(), "default", "", 1); err != nil || page.Waiting[0].At.Sub(d.start) > time.Minute {
		t.Errorf("first to wake is %+v, %v, want a task in a minute", page.Waiting, err)
	}
	for _, id := range []string{"t0", "nobody"} {
		if err := i.Front(t.Context(), "default", id, because); !errors.Is(err, ErrNotWaiting) {
			t.Errorf("Front(%s) = %v, want %v", id, err, ErrNotWaiting)
		}
	}
}

// What waits on a key goes to the front of the line of another rule, in its order, also where
// keys are hashed, and where the line is closed.
func TestFrontKey(t *testing.T) {
	t.Parallel()
	policy := perMinute()
	policy.Rules[0].Limit = throttle.Sliding(10, time.Minute)
	policy.Rules = append(policy.Rules, queue.Rule{Name: "provider", Limit: throttle.Sliding(1, time.Hour), Constant: "acme"})
	cfg := throttle.Config{Secret: []byte("sixteen bytes at least")}
	for _, closed := range []bool{false, true} {
		t.Run(fmt.Sprint("closed ", closed), func(t *testing.T) {
			t.Parallel()
			d := &rig{T: t, raw: redistest.Client(t)}
			d.Client = newClient(t, d.raw, queue.ClientConfig{Policies: []queue.Policy{policy}, Throttle: cfg})
			i, err := New(d.raw, Config{Policies: []queue.Policy{policy}, Throttle: cfg})
			if err != nil {
				t.Fatal(err)
			}
			// nobody is due while the test runs: a task that comes late lets others pass, but keeps its place
			if r, err := i.set.Lookup("provider").Redeem(t.Context(), throttle.Request{Key: "acme", Cost: 1, Job: "another"}); err != nil || !r.Granted {
				t.Fatal(r, err)
			}
			for n := range 6 {
				d.book("sms", fmt.Sprint("t", n), fmt.Sprintf(`{"to":"+%d"}`, []int{0, 1, 2, 3, 1, 1}[n]))
			}
			if closed {
				if _, err := i.CloseKey(t.Context(), "provider", "acme", time.Hour, because); err != nil {
					t.Fatal(err)
				}
			}
			if got := d.onTheKey(i); !slices.Equal(got, []string{"t1", "t4", "t5"}) {
				t.Errorf("on the key are %q", got)
			}
			if n, err := i.FrontKey(t.Context(), "default", "phone", "+1", because); err != nil || n != 3 {
				t.Errorf("FrontKey = %d, %v, want 3", n, err)
			}
			var line []string
			for w, err := range i.Line(t.Context(), "provider", "acme") {
				if err != nil {
					t.Fatal(err)
				}
				line = append(line, w.ID)
			}
			if want := []string{"t1", "t4", "t5", "t0", "t2", "t3"}; !slices.Equal(line, want) {
				t.Errorf("the provider's line is %q, want %q", line, want)
			}
		})
	}
}

// A key that is paused stays so until it is opened.
func TestPauseKey(t *testing.T) {
	t.Parallel()
	d := newRig(t, perMinute())
	i := d.inspector(throttle.Config{}, perMinute())
	if err := i.PauseKey(t.Context(), "phone", "+1", because); err != nil {
		t.Fatal(err)
	}
	d.booked("+1", 366*24*time.Hour)
	d.booked("+2", 0)
	if err := i.OpenKey(t.Context(), "phone", "+1", because); err != nil {
		t.Fatal(err)
	}
	e, err := i.ExplainNew(t.Context(), "sms", []byte(`{"to":"+3"}`))
	if err != nil || e.State != StatePending {
		t.Errorf("ExplainNew = %+v, %v", e, err)
	}
}
