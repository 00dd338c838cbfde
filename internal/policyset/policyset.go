// Package policyset turns the rules of policies into limiters and into what decides by
// them. Packages queue and worker use it for the policies that they are given, and for
// the bookings that any process wrote, which name their rules.
package policyset

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/throttle"
)

// Max bounds the limiters that a set knows, and apart from them the policies of several
// rules. It keeps rules that handlers make up, one for each customer say, from filling
// the memory.
const Max = 1024

// Rule is a named limit. The zero Limit is a gate: it comes with each request, so it has
// no limiter.
type Rule struct {
	Name    string
	Limit   throttle.Limit
	LimitOf LimitFunc // nil for one limit for all keys
}

// LimitFunc finds the limit of one key, see throttle.Config.LimitOf.
type LimitFunc = func(ctx context.Context, key string, newer time.Time) (throttle.Limit, time.Time, error)

// Set holds one limiter for each rule, and one policy for each list of rules, whichever
// task types have them. It does not talk to Redis, and is safe for concurrent use. The
// zero Set is not usable.
type Set struct {
	rdb redis.UniversalClient
	cfg throttle.Config

	mu       sync.RWMutex
	limiters map[string]*throttle.Limiter // by rule
	policies map[string]*throttle.Policy  // of several rules, by their names
}

// IsNil says that a value is nil, or an interface around a pointer or function that is. Such a
// Redis client or handler would fail with its first use.
func IsNil(v any) bool {
	r := reflect.ValueOf(v)
	return v == nil || (r.Kind() == reflect.Pointer || r.Kind() == reflect.Func) && r.IsNil()
}

// New returns an empty set, whose limiters have this client and configuration.
func New(rdb redis.UniversalClient, cfg throttle.Config) *Set {
	return &Set{rdb: rdb, cfg: cfg, limiters: make(map[string]*throttle.Limiter), policies: make(map[string]*throttle.Policy)}
}

// Compile returns what decides by the limits among rules, in their order. Rules of one
// name share a limiter, and equal lists of rules share a policy. It refuses what
// [throttle.New] and [throttle.NewPolicy] refuse: a list without a limit, for one.
func (s *Set) Compile(rules []Rule) (*throttle.Policy, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var limiters []*throttle.Limiter
	for _, r := range rules {
		if r.Limit == (throttle.Limit{}) {
			continue
		}
		if s.limiters[r.Name] == nil {
			cfg := s.cfg
			cfg.LimitOf = r.LimitOf
			l, err := throttle.New(s.rdb, r.Name, r.Limit, cfg)
			if err != nil {
				return nil, err
			}
			s.limiters[r.Name] = l
		}
		limiters = append(limiters, s.limiters[r.Name])
	}
	return s.join(limiters)
}

// join returns the one policy of these limiters.
func (s *Set) join(limiters []*throttle.Limiter) (*throttle.Policy, error) {
	if len(limiters) == 1 {
		return limiters[0].Policy(), nil
	}
	p, err := throttle.NewPolicy(limiters...)
	if err != nil {
		return nil, err
	}
	if known := s.policies[p.String()]; known != nil {
		return known, nil
	}
	if len(s.policies) < Max {
		s.policies[p.String()] = p
	}
	return p, nil
}

// Learn adds the limiters of a policy that was made elsewhere, as in a handler, so that
// its bookings can be looked up. A rule that is known stays as it is, and a full set
// learns nothing.
func (s *Set) Learn(p *throttle.Policy) {
	for _, l := range p.Rules() {
		if s.Limiter(l.Rule()) != nil {
			continue // the usual case needs no write lock
		}
		s.mu.Lock()
		if s.limiters[l.Rule()] == nil && len(s.limiters) < Max {
			s.limiters[l.Rule()] = l
		}
		s.mu.Unlock()
	}
}

// Limiter returns the limiter of a rule, or nil.
func (s *Set) Limiter(rule string) *throttle.Limiter {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.limiters[rule]
}

// Limiters returns the limiters of all rules, in no order.
func (s *Set) Limiters() []*throttle.Limiter {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make([]*throttle.Limiter, 0, len(s.limiters))
	for _, l := range s.limiters {
		all = append(all, l)
	}
	return all
}

// Booking is what was stored beside a task that waits, as the booking of its job. ok is false when nothing was
// stored, when it can't be read, and when [Set.Lookup] does not know its rules.
func (s *Set) Booking(stored queuescripts.StoredBooking, job string) (b throttle.BookingRef, ok bool) {
	policy := s.Lookup(stored.Policy())
	ids, costs, ok := stored.Read()
	if policy == nil || !ok {
		return throttle.BookingRef{}, false
	}
	return throttle.BookingRef{Policy: policy, IDs: ids, Costs: costs, Job: job}, true
}

// Lookup returns what decides about a booking by the names of its rules, as
// [throttle.Policy.String] joins them. It returns nil when one of the rules is not known
// here, or when they can't stand in one policy any more.
func (s *Set) Lookup(names string) *throttle.Policy {
	if names == "" {
		return nil
	}
	s.mu.RLock()
	one, several := s.limiters[names], s.policies[names]
	s.mu.RUnlock()
	switch {
	case one != nil:
		return one.Policy()
	case several != nil:
		return several
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	limiters := make([]*throttle.Limiter, 0, 1+strings.Count(names, "+"))
	for name := range strings.SplitSeq(names, "+") {
		limiters = append(limiters, s.limiters[name])
	}
	if slices.Contains(limiters, nil) {
		return nil
	}
	p, err := s.join(limiters)
	if err != nil {
		return nil
	}
	return p
}
