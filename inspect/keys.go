package inspect

import (
	"time"

	"github.com/headwayq/headway/throttle"
)

// Key is what one key of a rule looks like at one moment.
type Key struct {
	ID        string         // as it stands in Redis, see [Mask]
	Limit     throttle.Limit // its own, or that of the rule
	Available int            // permits that a new job could take now; 0 while a job waits
	Waiting   int            // jobs in its line, without those that are late
	Next      time.Time      // when a new job of one permit would go
	Closed    time.Time      // until when the key or the rule is closed; zero for not
	// OwnClosed is until when the key itself is closed, and RuleClosed until when its rule is closed on all
	// keys; zero for not. Closed is the later of both. An operator who opens the key ends the first alone.
	OwnClosed, RuleClosed time.Time
	// Held is until when pools hold the key because Redis may have forgotten grants: its server was promoted, or
	// has begun again, and throttle.Config.HoldAfterFailover is set. Zero for not. Nothing ends that early.
	Held time.Time
	// HoldUnknown says that pools hold keys after a failover, and that it is not known whether this key is held:
	// the client here may not use Redis functions or INFO, or the pools are of another release.
	HoldUnknown bool
	// Who and Why are of the key's own closing, from the audit list. They are empty when the list has no
	// entry of it: a provider's Retry-After closed the key, or a program did.
	Who, Why string
	// RuleWho and RuleWhy are the same of the closing of its rule.
	RuleWho, RuleWhy string
	// Spent are the newest grants that the ledger knows, the newest first; at most
	// [SpentMax].
	Spent []Spent
	Now   time.Time // Redis' clock
}

// SpentMax is how many grants a [Key] lists.
const SpentMax = 100

// Spent is what was granted on a key. A limit that only counts does not know each grant: then
// At is the instant of the last of so many permits. Of a concurrent limit At is the end of a
// lease.
type Spent struct {
	At      time.Time
	Permits int
}

// FarKey is a key of a rule by which tasks wait that start late.
type FarKey struct {
	ID    string    // as it stands in Redis, see [Mask]
	Queue string    // of its last task
	Task  string    // the last one
	Last  time.Time // when that starts, as it was told last
	Seen  int       // how many of its tasks were among those that were looked at
}

const (
	farMax       = 20
	queuesLooked = 10
)
