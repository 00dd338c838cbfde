package inspect

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/throttle"
)

// Key is what one key of a rule looks like at one moment.
type Key struct {
	ID        string // as it stands in Redis, see [Mask]
	Limit     throttle.Limit
	Available int       // permits that a new job could take now; 0 while a job waits
	Waiting   int       // jobs in its line, without those that are late
	Next      time.Time // when a new job of one permit would go
	Closed    time.Time // until when the key or the rule is closed; zero for not
	// Who and Why are of the closing, from the audit list. A key that a provider's
	// Retry-After closed has none.
	Who, Why string
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

// IDOf returns how a key in clear stands in Redis under a rule. It does not ask Redis.
func (i *Inspector) IDOf(rule, key string) (string, error) {
	l, err := i.limiter(rule)
	if err != nil {
		return "", err
	}
	inClear := *i
	inClear.byID = false
	return inClear.id(l, key)
}

// Key tells what was spent on a key of a rule, how many jobs wait, and whether it is closed.
// It asks Redis once, and twice where the key is closed.
func (i *Inspector) Key(ctx context.Context, rule, key string) (Key, error) {
	l, err := i.limiter(rule)
	if err != nil {
		return Key{}, err
	}
	if i.cfg.PerClient {
		return Key{}, errPerClient
	}
	id, err := i.id(l, key)
	if err != nil {
		return Key{}, err
	}
	s, at, permits, err := throttle.ForWorkers.Spent(ctx, l, id, SpentMax)
	if err != nil {
		return Key{}, fmt.Errorf("inspect: read a key: %w", err)
	}
	k := Key{ID: id, Limit: throttle.ForWorkers.LimitLastKnown(l), Available: s.Available, Waiting: s.Waiting, Next: s.Next, Closed: s.Closed, Now: s.Now}
	for n := range at {
		k.Spent = append(k.Spent, Spent{at[n], permits[n]})
	}
	if !s.Closed.IsZero() {
		v := []Verdict{{Rule: rule, Key: id, Closed: s.Closed}}
		if err := i.closers(ctx, v); err != nil {
			return Key{}, err
		}
		k.Who, k.Why = v[0].Who, v[0].Why
	}
	return k, nil
}

// FarKey is a key of a rule by which tasks wait that start late.
type FarKey struct {
	ID    string    // as it stands in Redis, see [Mask]
	Queue string    // of its last task
	Task  string    // the last one
	Last  time.Time // when that starts, as it was told last
	Seen  int       // how many of its tasks were among those that were looked at
}

// FarKeys returns the keys of a rule whose tasks start last, at most 20 of them: those are
// the keys that wait longest. It looks at the last 1000 tasks that wait on each queue, and
// at 10 queues; looked is how many tasks it saw.
func (i *Inspector) FarKeys(ctx context.Context, rule string, queues []string) (keys []FarKey, looked int, err error) {
	if _, err := i.limiter(rule); err != nil {
		return nil, 0, err
	}
	byID := make(map[string]*FarKey)
	for _, q := range queues[:min(len(queues), farQueues)] {
		r, err := luascripts.ScanDeferredEnd(ctx, i.rdb, i.keys(q), scanPortion)
		if err != nil {
			return nil, 0, away("list what waits", err)
		}
		looked += len(r.Tasks)
		for _, t := range r.Tasks {
			place, _ := luascripts.ParseBookingRef(t.For)
			ids, _, ok := place.Rules.Read()
			n := slices.Index(strings.Split(place.Rules.Policy(), "+"), rule)
			if !ok || n < 0 || n >= len(ids) {
				continue
			}
			k := byID[ids[n]]
			if k == nil {
				k = &FarKey{ID: ids[n]}
				byID[ids[n]] = k
			}
			k.Seen++
			if !t.At.Before(k.Last) {
				k.Queue, k.Task, k.Last = q, t.ID, t.At
			}
		}
	}
	for _, k := range byID {
		keys = append(keys, *k)
	}
	slices.SortFunc(keys, func(a, b FarKey) int {
		return cmp.Or(b.Last.Compare(a.Last), cmp.Compare(b.Seen, a.Seen), cmp.Compare(a.ID, b.ID))
	})
	return keys[:min(len(keys), farMax)], looked, nil
}

const (
	farMax    = 20
	farQueues = 10
)
