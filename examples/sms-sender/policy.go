package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/phonezone"
	"github.com/headwayq/headway/throttle"
)

const (
	taskType = "sms:send"
	ruleName = "sms-per-phone"
)

// policy is what a message needs before it is sent.
type policy struct {
	queue.Policy
	file bool // from -policy: grants and arrivals say what each rule was charged
}

// smsPolicy is all that Headway has to be told for -limit: which tasks, how many of
// them, and what they are counted for.
func smsPolicy(limit throttle.Limit) policy {
	return policy{Policy: queue.Policy{
		Type:  taskType,
		Rules: []queue.Rule{{Name: ruleName, Limit: limit, Key: queue.MustJSONKey("$.to")}},
	}}
}

// readPolicy reads the policy of sms:send from a YAML file, which has no other.
func readPolicy(path string) (policy, error) {
	all, err := queue.Funcs{PhoneZone: phonezone.Of}.ReadPolicyFiles(path)
	if err != nil {
		return policy{}, err
	}
	var errs []error
	for _, p := range all {
		if p.Type != taskType {
			errs = append(errs, fmt.Errorf("-policy: %q is a task type that this program does not have, want %q", p.Type, taskType))
		}
	}
	if len(errs) > 0 {
		return policy{}, errors.Join(errs...)
	}
	return policy{Policy: all[0], file: true}, nil
}

// demand is what a message needs, by the policy.
func (p policy) demand(m Message) (queue.Demand, error) {
	payload, err := m.Encode()
	if err != nil {
		return queue.Demand{}, err
	}
	return p.Demand(asynq.NewTask(taskType, payload))
}

// longest is how long a grant may count.
func (p policy) longest() time.Duration {
	var longest time.Duration
	for _, r := range p.Rules {
		longest = max(longest, r.Limit.Window())
	}
	return longest
}

// atLeast returns how long the limits make msgs take: the key with the most to
// pay decides. It looks at sliding limits only, so it may be longer.
func (p policy) atLeast(msgs []Message) time.Duration {
	var least time.Duration
	spent := map[account]int{}
	for _, m := range msgs {
		d, err := p.demand(m)
		if err != nil {
			continue // said elsewhere
		}
		wants := d.Costs
		for _, r := range p.Rules {
			if isGate(r) {
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

func isGate(r queue.Rule) bool { return !r.Gate.IsZero() }

// account is a key under a rule.
type account struct{ rule, key string }

// Charge is what a message needed of one rule: of a limit a key and a cost, of a
// gate the recipient's zone.
type Charge struct {
	Rule string `json:"rule"`
	Key  string `json:"key,omitempty"` // hashed as by phoneKey
	Cost int    `json:"cost,omitempty"`
	Zone string `json:"zone,omitempty"` // of a gate that opens by it
}

// charges returns what a message is charged, by rule. With -limit there are none:
// its one rule counts by phone, which grants and arrivals say anyway.
func (p policy) charges(payload, secret []byte) ([]Charge, error) {
	if !p.file {
		return nil, nil
	}
	d, err := p.Demand(asynq.NewTask(taskType, payload))
	if err != nil {
		return nil, err
	}
	charges := make([]Charge, 0, len(p.Rules))
	for _, r := range p.Rules {
		c := Charge{Rule: r.Name}
		if isGate(r) {
			if in := d.Gates[0].In; in != nil {
				c.Zone = in.String()
			}
			d.Gates = d.Gates[1:]
		} else {
			c.Key, c.Cost = phoneKey(secret, d.Costs[0].Key), d.Costs[0].Cost
			d.Costs = d.Costs[1:]
		}
		charges = append(charges, c)
	}
	return charges, nil
}

// chargeOf finds what a rule charged in a line of a file. One without charges is of
// -limit: 1 for the phone.
func chargeOf(charges []Charge, rule, phone string) (Charge, bool) {
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
