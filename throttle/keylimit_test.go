package throttle_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
)

// plans are the limits of tenants, as one process knows them; newest are those where they
// come from.
type plans struct {
	mu     sync.Mutex
	known  map[string]plan
	newest *plans // asked when Redis knows of a newer limit; nil for a process that never looks
	err    error
	asked  int // with a newer time
}

type plan struct {
	limit   throttle.Limit
	changed time.Time
}

func (p *plans) of(_ context.Context, key string, newer time.Time) (throttle.Limit, time.Time, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !newer.IsZero() {
		p.asked++
		if p.newest != nil {
			p.known[key] = p.newest.known[key]
		}
	}
	return p.known[key].limit, p.known[key].changed, p.err
}

func (s *scene) tenants(p *plans, cfg throttle.Config) *throttle.Limiter {
	s.Helper()
	cfg.LimitOf = p.of
	return newLimiter(s.T, s.rdb, "tenant", throttle.Sliding(1, time.Minute), cfg)
}

// grants takes permits of a key until one is refused, and says how many there were.
func (s *scene) grants(l *throttle.Limiter, key string) (n int) {
	s.Helper()
	for ; n < 20; n++ {
		d, err := l.TryAcquire(s.Context(), key, 1)
		if err != nil {
			s.Fatalf("TryAcquire: %v", err)
		}
		if !d.Granted {
			return n
		}
	}
	return n
}

// One rule has another limit for each tenant, and that of the rule for all others.
func TestLimitPerTenantWithOneRuleName(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]throttle.Config{
		"plain":  {},
		"hashed": {Secret: []byte("0123456789abcdef")},
		"local":  {OnUnavailable: throttle.FailLocal},
	} {
		s := newScene(t)
		l := s.tenants(&plans{known: map[string]plan{
			"acme": {throttle.Sliding(5, time.Minute), start},
			"zeta": {throttle.GCRA(3, time.Minute, 3), time.Time{}},
		}}, cfg)
		for key, want := range map[string]int{"acme": 5, "zeta": 3, "other": 1} {
			if got, err := l.Available(t.Context(), key); err != nil || got != want {
				t.Errorf("%s: Available(%s) = %d, %v, want %d", name, key, got, err, want)
			}
			if got := s.grants(l, key); got != want {
				t.Errorf("%s: %s is granted %d, want %d", name, key, got, want)
			}
		}
		if _, err := l.TryAcquire(t.Context(), "acme", 6); !errors.Is(err, throttle.ErrExceedsLimit) {
			t.Errorf("%s: 6 of 5 permits: %v, want %v", name, err, throttle.ErrExceedsLimit)
		}
		if _, err := l.Reset(t.Context(), "acme"); err != nil {
			t.Errorf("%s: Reset: %v", name, err)
		}
		if got := s.grants(l, "acme"); got != 5 {
			t.Errorf("%s: after a reset acme is granted %d, want 5", name, got)
		}
	}
}

// A function that panics refuses its key and no other. The error does not name the key.
func TestLimitOfThatPanics(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := newLimiter(s.T, s.rdb, "tenant", throttle.Sliding(1, time.Minute), throttle.Config{
		LimitOf: func(_ context.Context, tenant string, _ time.Time) (throttle.Limit, time.Time, error) {
			if tenant == "gone" {
				panic(tenant)
			}
			return throttle.Limit{}, time.Time{}, nil
		},
	})
	d, err := l.TryAcquire(t.Context(), "gone", 1)
	if !errors.Is(err, throttle.ErrStoredLimit) || d.Granted || strings.Contains(err.Error(), "gone") {
		t.Errorf("TryAcquire = %v, %v, want %v without the key", d, err, throttle.ErrStoredLimit)
	}
	if got := s.grants(l, "other"); got != 1 {
		t.Errorf("another key is granted %d, want 1", got)
	}
}

// A process that does not know of a new limit yet does not bring the old one back: it looks,
// or it grants nothing.
func TestAnOldProcessDoesNotBringATenantsOldLimitBack(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	before := plan{throttle.Sliding(9, time.Minute), start.Add(-time.Hour)}
	after := &plans{known: map[string]plan{"acme": {throttle.Sliding(2, time.Minute), start}}}
	looks := &plans{known: map[string]plan{"acme": before}, newest: after}
	blind := &plans{known: map[string]plan{"acme": before}}
	unaware := &plans{known: map[string]plan{}}

	if got := s.grants(s.tenants(after, throttle.Config{}), "acme"); got != 2 {
		t.Fatalf("the new limit grants %d, want 2", got)
	}
	if got := s.grants(s.tenants(looks, throttle.Config{}), "acme"); got != 0 || looks.asked != 1 {
		t.Errorf("a process that looks is granted %d more, asked %d times; want none, and once", got, looks.asked)
	}
	for name, p := range map[string]*plans{"an older limit": blind, "no limit": unaware} {
		l := s.tenants(p, throttle.Config{})
		d, err := l.TryAcquire(t.Context(), "acme", 1)
		if !errors.Is(err, throttle.ErrStoredLimit) || d.Granted || !strings.Contains(err.Error(), "another process knows one that was set at") {
			t.Errorf("a process that knows %s: %v, %v, want %v", name, d, err, throttle.ErrStoredLimit)
		}
		if got := s.grants(l, name); got != 1 {
			t.Errorf("a process that knows %s: another key is granted %d, want 1", name, got)
		}
	}
}

// A limit that was taken away, with the time, gives way to that of the rule; a limit that an
// operator stores for the rule is that of the keys without one of their own.
func TestATenantsLimitAndAStoredLimit(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := &plans{known: map[string]plan{"acme": {throttle.Sliding(5, time.Minute), start}}}
	l := s.tenants(p, throttle.Config{})
	if got := s.grants(l, "acme"); got != 5 {
		t.Fatalf("acme is granted %d, want 5", got)
	}
	s.at(time.Second)
	if err := setLimit(t.Context(), l, throttle.Sliding(7, time.Minute)); err != nil {
		t.Fatal(err)
	}
	if got := s.grants(l, "acme"); got != 0 {
		t.Errorf("acme is granted %d more by the stored limit, want none", got)
	}
	if got := s.grants(l, "other"); got != 7 {
		t.Errorf("another key is granted %d, want the stored 7", got)
	}
	p.mu.Lock()
	p.known["acme"] = plan{changed: start.Add(time.Second)}
	p.mu.Unlock()
	if got := s.grants(l, "acme"); got != 2 {
		t.Errorf("without a limit of its own acme is granted %d more, want 2 of the stored 7", got)
	}
	if err := l.UnsetLimit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := s.grants(l, "fresh"); got != 1 {
		t.Errorf("a fresh key is granted %d, want 1", got)
	}
}

// What stands in Redis without its key is looked up by the tenant's limit: places in line,
// their instants and what is given back. And the function's error does not show the key.
func TestBookingsByATenantsLimit(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]throttle.Config{"plain": {}, "hashed": {Secret: []byte("0123456789abcdef")}} {
		s := newScene(t)
		p := &plans{known: map[string]plan{key: {throttle.Sliding(2, time.Minute), start}}}
		l := s.tenants(p, cfg)
		for i, job := range []string{"a", "b", "c", "d", "e"} {
			if d := s.job(l, job, 1); d.Granted != (i < 2) {
				t.Fatalf("%s: %s: %v", name, job, d)
			}
		}
		ref := throttle.ForWorkers.Ref(l.Policy(), throttle.Request{Key: key, Cost: 1, Job: "e"})
		for _, st := range []throttle.BookingStatus{throttle.ForWorkers.Refresh(t.Context(), s.rdb, []throttle.BookingRef{ref})[0], second(throttle.ForWorkers.Lookup(t.Context(), ref, false))} {
			if st.Err != nil || !st.Known || st.At.Sub(start) != 2*time.Minute {
				t.Errorf("%s: e stands at %v, %+v, want 2m", name, st.At.Sub(start), st)
			}
		}
		if _, err := throttle.ForWorkers.CancelBooking(t.Context(), throttle.ForWorkers.Ref(l.Policy(), throttle.Request{Key: key, Cost: 1, Job: "c"})); err != nil {
			t.Errorf("%s: Leave: %v", name, err)
		}
		p.mu.Lock()
		p.known[key] = plan{throttle.Sliding(4, time.Minute), start.Add(time.Second)} // as many as wait
		p.mu.Unlock()
		s.at(time.Second)
		if st := throttle.ForWorkers.Refresh(t.Context(), s.rdb, []throttle.BookingRef{ref})[0]; st.Err != nil || st.At.After(start.Add(time.Second)) {
			t.Errorf("%s: by the raised limit e stands at %v, %v, want now", name, st.At.Sub(start), st.Err)
		}
		if _, err := l.CloseKey(t.Context(), key, time.Hour); err != nil {
			t.Errorf("%s: CloseKey: %v", name, err)
		}
		if list, err := l.List(t.Context(), key, throttle.ListFrom{}, 10); err != nil || list.All != 2 {
			t.Errorf("%s: List = %+v, %v, want d and e", name, list, err)
		}
		p.mu.Lock()
		p.err = errors.New("no plan for " + key)
		p.mu.Unlock()
		if _, err := l.TryAcquire(t.Context(), key, 1); !errors.Is(err, throttle.ErrStoredLimit) || !errors.Is(err, p.err) || strings.Contains(err.Error(), key) ||
			!strings.HasSuffix(err.Error(), "Config.LimitOf returned an error of type *errors.errorString") {
			t.Errorf("%s: TryAcquire = %v, want %v with its cause, without the key", name, err, throttle.ErrStoredLimit)
		}
	}
}

func second(s throttle.BookingStatus, err error) throttle.BookingStatus {
	s.Err = errors.Join(s.Err, err)
	return s
}

// A limit that counts otherwise than the rule's is refused.
func TestATenantsLimitOfAnotherCounting(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for _, limit := range []throttle.Limit{throttle.Concurrent(1, time.Minute), throttle.Sliding(0, time.Minute)} {
		l := s.tenants(&plans{known: map[string]plan{"acme": {limit, start}}}, throttle.Config{})
		if d, err := l.TryAcquire(t.Context(), "acme", 1); !errors.Is(err, throttle.ErrInvalidLimit) || d.Granted || !strings.Contains(err.Error(), "makes no sense") {
			t.Errorf("%v: %v, %v, want %v", limit, d, err, throttle.ErrInvalidLimit)
		}
	}
}
