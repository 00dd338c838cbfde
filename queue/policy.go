package queue

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/queue/internal/yamlfile"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
)

const rulesMax = 16

// KeyFunc finds the key that a task is counted for, such as the phone number
// that it writes to. It must give the same key for the same task each time,
// must not change the task, and must be safe for concurrent use. Its error may
// hold anything: this package never prints it.
type KeyFunc func(*asynq.Task) (string, error)

// CostFunc finds how many permits a task costs, under the same conditions as a
// [KeyFunc].
type CostFunc func(*asynq.Task) (int, error)

// ZoneFunc finds the time zone that a task's recipient lives in, under the same
// conditions as a [KeyFunc].
type ZoneFunc func(*asynq.Task) (*time.Location, error)

// Policy is what a task type needs before it runs: rules, narrowest key first. A
// task runs when all of them admit it. It is only a description; it holds no
// connection and decides nothing. The zero Policy is invalid. A Policy is safe
// for concurrent use when its functions are.
type Policy struct {
	// Type is the task type, compared exactly. A pattern ("sms:*") and a prefix ("sms:") are
	// refused. Required.
	Type string

	// Rules are 1 to 16, narrowest key first: the rule whose key the fewest tasks
	// share, the phone, then the tenant, and last the one that most share, the
	// provider. A task stands in the line of the first rule that
	// refuses it and in none after that, so a wide rule that came first would
	// keep places for tasks that their phones hold up. A rule with a constant key
	// before one whose key differs from task to task is refused. Gates have no key and may
	// stand anywhere; concurrent limits come after all other limits. All
	// policies list the rules that they share in one order.
	Rules []Rule

	// Charge says which attempts of a task pay. Defaults to ChargeEveryAttempt.
	Charge ChargePolicy

	// MaxPostpones is how often a task may be put off by its provider, with a
	// Retry-After, before that counts as a failure; at least 1. Defaults to 100.
	MaxPostpones int

	source fileSource
}

// Rule is a named limit, and how the key and the cost of a task are found; or a
// named gate. Exactly one of Limit and Gate is given.
type Rule struct {
	// Name is 1 to 64 characters out of A-Z, a-z, 0-9, "_", "." and "-". Policies
	// with the same rule share its permits: an "sms:code" and an "sms:ad" to the
	// same phone count together. It has the same limit or gate wherever it is
	// named. Required.
	Name string

	// Limit is how much is let through for each key.
	Limit throttle.Limit

	// LimitOf finds the limit of one key, where keys have limits of their own, such as
	// tenants. Limit is then that of all other keys, and of the same kind of counting. It is
	// throttle.Config.LimitOf, see there. A rule has it wherever it is named, or nowhere.
	// Give it the same function in all policies. Functions can't be compared, so other ones
	// are not refused: that of the first policy in the list counts for all. Refused with a gate. Defaults to none.
	LimitOf func(ctx context.Context, key string, newer time.Time) (limit throttle.Limit, changed time.Time, err error)

	// Gate is when anything is let through.
	Gate gate.Gate

	// Key finds the key, 1 to 1024 bytes. A limit has either Key or Constant; a gate has
	// neither.
	Key KeyFunc

	// Constant is the key of all tasks, such as the name of a provider, 1 to 1024 bytes. A
	// policy file has it as "=acme". One that begins with $ or = is refused: that was meant for
	// [JSONKey] or for a policy file, and would count all tasks together.
	Constant string

	// Cost finds the number of permits, 1 to Limit.MaxCost(), or to that of a
	// limit that is stored for the rule and goes before it. Refused with a gate,
	// and with a concurrent limit, where a task holds one slot.
	// Defaults to 1 permit for each task.
	Cost CostFunc

	// Zone finds the recipient's time zone. Required with a gate that opens by
	// it, refused with any other and with a limit.
	Zone ZoneFunc

	source fileSource
}

// fileSource is where a file has a policy or a rule, and what of it can't be compared
// otherwise. The zero fileSource is that of Go code.
type fileSource struct {
	file            string
	at              yamlfile.Pos
	key, cost, zone string // as the file has them
	unread          bool   // the key could not be read, and stands for one
	limits          map[string]throttle.Limit
}

// limited says that the rule is a limit, in a valid policy.
func (r Rule) limited() bool { return r.Limit != throttle.Limit{} }

// gated says that the rule is a gate, in a valid policy.
func (r Rule) gated() bool { return r.Gate != gate.Gate{} }

// ChargePolicy says which attempts of a task pay for their permits.
type ChargePolicy uint8

const (
	// ChargeEveryAttempt charges each attempt, also the retry of one that failed:
	// a handler that failed may have sent its message all the same.
	ChargeEveryAttempt ChargePolicy = iota
	// ChargeSuccess gives the permits of an attempt back whose handler returned an
	// error, or panicked. It is right where a failure proves that the provider
	// counted nothing.
	ChargeSuccess
)

// chargePolicies are the texts of policy files.
var chargePolicies = [...]string{ChargeEveryAttempt: "every attempt", ChargeSuccess: "success"}

// String returns the text that a policy file has: "every attempt", "success".
func (p ChargePolicy) String() string {
	if !p.known() {
		return fmt.Sprintf("ChargePolicy(%d)", uint8(p))
	}
	return chargePolicies[p]
}

func (p ChargePolicy) known() bool { return int(p) < len(chargePolicies) }

// chargePolicyTexts is what a policy file may say, for errors.
const chargePolicyTexts = `"every attempt" or "success"`

// chargePolicyOf reads the text of a policy file.
func chargePolicyOf(text string) (ChargePolicy, bool) {
	i := slices.Index(chargePolicies[:], text)
	return ChargePolicy(max(i, 0)), i >= 0
}

// varies says that the key differs from task to task, as far as can be known.
func (r Rule) varies() bool { return r.Key != nil && !r.source.unread }

// KeyOf returns the key of a task under the rule, which is a limit. It is not checked.
func (r Rule) KeyOf(task *asynq.Task) (string, error) {
	if r.Constant != "" {
		return r.Constant, nil
	}
	return r.Key(task)
}

// constantFault is what is wrong with a constant key, or "".
func constantFault(key string) string {
	switch {
	case key == "" || len(key) > throttle.KeyMax:
		return fmt.Sprintf("a constant key of %d bytes, want 1 to %d", len(key), throttle.KeyMax)
	case key[0] == '$':
		return "a constant key that begins with $, as a path does: want a path, such as $.to, or a constant, such as acme"
	case key[0] == '=':
		return "a constant key that begins with =, which marks constants in policy files: want the constant itself, such as acme"
	}
	return ""
}

// constantCost returns a [CostFunc] that gives all tasks the same cost. It
// panics when the cost is below 1 or above throttle.PermitsMax.
func constantCost(cost int) CostFunc {
	if cost < 1 || cost > throttle.PermitsMax {
		panic(fmt.Sprintf("queue: a constant cost of %d, want 1 to %d", cost, throttle.PermitsMax))
	}
	return func(*asynq.Task) (int, error) { return cost, nil }
}
