package queue

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/throttle"
)

// smsPolicy is a valid policy, for tests to change.
func smsPolicy() Policy {
	return Policy{
		Type:  "sms:send",
		Rule:  "sms-per-phone",
		Limit: throttle.Sliding(1, time.Minute),
		Key:   MustJSONKey("$.to"),
	}
}

func TestPolicyValidate(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(*Policy)
		want   []string // a part of each fault; none means valid
	}{
		{"as it should be", func(*Policy) {}, nil},
		{"with a cost", func(p *Policy) { p.Cost = MustJSONCost("$.n") }, nil},
		{"every character of a rule", func(p *Policy) { p.Rule = "azAZ09_.-" }, nil},
		{"longest rule", func(p *Policy) { p.Rule = strings.Repeat("r", 64) }, nil},
		{"rule too long", func(p *Policy) { p.Rule = strings.Repeat("r", 65) }, []string{"rule name"}},
		{"no type", func(p *Policy) { p.Type = "" }, []string{"no Type"}},
		{"blank type", func(p *Policy) { p.Type = " \t" }, []string{"no Type"}},
		{"hash tag in the rule", func(p *Policy) { p.Rule = "a{b}" }, []string{"rule name"}},
		{"rule not ASCII", func(p *Policy) { p.Rule = "短信" }, []string{"rule name"}},
		{"rule not UTF-8", func(p *Policy) { p.Rule = "a\xff" }, []string{"rule name"}},
		{"no limit", func(p *Policy) { p.Limit = throttle.Limit{} }, []string{"limit"}},
		{"zero policy", func(p *Policy) { *p = Policy{} }, []string{"no Type", "no Rule", "limit", "no Key"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := smsPolicy()
			tt.change(&p)
			wantFaults(t, p.Validate(), tt.want)
		})
	}
}

func TestValidatePolicies(t *testing.T) {
	t.Parallel()
	with := func(change func(*Policy)) Policy {
		p := smsPolicy()
		change(&p)
		return p
	}
	code := with(func(p *Policy) { p.Type = "sms:code" })
	tests := []struct {
		name     string
		policies []Policy
		want     []string
	}{
		{"none", nil, nil},
		{"two types share a rule", []Policy{smsPolicy(), code}, nil},
		{"a type twice", []Policy{smsPolicy(), code, smsPolicy()}, []string{`policy 2 ("sms:send"): policy 0 has the same type`}},
		{
			"a rule with two limits",
			[]Policy{smsPolicy(), with(func(p *Policy) { p.Type, p.Limit = "sms:ad", throttle.Sliding(2, time.Minute) })},
			[]string{`policy 1 ("sms:ad"): rule "sms-per-phone" has the limit sliding 2/1m here and sliding 1/1m in policy 0 ("sms:send")`},
		},
		{
			"all faults at once",
			[]Policy{with(func(p *Policy) { p.Key = nil }), smsPolicy(), with(func(p *Policy) { p.Type, p.Rule = "b", "" })},
			[]string{`policy 0 ("sms:send"): no Key`, `policy 1 ("sms:send"): policy 0 has`, `policy 2 ("b"): no Rule`},
		},
		{
			// an empty name is one fault each, not a name that two policies share
			"two zero policies",
			[]Policy{{}, {}},
			[]string{"policy 0", "policy 0", "policy 0", "policy 0", "policy 1", "policy 1", "policy 1", "policy 1"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			wantFaults(t, ValidatePolicies(tt.policies), tt.want)
		})
	}
}

// wantFaults checks that err joins one error per text, in order, each of which
// contains its text and unwraps to ErrInvalidPolicy.
func wantFaults(t *testing.T, err error, texts []string) {
	t.Helper()
	if len(texts) == 0 {
		if err != nil {
			t.Fatalf("got error %v, want none", err)
		}
		return
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || len(joined.Unwrap()) != len(texts) {
		t.Fatalf("got error %v, want %d faults", err, len(texts))
	}
	for i, fault := range joined.Unwrap() {
		if !errors.Is(fault, ErrInvalidPolicy) || !strings.Contains(fault.Error(), texts[i]) {
			t.Errorf("fault %d = %q, want ErrInvalidPolicy with %q", i, fault, texts[i])
		}
	}
}

func TestDemand(t *testing.T) {
	t.Parallel()
	p := smsPolicy()
	p.Limit = throttle.Sliding(3, time.Minute)
	priced := p
	priced.Cost = MustJSONCost("$.n")
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
			key, cost, err := tt.policy.Demand(asynq.NewTask(p.Type, []byte(tt.payload)))
			if err != nil || key != tt.key || cost != tt.cost {
				t.Errorf("Demand(%s) = %q, %d, %v, want %q, %d", tt.payload, key, cost, err, tt.key, tt.cost)
			}
		})
	}
}

func TestDemandRefuses(t *testing.T) {
	t.Parallel()
	p := smsPolicy()
	p.Limit = throttle.Sliding(3, time.Minute)
	p.Cost = MustJSONCost("$.n")
	broken := p
	broken.Key = func(task *asynq.Task) (string, error) {
		return "", &quotingError{string(task.Payload())}
	}
	blank := p
	blank.Key = func(*asynq.Task) (string, error) { return "", nil }
	unpriced := p
	unpriced.Cost = func(task *asynq.Task) (int, error) {
		return 1, &quotingError{string(task.Payload())}
	}
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
		{"cost fails", unpriced, `{"to":"13612345678"}`, ErrBadCost, "the cost function failed: *queue.quotingError"},
		{"cost is a string", p, `{"to":"a","n":"13612345678"}`, ErrBadCost, "the cost function failed: $.n is a string, want an integer"},
		{"cost 0", p, `{"to":"a","n":0}`, ErrBadCost, "the cost is below 1 permit"},
		{"cost negative", p, `{"to":"a","n":-13612345678}`, ErrBadCost, "the cost is below 1 permit"},
		{"cost above any limit", p, `{"to":"a","n":13612345678}`, ErrBadCost, "the cost is above 1000000 permits, which no limit holds"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			key, cost, err := tt.policy.Demand(asynq.NewTask(p.Type, []byte(tt.payload)))
			de, ok := errors.AsType[*DemandError](err)
			if !ok || !errors.Is(err, tt.sentinel) || key != "" || cost != 0 {
				t.Fatalf("Demand = %q, %d, %v, want a DemandError of %v", key, cost, err, tt.sentinel)
			}
			got := DemandError{Type: de.Type, Rule: de.Rule, Reason: de.Reason}
			if diff := cmp.Diff(DemandError{Type: p.Type, Rule: p.Rule, Reason: tt.reason}, got); diff != "" {
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
	p.Key = func(*asynq.Task) (string, error) { return "", cause }
	_, _, err := p.Demand(asynq.NewTask(p.Type, nil))
	if got, ok := errors.AsType[*quotingError](err); !ok || got != cause {
		t.Errorf("Demand error %v does not unwrap to its cause", err)
	}
	p.Key = MustJSONKey("$.to")
	_, _, err = p.Demand(asynq.NewTask(p.Type, []byte(`{}`)))
	if !errors.Is(err, ErrInvalidPayload) || !errors.Is(err, ErrNoKey) || errors.Is(err, ErrBadCost) {
		t.Errorf("Demand error %v, want ErrInvalidPayload and ErrNoKey alone", err)
	}
}

// quotingError is an error of a careless KeyFunc: its text is the payload.
type quotingError struct{ payload string }

func (e *quotingError) Error() string { return "cannot read " + e.payload }
