package throttle

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// Bounds that the texts of errors tell.
const (
	CloseMax    = closeMax
	LeaseMax    = leaseMax
	LeaseMin    = leaseMin
	LimitTTLMin = limitTTLMin
	RuleMax     = ruleMax
	RulesMax    = rulesMax
	SecretMin   = secretMin
	WindowMax   = windowMax
	WindowMin   = windowMin
)

// Gathered is how many acquires of a client wait for others to come back.
func Gathered(rdb redis.UniversalClient) int {
	m := coalescerOf(rdb, false)
	n, _ := m.sole.Calls()
	m.nodes.Range(func(_, l any) bool {
		waiting, _ := l.(*node).Calls()
		n += waiting
		return true
	})
	return n
}

// Patient lets the acquires of a client wait for others as long as those take. A
// limiter is on it already, and asks for nothing yet.
func Patient(rdb redis.UniversalClient) { coalescerOf(rdb, false).way.Patience = time.Hour }

// Informed gives limiters what they know of the stored limits, for as long as a test takes: none of
// their calls looks.
func Informed(limiters ...*Limiter) {
	for _, l := range limiters {
		l.remembered.last.Store(&knownLimit{limit: l.limit, began: time.Now().Add(time.Hour)})
	}
}

// LimitInForce is the limit by which a limiter decides now: the stored one, or the one in code.
func LimitInForce(ctx context.Context, l *Limiter) (Limit, error) { return l.inForce(ctx) }
