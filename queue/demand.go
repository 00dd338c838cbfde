package queue

import (
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/queue/internal/zones"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
)

// Demand is what one task needs under its policy.
type Demand struct {
	Costs []throttle.KeyCost // of the rules with limits, in their order
	Gates []gate.InZone      // of the rules with gates, in their order
}

// Request is how the task asks its policy under the name of a job.
func (d Demand) Request(job string) throttle.Request {
	return throttle.Request{Key: d.Costs[0].Key, Cost: d.Costs[0].Cost, More: d.Costs[1:], Gates: d.Gates, Job: job}
}

// Demand returns what the task needs under p: for each limit the key that it is
// counted for and the number of permits, and for each gate the recipient's zone
// if it opens by that. p must be valid, and of the task's type: Demand does not
// compare it.
//
// A task that could never run is a [*DemandError] about the first rule that
// refuses it: one without a key, with a key over 1024 bytes, with a cost below 1
// or above throttle.PermitsMax, which no limit holds, without a zone, or one for
// which Key, Cost or Zone fails. A cost above the rule's Limit is not refused
// here: the limit in force may be another, which a [Client] and a pool ask for.
// Demand does not ask Redis, and is safe for concurrent use.
func (p Policy) Demand(task *asynq.Task) (Demand, error) {
	var d Demand
	for _, r := range p.Rules {
		if r.gated() {
			zone, err := p.zone(r, task)
			if err != nil {
				return Demand{}, err
			}
			d.Gates = append(d.Gates, gate.InZone{Rule: r.Name, Gate: r.Gate, In: zone})
			continue
		}
		key, err := p.key(r, task)
		if err != nil {
			return Demand{}, err
		}
		cost, err := p.cost(r, task)
		if err != nil {
			return Demand{}, err
		}
		d.Costs = append(d.Costs, throttle.KeyCost{Key: key, Cost: cost})
	}
	return d, nil
}

func (p Policy) key(r Rule, task *asynq.Task) (string, error) {
	key, err := r.KeyOf(task)
	switch {
	case err != nil:
		return "", p.refuse(r, ErrNoKey, "the key function", err)
	case key == "":
		return "", p.refuse(r, ErrNoKey, "the key is empty", nil)
	case len(key) > throttle.KeyMax:
		return "", p.refuse(r, ErrNoKey, fmt.Sprintf("the key is over %d bytes long", throttle.KeyMax), nil)
	}
	return key, nil
}

func (p Policy) cost(r Rule, task *asynq.Task) (int, error) {
	if r.Cost == nil {
		return 1, nil
	}
	cost, err := r.Cost(task)
	// the reasons name the bound and not the cost, which came from the payload
	switch {
	case err != nil:
		return 0, p.refuse(r, ErrBadCost, "the cost function", err)
	case cost < 1:
		return 0, p.refuse(r, ErrBadCost, "the cost is below 1 permit", nil)
	case cost > throttle.PermitsMax:
		return 0, p.refuse(r, ErrBadCost, fmt.Sprintf("the cost is above %d permits, which no limit holds", throttle.PermitsMax), nil)
	}
	return cost, nil
}

// zone returns the recipient's zone, or nil for a gate that does not ask.
func (p Policy) zone(r Rule, task *asynq.Task) (*time.Location, error) {
	if r.Zone == nil {
		return nil, nil
	}
	zone, err := r.Zone(task)
	switch {
	case err != nil:
		return nil, p.refuse(r, ErrNoZone, "the zone function", err)
	case zone == nil:
		return nil, p.refuse(r, ErrNoZone, "the zone function finds none", nil)
	}
	return zone, nil
}

// refuse builds the error of a task that can never run. With a cause, reason is
// the name of the function that failed.
func (p Policy) refuse(r Rule, sentinel error, reason string, cause error) error {
	err := sentinel
	if cause != nil {
		err = fmt.Errorf("%w: %w", sentinel, cause)
		reason += " failed: " + safeText(cause)
	}
	return &DemandError{Type: p.Type, Rule: r.Name, Reason: reason, Err: err}
}

// safeText describes an error of a KeyFunc, CostFunc or ZoneFunc without quoting
// it: those of encoding/json and strconv, say, repeat parts of what they could
// not read.
func safeText(err error) string {
	if pe, ok := errors.AsType[*PayloadError](err); ok {
		return pe.detail()
	}
	if ze, ok := errors.AsType[*zones.PhoneError](err); ok {
		return ze.Reason
	}
	return fmt.Sprintf("%T", err)
}
