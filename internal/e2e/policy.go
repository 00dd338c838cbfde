package e2e

import (
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/phonezone"
	"github.com/headwayq/headway/throttle"
)

// The task type and the rule of a run without a policy file.
const (
	TaskType = "sms:send"
	RuleName = "sms-per-phone"
)

// Policy is what a message needs before it is sent.
type Policy struct {
	queue.Policy
	PerRule bool // from -policy: grants and arrivals say what each rule was charged
}

// PhoneLimit is all that Headway has to be told for -limit: which tasks, how many of
// them, and what they are counted for.
func PhoneLimit(limit throttle.Limit) Policy {
	return Policy{Policy: queue.Policy{
		Type:  TaskType,
		Rules: []queue.Rule{{Name: RuleName, Limit: limit, Key: queue.MustJSONKey("$.to")}},
	}}
}

// ReadPolicy reads the policy of sms:send from a YAML file, which has no other.
func ReadPolicy(path string) (Policy, error) {
	all, err := queue.Funcs{PhoneZone: phonezone.Of}.ReadPolicyFiles(path)
	if err != nil {
		return Policy{}, err
	}
	var errs []error
	for _, p := range all {
		if p.Type != TaskType {
			errs = append(errs, fmt.Errorf("-policy: %q is a task type that this program does not have, want %q", p.Type, TaskType))
		}
	}
	if len(errs) > 0 {
		return Policy{}, errors.Join(errs...)
	}
	return Policy{Policy: all[0], PerRule: true}, nil
}

// DemandOf is what a message needs, by the policy.
func (p Policy) DemandOf(m Message) (queue.Demand, error) {
	payload, err := m.Encode()
	if err != nil {
		return queue.Demand{}, err
	}
	return p.Demand(asynq.NewTask(TaskType, payload))
}

// Longest is how long a grant may count.
func (p Policy) Longest() time.Duration {
	var longest time.Duration
	for _, r := range p.Rules {
		longest = max(longest, r.Limit.Window())
	}
	return longest
}

// AtLeast returns how long the limits make msgs take: the key with the most to
// pay decides. It looks at sliding limits only, so it may be longer.
func (p Policy) AtLeast(msgs []Message) time.Duration {
	var least time.Duration
	spent := map[account]int{}
	for _, m := range msgs {
		d, err := p.DemandOf(m)
		if err != nil {
			continue // said elsewhere
		}
		wants := d.Costs
		for _, r := range p.Rules {
			if IsGate(r) {
				continue
			}
			want := wants[0]
			wants = wants[1:]
			if r.Limit.Kind() != "sliding" {
				continue
			}
			of := account{r.Name, want.Key}
			spent[of] += want.Cost
			least = max(least, time.Duration((spent[of]-1)/r.Limit.Permits())*r.Limit.Window())
		}
	}
	return least
}

// IsGate says whether a rule is a gate and not a limit.
func IsGate(r queue.Rule) bool { return !r.Gate.IsZero() }

// account is a key under a rule.
type account struct{ rule, key string }

// Charge is what a message needed of one rule: of a limit a key and a cost, of a
// gate the recipient's zone.
type Charge struct {
	Rule string `json:"rule"`
	Key  string `json:"key,omitempty"` // hashed as by PhoneKey
	Cost int    `json:"cost,omitempty"`
	Zone string `json:"zone,omitempty"` // of a gate that opens by it
}

// ChargesOf returns what a message is charged, by rule. With -limit there are none:
// its one rule counts by phone, which grants and arrivals say anyway.
func (p Policy) ChargesOf(payload, secret []byte) ([]Charge, error) {
	if !p.PerRule {
		return nil, nil
	}
	d, err := p.Demand(asynq.NewTask(TaskType, payload))
	if err != nil {
		return nil, err
	}
	charges := make([]Charge, 0, len(p.Rules))
	for _, r := range p.Rules {
		c := Charge{Rule: r.Name}
		if IsGate(r) {
			if in := d.Gates[0].In; in != nil {
				c.Zone = in.String()
			}
			d.Gates = d.Gates[1:]
		} else {
			c.Key, c.Cost = PhoneKey(secret, d.Costs[0].Key), d.Costs[0].Cost
			d.Costs = d.Costs[1:]
		}
		charges = append(charges, c)
	}
	return charges, nil
}

// GrantOf is the line of a grants file for an attempt that may send the message of a
// payload. Promised is zero if the message was never told to wait. The secret is that
// of [PhoneKey].
func (p Policy) GrantOf(m Message, payload, secret []byte, attempt string, promised, at time.Time) (Grant, error) {
	charges, err := p.ChargesOf(payload, secret)
	if err != nil {
		return Grant{}, err
	}
	g := Grant{
		ID: m.ID, Phone: Mask(m.To), Key: PhoneKey(secret, m.To),
		Attempt: attempt, GrantedUs: at.UnixMicro(), Charges: charges,
	}
	if !promised.IsZero() {
		g.PromisedUs = promised.UnixMicro()
	}
	return g, nil
}

// ChargeOf finds what a rule charged in a line of a file. One without charges is of
// -limit: 1 for the phone.
func ChargeOf(charges []Charge, rule, phone string) (Charge, bool) {
	if charges == nil {
		return Charge{Rule: rule, Key: phone, Cost: 1}, true
	}
	for _, c := range charges {
		if c.Rule == rule {
			return c, true
		}
	}
	return Charge{}, false
}
