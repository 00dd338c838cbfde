package throttle

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
)

// limitStore is where limits are stored that go before those in code.
type limitStore interface {
	// stored reads the limit of a rule.
	stored(ctx context.Context, rule string) storedLimit
	// change sets or takes away the limit of a rule.
	change(ctx context.Context, rule string, c limitChange) (done bool, version int64, err error)
	// closeRule closes a rule on all keys for d from now on; 0 opens it, and below 0
	// it only tells all limiters that something has changed.
	closeRule(ctx context.Context, rule string, d time.Duration) (until time.Time, version int64, err error)
	// changes lets a caller wait for a change: for d at most, and never longer
	// than ctx. It may return early; stop ends it.
	changes(ctx context.Context, rule string) (wait func(d time.Duration), stop func())
}

// storedLimit is what is stored for a rule: no text means that nothing is.
type storedLimit struct {
	text      string
	version   int64
	malformed bool // we did not write it
	err       error

	closed  time.Time // until when the rule is closed on all keys; zero for not
	closing int64     // version of that
}

// limitChange is a change of a stored limit.
type limitChange struct {
	text   string        // "" to take it away
	absent bool          // only if none is stored
	ttl    time.Duration // zero for ever
}

// redisLimits stores limits in Redis.
type redisLimits struct {
	rdb    redis.UniversalClient
	prefix string
}

func (s redisLimits) stored(ctx context.Context, rule string) storedLimit {
	return s.storedOf(ctx, []string{rule})[0]
}

// storedOf reads the limits of many rules in one round trip.
func (s redisLimits) storedOf(ctx context.Context, rules []string) []storedLimit {
	out := make([]storedLimit, len(rules))
	for i, r := range luascripts.StoredLimits(ctx, s.rdb, s.prefix, rules) {
		_, malformed := errors.AsType[*luascripts.ReplyError](r.Err)
		out[i] = storedLimit{text: r.Text, version: r.Version, malformed: malformed, err: r.Err, closed: r.Closed, closing: r.Closing}
	}
	return out
}

func (s redisLimits) change(ctx context.Context, rule string, c limitChange) (bool, int64, error) {
	return luascripts.SetLimit(ctx, s.rdb, s.prefix, rule, luascripts.SetLimitArgs{Limit: c.text, Absent: c.absent, TTL: c.ttl})
}

func (s redisLimits) closeRule(ctx context.Context, rule string, d time.Duration) (time.Time, int64, error) {
	return luascripts.CloseRule(ctx, s.rdb, s.prefix, rule, d)
}

// changes listens to the rule's channel. A connection that fails only means
// that the caller reads the limit itself.
func (s redisLimits) changes(ctx context.Context, rule string) (wait func(time.Duration), stop func()) {
	sub := s.rdb.Subscribe(ctx, luascripts.StoredLimitKey(s.prefix, rule))
	ended := context.AfterFunc(ctx, func() { _ = sub.Close() }) // a read in progress would outlive ctx
	wait = func(d time.Duration) {
		end := time.Now().Add(d)
		if _, err := sub.ReceiveTimeout(ctx, d); err == nil || ctx.Err() != nil {
			return
		}
		t := time.NewTimer(time.Until(end)) // nothing left after a time-out; a broken connection must not spin
		defer t.Stop()
		select {
		case <-ctx.Done():
		case <-t.C:
		}
	}
	return wait, func() {
		ended()
		_ = sub.Close()
	}
}

// memoryLimits stores limits in this process. The zero value is ready.
type memoryLimits struct {
	now func() time.Time // nil for the local clock

	mu      sync.Mutex
	rules   map[string]memoryLimit
	changed chan struct{} // closed at the next change
}

type memoryLimit struct {
	text    string
	version int64
	until   time.Time // zero for ever

	closed  time.Time
	closing int64
}

func (s *memoryLimits) stored(_ context.Context, rule string) storedLimit {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.getLocked(rule)
	return storedLimit{text: m.text, version: m.version, closed: m.closed, closing: m.closing}
}

func (s *memoryLimits) closeRule(_ context.Context, rule string, d time.Duration) (time.Time, int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, now := s.getLocked(rule), orNow(s.now)
	m.closing = max(now.UnixMicro(), m.closing+1)
	switch until := now.Add(d); {
	case d == 0, d < 0 && !m.closed.After(now):
		m.closed = time.Time{}
	case d > 0 && until.After(m.closed):
		m.closed = until
	}
	s.putLocked(rule, m)
	return m.closed, m.closing, nil
}

func (s *memoryLimits) getLocked(rule string) memoryLimit {
	m := s.rules[rule]
	if !m.until.IsZero() && !orNow(s.now).Before(m.until) {
		m.text = ""
	}
	return m
}

func (s *memoryLimits) change(_ context.Context, rule string, c limitChange) (bool, int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.getLocked(rule)
	if c.absent && old.text != "" || c.text == "" && old.text == "" {
		return false, old.version, nil
	}
	now := orNow(s.now)
	m := memoryLimit{text: c.text, version: max(now.UnixMicro(), old.version+1), closed: old.closed, closing: old.closing}
	if c.ttl > 0 {
		m.until = now.Add(c.ttl)
	}
	s.putLocked(rule, m)
	return true, m.version, nil
}

func (s *memoryLimits) putLocked(rule string, m memoryLimit) {
	if s.rules == nil {
		s.rules = make(map[string]memoryLimit)
	}
	s.rules[rule] = m
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// changes rings for a change of any rule.
func (s *memoryLimits) changes(ctx context.Context, _ string) (wait func(time.Duration), stop func()) {
	next := s.next()
	wait = func(d time.Duration) {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-ctx.Done():
		case <-t.C:
		case <-next:
			next = s.next()
		}
	}
	return wait, func() {}
}

func (s *memoryLimits) next() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}
