package inspect

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/presence"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// A server that has just begun may have forgotten grants, and pools with HoldAfterFailover hold its keys. An
// inspector learns that from the pools, says until when, and says so where it can't know it.
func TestKeysThatAreHeld(t *testing.T) {
	t.Parallel()
	redistest.NeedFunctions(t)
	s := redistest.Start(t, redistest.Own())
	rdb := s.Client(t)
	if err := rdb.Do(t.Context(), "acl", "setuser", "viewer", "on", ">secret", "~*", "&*", "+@all", "-fcall").Err(); err != nil {
		t.Fatal(err)
	}
	o := s.ClientOptions()
	o.Username, o.Password = "viewer", "secret"
	viewer := redis.NewClient(o)
	defer viewer.Close()

	perHour := perMinute()
	perHour.Rules[0].Limit = throttle.Sliding(1, time.Hour)
	cfg := throttle.Config{HoldAfterFailover: true}
	client := newClient(t, rdb, queue.ClientConfig{Policies: []queue.Policy{perHour}, Throttle: cfg})
	b, err := client.Book(t.Context(), smsTo("+1", asynq.TaskID("a")))
	if err != nil || b.Wait < 50*time.Minute {
		t.Fatalf("Book = %+v, %v, want a place at the end of the hold: or this test shows nothing", b, err)
	}

	ours, _ := luascripts.Library()
	for name, c := range map[string]struct {
		pool    string
		rdb     redis.UniversalClient
		cfg     throttle.Config
		state   State
		unknown bool
	}{
		"pools hold":                 {ours, rdb, throttle.Config{}, StateHeld, false},
		"it is told in the config":   {"", rdb, cfg, StateHeld, false},
		"pools don't hold":           {"", rdb, throttle.Config{}, StatePending, false},
		"pools of another release":   {"headway_0123456789ab", rdb, throttle.Config{}, StatePending, true},
		"a viewer without functions": {ours, viewer, throttle.Config{}, StatePending, true},
	} {
		text, err := json.Marshal(presence.Process{ID: "1", Kind: presence.Pool, Hold: c.pool})
		if err != nil {
			t.Fatal(err)
		}
		runs(t, rdb, "1", string(text))
		i, err := New(c.rdb, Config{Policies: []queue.Policy{perHour}, Throttle: c.cfg})
		if err != nil {
			t.Fatal(err)
		}
		held := c.state == StateHeld
		k, err := i.Key(t.Context(), "phone", "+2")
		if err != nil || k.Held.After(k.Now) != held || k.Next.After(k.Now) != held || k.HoldUnknown != c.unknown || !k.Closed.IsZero() {
			t.Errorf("%s: Key = %+v, %v, want it held: %v, not known: %v", name, k, err, held, c.unknown)
		}
		e, err := i.ExplainNew(t.Context(), "sms", []byte(`{"to":"+2"}`))
		if err != nil || e.State != c.state || held && !e.At.Equal(e.Held) || e.Rules[0].HoldUnknown != c.unknown {
			t.Errorf("%s: ExplainNew = %+v, %v, want %v", name, e, err, c.state)
		}
		e, err = i.Explain(t.Context(), "default", "a")
		if err != nil || (e.State == StateHeld) != held || held && !e.At.Equal(b.At) {
			t.Errorf("%s: Explain = %+v, %v, want it held: %v, until %v", name, e, err, held, b.At)
		}
	}
}

// A key that is closed, and whose rule is closed for longer, shows both closings, and who made them. Who opens the
// key ends its own, and the audit list has when that would have ended.
func TestBothClosingsOfAKey(t *testing.T) {
	t.Parallel()
	d := newRig(t, perMinute())
	i := d.inspector(throttle.Config{}, perMinute())
	if _, err := i.CloseKey(t.Context(), "phone", "+1", time.Hour, Reason{Who: "bob", Why: "a wrong number"}); err != nil {
		t.Fatal(err)
	}
	if _, err := i.CloseRule(t.Context(), "phone", 2*time.Hour, because); err != nil {
		t.Fatal(err)
	}
	k, err := i.Key(t.Context(), "phone", "+1")
	if err != nil || k.OwnClosed.Sub(d.start) != time.Hour || k.RuleClosed.Sub(d.start) != 2*time.Hour || !k.Closed.Equal(k.RuleClosed) {
		t.Errorf("Key = %+v, %v, want it closed for an hour, and its rule for two", k, err)
	}
	if k.Who != "bob" || k.RuleWho != because.Who || k.RuleWhy != because.Why {
		t.Errorf("the key was closed by %q, the rule by %q: %q", k.Who, k.RuleWho, k.RuleWhy)
	}
	if err := i.OpenKey(t.Context(), "phone", "+1", because); err != nil {
		t.Fatal(err)
	}
	if k, err = i.Key(t.Context(), "phone", "+1"); err != nil || !k.OwnClosed.IsZero() || k.RuleClosed.IsZero() || k.Who != "" {
		t.Errorf("after it was opened Key = %+v, %v, want that only its rule is closed", k, err)
	}
	if changes, err := i.Audit(t.Context(), 0, 1); err != nil || changes[0].BeforeUntil.Sub(d.start) != time.Hour {
		t.Errorf("the opening is noted as %+v, %v, want that the key was closed for an hour", changes, err)
	}
}
