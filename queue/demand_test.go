package queue

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/queue/internal/zones"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
)

func TestDemand(t *testing.T) {
	t.Parallel()
	p := smsPolicy()
	p.Rules[0].Limit = throttle.Sliding(3, time.Minute)
	priced := smsPolicy()
	priced.Rules[0].Limit, priced.Rules[0].Cost = p.Rules[0].Limit, MustJSONCost("$.n")
	tests := []struct {
		name    string
		policy  Policy
		payload string
		key     string
		cost    int
	}{
		{"cost is 1 without a CostFunc", p, `{"to":"13612345678"}`, "13612345678", 1},
		{"a number as the key", p, `{"to":13612345678}`, "13612345678", 1},
		{"longest key", p, `{"to":"` + strings.Repeat("k", 1024) + `"}`, strings.Repeat("k", 1024), 1},
		{"lowest cost", priced, `{"to":"a","n":1}`, "a", 1},
		{"cost above the limit in code", priced, `{"to":"a","n":4}`, "a", 4},
		{"highest cost", priced, `{"to":"a","n":1000000}`, "a", 1_000_000},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := tt.policy.Demand(asynq.NewTask(p.Type, []byte(tt.payload)))
			if err != nil {
				t.Fatalf("Demand(%s): %v", tt.payload, err)
			}
			want := Demand{Costs: []throttle.KeyCost{{Key: tt.key, Cost: tt.cost}}}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("Demand(%s) (-want +got):\n%s", tt.payload, diff)
			}
		})
	}
}

// Limits and gates keep the order of their rules, wherever the gates stand.
func TestDemandOfSeveralRules(t *testing.T) {
	t.Parallel()
	abroad := gateRule(t, "abroad")
	abroad.Zone = MustJSONZone("$.zone")
	home := gateRule(t, "home")
	home.Zone = nil // its gate has a zone of its own
	provider := Rule{Name: "provider", Limit: throttle.GCRA(100, time.Second, 20), Constant: "acme", Cost: MustJSONCost("$.n")}
	p := Policy{Type: "t", Rules: []Rule{abroad, limitRule("phone"), home, provider}}
	got, err := p.Demand(asynq.NewTask("t", []byte(`{"to":"a","n":7,"zone":"Europe/Berlin"}`)))
	if err != nil {
		t.Fatal(err)
	}
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	want := Demand{
		Costs: []throttle.KeyCost{{Key: "a", Cost: 1}, {Key: "acme", Cost: 7}},
		Gates: []gate.InZone{{Rule: "abroad", Gate: abroad.Gate, In: berlin}, {Rule: "home", Gate: home.Gate}},
	}
	byName := cmp.Comparer(func(a, b *time.Location) bool { return a == b || a != nil && b != nil && a.String() == b.String() })
	if diff := cmp.Diff(want, got, byName, cmpopts.EquateComparable(gate.Gate{})); diff != "" {
		t.Errorf("Demand (-want +got):\n%s", diff)
	}
}

func TestDemandRefuses(t *testing.T) {
	t.Parallel()
	with := func(change func(*Rule)) Policy {
		p := smsPolicy()
		p.Rules[0].Cost = MustJSONCost("$.n")
		change(&p.Rules[0])
		return p
	}
	p := with(func(*Rule) {})
	broken := with(func(r *Rule) {
		r.Key = func(task *asynq.Task) (string, error) { return "", &quotingError{string(task.Payload())} }
	})
	blank := with(func(r *Rule) { r.Key = func(*asynq.Task) (string, error) { return "", nil } })
	unpriced := with(func(r *Rule) {
		r.Cost = func(task *asynq.Task) (int, error) { return 1, &quotingError{string(task.Payload())} }
	})
	gated := func(zone ZoneFunc) Policy {
		return with(func(r *Rule) {
			*r = gateRule(t, r.Name)
			r.Zone = zone
		})
	}
	nowhere := gated(func(*asynq.Task) (*time.Location, error) { return nil, nil })
	lost := gated(func(task *asynq.Task) (*time.Location, error) { return time.UTC, &quotingError{string(task.Payload())} })
	wide := policyOf(p.Type, "narrow", p.Rules[0].Name)
	wide.Rules[1].Key = MustJSONKey("$.tenant")
	tests := []struct {
		name     string
		policy   Policy
		payload  string
		sentinel error
		reason   string
	}{
		{"no such field", p, `{"phone":"13612345678"}`, ErrNoKey, "the key function failed: $.to is missing"},
		{"payload not JSON", p, `to=13612345678`, ErrNoKey, "the key function failed: $ is not one JSON value (byte 2)"},
		{"function fails", broken, `13612345678`, ErrNoKey, "the key function failed: *queue.quotingError"},
		{"empty key", blank, `13612345678`, ErrNoKey, "the key is empty"},
		{"key too long", p, `{"to":"` + strings.Repeat("1", 1025) + `"}`, ErrNoKey, "the key is over 1024 bytes long"},
		{"the second rule's key", wide, `{"to":"13612345678"}`, ErrNoKey, "the key function failed: $.tenant is missing"},
		{"cost fails", unpriced, `{"to":"13612345678"}`, ErrBadCost, "the cost function failed: *queue.quotingError"},
		{"cost is a string", p, `{"to":"a","n":"13612345678"}`, ErrBadCost, "the cost function failed: $.n is a string, want an integer"},
		{"cost 0", p, `{"to":"a","n":0}`, ErrBadCost, "the cost is below 1 permit"},
		{"cost negative", p, `{"to":"a","n":-13612345678}`, ErrBadCost, "the cost is below 1 permit"},
		{"cost above any limit", p, `{"to":"a","n":13612345678000}`, ErrBadCost, "the cost is above 1099511627776 permits, which no limit holds"},
		{"zone fails", lost, `13612345678`, ErrNoZone, "the zone function failed: *queue.quotingError"},
		{"no zone and no error", nowhere, `13612345678`, ErrNoZone, "the zone function finds none"},
		{"no such zone", gated(MustJSONZone("$.z")), `{"z":"13612345678"}`, ErrNoZone, "the zone function failed: $.z is no time zone that is known here"},
		{"no phone", gated(func(*asynq.Task) (*time.Location, error) {
			return nil, &zones.PhoneError{Reason: "not in E.164: + and 7 to 15 digits, the first not 0"}
		}), `{"z":"13612345678"}`, ErrNoZone, "the zone function failed: not in E.164: + and 7 to 15 digits, the first not 0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := tt.policy.Demand(asynq.NewTask(p.Type, []byte(tt.payload)))
			de, ok := errors.AsType[*DemandError](err)
			if !ok || !errors.Is(err, tt.sentinel) || got.Costs != nil || got.Gates != nil {
				t.Fatalf("Demand = %v, %v, want a DemandError of %v", got, err, tt.sentinel)
			}
			bare := DemandError{Type: de.Type, Rule: de.Rule, Reason: de.Reason}
			if diff := cmp.Diff(DemandError{Type: p.Type, Rule: "sms-per-phone", Reason: tt.reason}, bare); diff != "" {
				t.Errorf("DemandError (-want +got):\n%s", diff)
			}
			if strings.Contains(err.Error(), "136") {
				t.Errorf("error text %q quotes the payload", err)
			}
		})
	}
}

func TestDemandErrorUnwrapsToTheCause(t *testing.T) {
	t.Parallel()
	p := smsPolicy()
	cause := &quotingError{"gone"}
	p.Rules[0].Key = func(*asynq.Task) (string, error) { return "", cause }
	_, err := p.Demand(asynq.NewTask(p.Type, nil))
	if got, ok := errors.AsType[*quotingError](err); !ok || got != cause {
		t.Errorf("Demand error %v does not unwrap to its cause", err)
	}
	p.Rules[0].Key = MustJSONKey("$.to")
	_, err = p.Demand(asynq.NewTask(p.Type, []byte(`{}`)))
	if !errors.Is(err, ErrInvalidPayload) || !errors.Is(err, ErrNoKey) || errors.Is(err, ErrBadCost) {
		t.Errorf("Demand error %v, want ErrInvalidPayload and ErrNoKey alone", err)
	}
}

// quotingError is an error of a careless KeyFunc: its text is the payload.
type quotingError struct{ payload string }

func (e *quotingError) Error() string { return "cannot read " + e.payload }
