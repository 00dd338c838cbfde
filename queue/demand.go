package queue

import (
	"errors"
	"fmt"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/throttle"
)

// Demand returns what the task needs under p: the key that it is counted for and
// the number of permits. p must be valid, and of the task's type: Demand does
// not compare it.
//
// A task that could never run is a [*DemandError]: one without a key, with a key
// over 1024 bytes, with a cost below 1 or above throttle.PermitsMax, which no
// limit holds, or one for which Key or Cost fails. A cost above p.Limit is not
// refused here: the limit in force may be another, which a [Client] and a pool
// ask for. Demand does not ask Redis, and is safe for concurrent use.
func (p Policy) Demand(task *asynq.Task) (key string, cost int, err error) {
	if key, err = p.key(task); err != nil {
		return "", 0, err
	}
	if cost, err = p.cost(task); err != nil {
		return "", 0, err
	}
	return key, cost, nil
}

func (p Policy) key(task *asynq.Task) (string, error) {
	key, err := p.Key(task)
	switch {
	case err != nil:
		return "", p.refuse(ErrNoKey, "the key function", err)
	case key == "":
		return "", p.refuse(ErrNoKey, "the key is empty", nil)
	case len(key) > throttle.KeyMax:
		return "", p.refuse(ErrNoKey, fmt.Sprintf("the key is over %d bytes long", throttle.KeyMax), nil)
	}
	return key, nil
}

func (p Policy) cost(task *asynq.Task) (int, error) {
	if p.Cost == nil {
		return 1, nil
	}
	cost, err := p.Cost(task)
	// the reasons name the bound and not the cost, which came from the payload
	switch {
	case err != nil:
		return 0, p.refuse(ErrBadCost, "the cost function", err)
	case cost < 1:
		return 0, p.refuse(ErrBadCost, "the cost is below 1 permit", nil)
	case cost > throttle.PermitsMax:
		return 0, p.refuse(ErrBadCost, fmt.Sprintf("the cost is above %d permits, which no limit holds", throttle.PermitsMax), nil)
	}
	return cost, nil
}

// refuse builds the error of a task that can never run. With a cause, reason is
// the name of the function that failed.
func (p Policy) refuse(sentinel error, reason string, cause error) error {
	err := sentinel
	if cause != nil {
		err = fmt.Errorf("%w: %w", sentinel, cause)
		reason += " failed: " + safeText(cause)
	}
	return &DemandError{Type: p.Type, Rule: p.Rule, Reason: reason, Err: err}
}

// safeText describes an error of a KeyFunc or CostFunc without quoting it: those
// of encoding/json and strconv, say, repeat parts of what they could not read.
func safeText(err error) string {
	if pe, ok := errors.AsType[*PayloadError](err); ok {
		return pe.detail()
	}
	return fmt.Sprintf("%T", err)
}
