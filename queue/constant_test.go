package queue

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/throttle"
)

func TestConstants(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"a", strings.Repeat("k", 1024)} {
		p := Policy{Type: "t", Rules: []Rule{{Name: "provider", Limit: throttle.Sliding(1, time.Minute), Constant: key}}}
		if err := ValidatePolicies([]Policy{p}); err != nil {
			t.Errorf("%.9q is refused: %v", key, err)
		}
		if d, err := p.Demand(asynq.NewTask("t", nil)); err != nil || d.Costs[0].Key != key {
			t.Errorf("%.9q gives the key %.9q, %v", key, d.Costs[0].Key, err)
		}
	}
	for _, cost := range []int{1, 1_000_000} {
		if got, err := constantCost(cost)(asynq.NewTask("t", nil)); got != cost || err != nil {
			t.Errorf("constantCost(%d) gives %d, %v", cost, got, err)
		}
	}
}

func TestConstantsThatNoTaskCanHave(t *testing.T) {
	t.Parallel()
	own := func(*asynq.Task) (string, error) { return "own", nil }
	for name, tt := range map[string]struct {
		rule Rule
		want string
	}{
		"neither":  {Rule{}, "no key"},
		"both":     {Rule{Key: own, Constant: "acme"}, "both Key and Constant, want one of them"},
		"too long": {Rule{Constant: strings.Repeat("k", 1025)}, "a constant key of 1025 bytes, want 1 to 1024"},
		"a path":   {Rule{Constant: "$.to"}, "a constant key that begins with $, as a path does: want a path, such as $.to, or a constant, such as acme"},
		"marked":   {Rule{Constant: "=acme"}, "a constant key that begins with =, which marks constants in policy files: want the constant itself, such as acme"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tt.rule.Name, tt.rule.Limit = "provider", throttle.Sliding(1, time.Minute)
			err := ValidatePolicies([]Policy{{Type: "t", Rules: []Rule{tt.rule}}})
			if !errors.Is(err, ErrInvalidPolicy) || !strings.HasSuffix(err.Error(), tt.want) {
				t.Errorf("ValidatePolicies = %v, want %q", err, tt.want)
			}
		})
	}
	want(t, panicOf(func() { constantCost(0) }), any("queue: a constant cost of 0, want 1 to 1099511627776"))
	want(t, panicOf(func() { constantCost(1<<40 + 1) }), any("queue: a constant cost of 1099511627777, want 1 to 1099511627776"))
}
