package inspect

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/history"
	"github.com/headwayq/headway/internal/presence"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// perTenant has a limit for each tenant. That of acme was set at an instant, so that a process
// which does not know it is refused.
func perTenant(changed time.Time) queue.Policy {
	return queue.Policy{Type: "report", Rules: []queue.Rule{{
		Name: "tenant", Limit: throttle.Sliding(1, time.Minute), Key: queue.MustJSONKey("$.tenant"),
		LimitOf: func(_ context.Context, key string, _ time.Time) (throttle.Limit, time.Time, error) {
			if key == "acme" {
				return throttle.Sliding(2, time.Hour), changed, nil
			}
			return throttle.Limit{}, time.Time{}, nil
		},
	}}}
}

// bookReports books tasks r0, r1 ... of a tenant, of which two may run.
func (d *rig) bookReports(n int) {
	d.Helper()
	for k := range n {
		task := queue.NewTask("report", []byte(`{"tenant":"acme"}`), asynq.TaskID(fmt.Sprint("r", k)))
		if _, err := d.Book(d.Context(), task); err != nil {
			d.Fatal(err)
		}
	}
}

// What is asked about a key of a tenant is answered by the limit of that tenant, also where Redis
// has only hashes of keys.
func TestLimitOfAKey(t *testing.T) {
	t.Parallel()
	own := throttle.Sliding(2, time.Hour)
	for name, cfg := range map[string]throttle.Config{"clear": {}, "secret": {Secret: []byte("sixteen bytes ..")}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newRig(t)
			policy := perTenant(d.start)
			d.Client = newClient(t, d.timed, queue.ClientConfig{Policies: []queue.Policy{policy}, Throttle: cfg})
			d.bookReports(4)
			fresh := func() *Inspector { return d.inspector(cfg, policy) } // which has not met the key

			e, err := fresh().Explain(t.Context(), "default", "r3")
			if err != nil || e.State != StateLimit || e.At.Sub(d.start) != time.Hour || len(e.Rules) != 1 || e.Rules[0].Err != nil || e.Rules[0].Limit != own.String() {
				t.Errorf("Explain = %+v, %v, want it in an hour, by %v", e, err, own)
			}
			if p, err := fresh().Position(t.Context(), "default", "r3"); err != nil || p.Place == 0 {
				t.Errorf("Position = %+v, %v, want a place", p, err)
			}
			if e, err := fresh().ExplainNew(t.Context(), "report", []byte(`{"tenant":"acme"}`)); err != nil || e.Rules[0].Limit != own.String() {
				t.Errorf("ExplainNew = %+v, %v, want it by %v", e, err, own)
			}
			k, err := fresh().Key(t.Context(), "tenant", "acme")
			if err != nil || k.Limit != own || k.Waiting == 0 {
				t.Errorf("Key = %+v, %v, want the limit %v, and a line", k, err, own)
			}
			if k, err := fresh().Key(t.Context(), "tenant", "zeta"); err != nil || k.Limit != policy.Rules[0].Limit {
				t.Errorf("Key of a tenant without a limit = %+v, %v, want that of the rule", k, err)
			}
			if p, err := fresh().LinePage(t.Context(), "tenant", "acme", "", 10); err != nil || p.All == 0 {
				t.Errorf("LinePage = %+v, %v, want a line", p, err)
			}
			if n, err := fresh().FrontKey(t.Context(), "default", "tenant", "acme", because); err != nil || n == 0 {
				t.Errorf("FrontKey = %d, %v", n, err)
			}
			if err := fresh().Front(t.Context(), "default", "r3", because); err != nil {
				t.Errorf("Front: %v", err)
			}
			i := fresh()
			if _, err := i.CloseKey(t.Context(), "tenant", "acme", time.Hour, because); err != nil {
				t.Errorf("CloseKey: %v", err)
			}
			id, err := fresh().IDOf(t.Context(), "tenant", "acme")
			if err != nil {
				t.Fatal(err)
			}
			if k, err := i.ByID().Key(t.Context(), "tenant", id); err != nil || k.Limit != own {
				t.Errorf("by its id, Key = %+v, %v, want the limit %v", k, err, own)
			}
		})
	}
}

// Where the function of the program is not known, a question about a key says so instead of
// answering by the limit of the rule. One pool that says it is enough: others may be older.
func TestLimitOfAKeyThatOnlyTheProgramKnows(t *testing.T) {
	t.Parallel()
	d := newRig(t)
	d.Client = newClient(t, d.timed, queue.ClientConfig{Policies: []queue.Policy{perTenant(time.Time{})}})
	d.bookReports(4)
	said := func(pid int, perKey bool, types ...string) Process {
		p := Process{Kind: presence.Pool, Host: "h", PID: pid, Since: d.start.Add(time.Duration(pid))}
		for _, typ := range types {
			rules := []presence.Rule{{Name: "tenant", Limit: "sliding 1/1m", PerKey: perKey}, {Name: "all", Limit: "sliding 9/1m"}}
			p.Policies = append(p.Policies, presence.Policy{Type: typ, Rules: rules})
		}
		return p
	}
	for name, running := range map[string][]Process{
		"all say it": {said(1, true, "report", "mail"), said(2, true, "report")},
		"the newest": {said(1, false, "report", "mail"), said(2, true, "report")},
		"the oldest": {said(1, true, "report"), said(2, false, "report", "mail")},
	} {
		policies := PoliciesOf(running)
		if len(policies) != 2 || policies[0].Rules[0].LimitOf == nil || policies[1].Rules[0].LimitOf == nil || policies[1].Rules[1].LimitOf != nil {
			t.Fatalf("%s: PoliciesOf = %+v, want both types, with a function of that rule alone", name, policies)
		}
		i := d.inspector(throttle.Config{}, policies...)
		_, key := i.Key(t.Context(), "tenant", "acme")
		_, task := i.Explain(t.Context(), "default", "r3")
		_, line := i.LinePage(t.Context(), "tenant", "acme", "", 10)
		for what, err := range map[string]error{"Key": key, "LinePage": line, "Explain": task} {
			if !errors.Is(err, throttle.ErrStoredLimit) || !strings.Contains(err.Error(), "the limit of the key is not known") || strings.Contains(err.Error(), "acme") {
				t.Errorf("%s: %s: %v, want that the limit of the key is not known", name, what, err)
			}
		}
		if _, err := i.Key(t.Context(), "all", "acme"); err != nil {
			t.Errorf("%s: a key of another rule: %v", name, err)
		}
		for _, r := range i.Rules(t.Context()) {
			if r.Err != nil {
				t.Errorf("%s: the rule %s: %v", name, r.Rule, r.Err)
			}
		}
	}
}

// No share is told of a rule whose keys have limits of their own: the busiest key may have any.
func TestNoShareOfLimitsPerKey(t *testing.T) {
	t.Parallel()
	d := newRig(t)
	r := history.New(d.raw, "hw", func(string) string { return "sliding 1/1m" })
	r.Of("tenant").Granted("acme", 50)
	r.Write(t.Context())
	d.timed.SetTime(time.Now())
	h, err := d.inspector(throttle.Config{}, perTenant(time.Time{})).History(t.Context(), "tenant", time.Hour)
	if err != nil || !h.PerKey || h.Total.Permits != 50 || h.Total.Used != 0 {
		t.Errorf("History = %+v, %v, want no share of 50 permits", h.Total, err)
	}
	for _, p := range h.Points {
		if p.Used != 0 {
			t.Errorf("a share of %v is told", p.Used)
		}
	}
}
