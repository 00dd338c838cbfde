// Package history keeps what happened to tasks, by rule: how many were granted, refused and
// deferred in each minute of a day and each hour of a month, how long they waited, and which
// keys were busiest. A pool collects in memory and writes every few seconds; Redis adds up
// what all pools wrote. Its size does not grow with the number of keys.
package history

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// Every is how often a process writes what it collected.
	Every = 5 * time.Second

	rulesMax   = 500 // rules that handlers make up may be many
	keysMax    = 512 // keys of a rule that are told apart between two writes
	busyMost   = 32  // of those, how many are written
	waitMost   = 32
	writeAtEnd = 2 * time.Second
)

// Recorder collects what one process sees. It is safe for concurrent use. A nil Recorder
// collects nothing.
type Recorder struct {
	rdb    redis.Scripter
	prefix string
	limit  func(rule string) string

	mu    sync.RWMutex
	rules map[string]*Rule
}

// New returns a recorder. limit answers what limit of a rule is in force, "" for a gate.
func New(rdb redis.Scripter, prefix string, limit func(rule string) string) *Recorder {
	return &Recorder{rdb: rdb, prefix: prefix, limit: limit, rules: make(map[string]*Rule)}
}

// Rule collects for one rule. A nil Rule collects nothing.
type Rule struct {
	mu      sync.Mutex
	seen    Counts
	busy    sketch
	waiting map[string]int64 // instants by key
}

// Of is where a rule is collected, nil when there are too many.
func (r *Recorder) Of(rule string) *Rule {
	if r == nil || rule == "" {
		return nil
	}
	r.mu.RLock()
	known := r.rules[rule]
	r.mu.RUnlock()
	if known != nil {
		return known
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rules[rule] == nil && len(r.rules) < rulesMax {
		r.rules[rule] = &Rule{}
	}
	return r.rules[rule]
}

// Granted notes a task that got its permits, on a key as it stands in Redis.
func (r *Rule) Granted(id string, permits int) {
	if r == nil {
		return
	}
	r.mu.Lock()
	r.seen.Granted++
	r.seen.Permits += int64(permits)
	r.busy.add(id, int64(permits))
	r.mu.Unlock()
}

// Started notes how long after its instant a task started that had waited.
func (r *Rule) Started(late time.Duration) {
	if r == nil {
		return
	}
	r.mu.Lock()
	r.seen.Late.add(late)
	r.mu.Unlock()
}

// Waited notes how long a task really waited for the rule.
func (r *Rule) Waited(d time.Duration) {
	if r == nil {
		return
	}
	r.mu.Lock()
	r.seen.Waited.add(d)
	r.mu.Unlock()
}

// Refused notes a task that can never run because of the rule.
func (r *Rule) Refused() {
	if r == nil {
		return
	}
	r.mu.Lock()
	r.seen.Refused++
	r.mu.Unlock()
}

// Deferred notes a task that waits for the rule from now on, see [Rule.Waits].
func (r *Rule) Deferred(id string, until time.Time) {
	if r == nil {
		return
	}
	r.mu.Lock()
	r.seen.Deferred++
	r.mu.Unlock()
	r.Waits(id, until)
}

// Waits notes that a task waits until an instant, on a key as it stands in Redis. Of a gate
// there is no key, and of a task without a place no instant.
func (r *Rule) Waits(id string, until time.Time) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	at := until.UnixMicro()
	if id == "" || until.IsZero() || at <= r.waiting[id] {
		return
	}
	if r.waiting == nil {
		r.waiting = make(map[string]int64)
	}
	r.waiting[id] = at
	if len(r.waiting) > keysMax {
		all := byNumber(r.waiting)
		for _, k := range all[keysMax/2:] {
			delete(r.waiting, k.ID)
		}
	}
}

// take returns what was collected since it was called last.
func (r *Rule) take() (seen Counts, busy, waiting []Key) {
	r.mu.Lock()
	seen, busyMap, waitingMap := r.seen, r.busy.counts, r.waiting
	r.seen, r.busy.counts, r.waiting = Counts{}, nil, nil
	r.mu.Unlock()
	busy, waiting = byNumber(busyMap), byNumber(waitingMap)
	return seen, busy[:min(len(busy), busyMost)], waiting[:min(len(waiting), waitMost)]
}

// byNumber are keys, the one with the highest number first.
func byNumber(numbers map[string]int64) []Key {
	all := make([]Key, 0, len(numbers))
	for id, n := range numbers {
		all = append(all, Key{ID: id, N: n})
	}
	slices.SortFunc(all, func(a, b Key) int {
		if a.N != b.N {
			return int(min(1, max(-1, b.N-a.N)))
		}
		return strings.Compare(a.ID, b.ID)
	})
	return all
}

// Run writes what is collected every few seconds until ctx ends, and then once more.
// Nothing depends on it: what Redis does not take is lost.
func (r *Recorder) Run(ctx context.Context) {
	if r == nil {
		return
	}
	t := time.NewTicker(Every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeAtEnd)
			defer cancel()
			r.Write(end)
			return
		case <-t.C:
			r.Write(ctx)
		}
	}
}

// Write writes what was collected since the last time, with one short call for each rule
// that was asked.
func (r *Recorder) Write(ctx context.Context) {
	r.mu.RLock()
	rules := maps.Clone(r.rules)
	r.mu.RUnlock()
	for name, rule := range rules {
		seen, busy, waiting := rule.take()
		if seen == (Counts{}) && len(waiting) == 0 {
			continue
		}
		call, cancel := context.WithTimeout(ctx, Every)
		_ = Record(call, r.rdb, r.prefix, name, RecordArgs{
			Now: time.Now(), Limit: r.limit(name), Counts: seen.String(), Busy: busy, Waiting: waiting,
		})
		cancel()
	}
}

// sketch counts keys, of which there may be many more than it keeps. When it has too many it
// takes the same number from all of them and drops those that are left with nothing: a key
// that makes up more than one in keysMax/2 of the permits is always kept.
type sketch struct{ counts map[string]int64 }

func (s *sketch) add(id string, n int64) {
	if s.counts == nil {
		s.counts = make(map[string]int64)
	}
	s.counts[id] += n
	if len(s.counts) <= keysMax {
		return
	}
	all := byNumber(s.counts)
	less := all[keysMax/2].N
	for id, n := range s.counts {
		if n <= less {
			delete(s.counts, id)
		} else {
			s.counts[id] = n - less
		}
	}
}

// Counts is what happened to the tasks of a rule in some time.
type Counts struct {
	Granted, Permits, Refused, Deferred int64
	Peak                                int64 // permits of the busiest key
	Waited, Late                        Histogram
}

// String is what record.lua adds up. Peak is not in it.
func (c *Counts) String() string {
	var b strings.Builder
	for _, f := range c.fields() {
		if *f.n > 0 {
			fmt.Fprintf(&b, "%s:%d ", f.name, *f.n)
		}
	}
	c.Waited.write(&b, "w")
	c.Late.write(&b, "l")
	return strings.TrimSuffix(b.String(), " ")
}

// Add adds what happened in another time. Peak is the highest of both.
func (c *Counts) Add(other *Counts) {
	for i, f := range c.fields() {
		*f.n += *other.fields()[i].n
	}
	c.Peak = max(c.Peak, other.Peak)
	c.Waited.Add(&other.Waited)
	c.Late.Add(&other.Late)
}

type field struct {
	name string
	n    *int64
}

func (c *Counts) fields() []field {
	return []field{{"granted", &c.Granted}, {"permits", &c.Permits}, {"refused", &c.Refused}, {"deferred", &c.Deferred}}
}

// Read reads what record.lua wrote, and the limit that was in force. What a later version
// wrote besides is passed over.
func Read(value string) (c Counts, limit string) {
	counts, limit, _ := strings.Cut(value, ";")
	fields := append(c.fields(), field{"peak", &c.Peak})
	for text := range strings.FieldsSeq(counts) {
		name, number, _ := strings.Cut(text, ":")
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil || name == "" || n < 0 {
			continue
		}
		if k := slices.IndexFunc(fields, func(f field) bool { return f.name == name }); k >= 0 {
			*fields[k].n = n
			continue
		}
		bucket, err := strconv.Atoi(name[1:])
		if err != nil || bucket < 0 || bucket >= len(c.Late) {
			continue
		}
		switch name[0] {
		case 'w':
			c.Waited[bucket] = uint64(min(n, bucketMax)) //nolint:gosec // it is not negative, see above
		case 'l':
			c.Late[bucket] = uint64(min(n, bucketMax)) //nolint:gosec // it is not negative, see above
		}
	}
	return c, limit
}
