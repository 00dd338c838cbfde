package queue

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
)

// smsPolicy is a valid policy of one rule, for tests to change.
func smsPolicy() Policy {
	return Policy{Type: "sms:send", Rules: []Rule{limitRule("sms-per-phone")}}
}

// limitRule is a valid rule with a limit.
func limitRule(name string) Rule {
	return Rule{Name: name, Limit: throttle.Sliding(1, time.Minute), Key: MustJSONKey("$.to")}
}

// gateRule is a valid rule with a gate that opens by the recipient's zone.
func gateRule(t *testing.T, name string) Rule {
	return Rule{Name: name, Gate: recipientGate(t), Zone: utcZone}
}

func recipientGate(t *testing.T) gate.Gate {
	t.Helper()
	hours, err := gate.Parse("08:00-21:00 recipient")
	if err != nil {
		t.Fatal(err)
	}
	return hours
}

func utcZone(*asynq.Task) (*time.Location, error) { return time.UTC, nil }

// policyOf has limits of these names.
func policyOf(typ string, rules ...string) Policy {
	p := Policy{Type: typ}
	for _, name := range rules {
		p.Rules = append(p.Rules, limitRule(name))
	}
	return p
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

func TestChargePolicyText(t *testing.T) {
	t.Parallel()
	for pay, text := range map[ChargePolicy]string{ChargeEveryAttempt: "every attempt", ChargeSuccess: "success", 2: "ChargePolicy(2)", 255: "ChargePolicy(255)"} {
		want(t, pay.String(), text)
	}
}
