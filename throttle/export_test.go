package throttle

import (
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
	n := m.sole.Gathered()
	m.nodes.Range(func(_, l any) bool {
		n += l.(*node).Gathered()
		return true
	})
	return n
}

// Patient lets the acquires of a client wait for others as long as those take. A
// limiter is on it already, and asks for nothing yet.
func Patient(rdb redis.UniversalClient) { coalescerOf(rdb, false).way.Patience = time.Hour }
