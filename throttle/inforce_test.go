package throttle_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

const storedKey = "hw:limit:sms"

// wantInForce checks by which limit a limiter decides.
func wantInForce(t *testing.T, l *throttle.Limiter, want throttle.Limit) {
	t.Helper()
	if got, err := l.LimitInForce(t.Context()); err != nil || got != want {
		t.Errorf("LimitInForce = %v, %v, want %v", got, err, want)
	}
}

func TestStoredLimitGoesBeforeTheOneInCode(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	code, raised, lowered := throttle.Sliding(1, time.Minute), throttle.Sliding(3, time.Minute), throttle.Sliding(2, time.Minute)
	l := s.limiter("sms", code)
	if _, ok, err := l.StoredLimit(t.Context()); ok || err != nil {
		t.Errorf("StoredLimit = %v, %v, want none", ok, err)
	}
	s.want(s.try(l, 1), true, 0)
	s.want(s.try(l, 1), false, time.Minute)

	// what is raised counts what was spent before
	if err := l.SetLimit(t.Context(), raised); err != nil {
		t.Fatal(err)
	}
	wantInForce(t, l, raised)
	if got, ok, err := l.StoredLimit(t.Context()); got != raised || !ok || err != nil {
		t.Errorf("StoredLimit = %v, %v, %v, want %v", got, ok, err, raised)
	}
	s.at(10 * time.Second)
	s.want(s.try(l, 1), true, 10*time.Second)
	s.want(s.try(l, 1), true, 10*time.Second)
	s.want(s.try(l, 1), false, time.Minute)

	// 3 are spent where 2 are allowed: the first that leaves makes no room
	if err := l.SetLimit(t.Context(), lowered); err != nil {
		t.Fatal(err)
	}
	s.at(time.Minute)
	s.want(s.try(l, 1), false, 70*time.Second)

	if done, err := l.TrySetLimit(t.Context(), raised); done || err != nil {
		t.Errorf("TrySetLimit = %v, %v with a stored limit, want false", done, err)
	}
	wantInForce(t, l, lowered)
	if ttl := s.raw.TTL(t.Context(), storedKey).Val(); ttl != -1 {
		t.Errorf("the stored limit ends in %v, want never: an operator set it", ttl)
	}
	for range 2 {
		if err := l.UnsetLimit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	wantInForce(t, l, code)
	if ttl := s.raw.TTL(t.Context(), storedKey).Val(); ttl <= 0 {
		t.Errorf("what is left of it ends in %v, want a life", ttl)
	}
	if done, err := l.TrySetLimit(t.Context(), raised); !done || err != nil {
		t.Errorf("TrySetLimit = %v, %v without a stored limit, want true", done, err)
	}
	wantInForce(t, l, raised)
}

func TestStoredLimitThatMakesNoSenseIsRefused(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Minute))
	_, try := l.TrySetLimit(t.Context(), throttle.Limit{})
	for op, err := range map[string]error{
		"SetLimit": l.SetLimit(t.Context(), throttle.Sliding(0, time.Minute)), "TrySetLimit": try,
		"SetLimitFor": l.SetLimitFor(t.Context(), throttle.Sliding(1, 0), time.Minute),
	} {
		if !errors.Is(err, throttle.ErrInvalidLimit) {
			t.Errorf("%s = %v, want %v", op, err, throttle.ErrInvalidLimit)
		}
	}
	if err := l.SetLimitFor(t.Context(), throttle.Sliding(1, time.Hour), time.Millisecond); !errors.Is(err, throttle.ErrInvalidConfig) {
		t.Errorf("SetLimitFor(1ms) = %v, want %v", err, throttle.ErrInvalidConfig)
	}
	if keys := allKeys(t, s.raw); len(keys) > 0 {
		t.Errorf("keys = %v, want none", keys)
	}
}

// PITFALLS 10 and 12: what is stored is never needed, and ends by itself.
func TestStoredLimitEndsByItself(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	code, closed := throttle.Sliding(1, time.Minute), throttle.Sliding(1, time.Hour)
	l := newLimiter(t, rdb, "sms", code, throttle.Config{})
	if err := l.SetLimitFor(t.Context(), closed, throttle.LimitTTLMin); err != nil {
		t.Fatal(err)
	}
	wantInForce(t, l, closed)
	var seen []throttle.Limit
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for limit, err := range l.WatchLimit(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if seen = append(seen, limit); limit == code {
			break
		}
	}
	if !slices.Equal(seen, []throttle.Limit{closed, code}) {
		t.Errorf("in force were %v, want %v, then %v", seen, closed, code)
	}
	wantInForce(t, l, code)
}

// bare is a client that is no key of a map.
type bare struct {
	redis.UniversalClient
	_ []string
}

func TestLimitsInForceOfAnyClient(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	limit := throttle.Sliding(1, time.Minute)
	l := newLimiter(t, bare{UniversalClient: rdb}, "sms", limit, throttle.Config{})
	for _, got := range throttle.LimitStatuses(t.Context(), []*throttle.Limiter{l, newLimiter(t, rdb, "sms", limit, throttle.Config{})}) {
		if got.Limit != limit || got.Err != nil {
			t.Errorf("LimitStatuses = %+v, want %v", got, limit)
		}
	}
}

// A clock that goes back makes no older version of a newer one.
func TestStoredLimitVersionsIncrease(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Minute))
	last := ""
	for i, at := range []time.Duration{0, time.Second, -time.Hour, -time.Hour, 0} {
		s.at(at)
		var err error
		if i == 2 {
			err = l.UnsetLimit(t.Context())
		} else {
			err = l.SetLimit(t.Context(), throttle.Sliding(i+1, time.Second))
		}
		if err != nil {
			t.Fatal(err)
		}
		version := s.raw.Get(t.Context(), storedKey).Val()[:16]
		if version <= last {
			t.Errorf("version %d is %s after %s", i, version, last)
		}
		last = version
	}
}

// A job that waits for more than a lowered limit holds leaves the line.
func TestJobAboveALoweredLimitLeavesTheLine(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(3, time.Minute))
	s.want(s.try(l, 3), true, 0)
	s.want(s.job(l, "large", 3), false, time.Minute)
	s.want(s.job(l, "small", 1), false, 2*time.Minute)
	grant := throttle.Request{Key: key, Cost: 3, Token: 7, Job: "g"}
	other := s.limiter("other", throttle.Sliding(3, time.Minute))
	if _, err := other.Redeem(t.Context(), grant); err != nil {
		t.Fatal(err)
	}
	for _, lim := range []*throttle.Limiter{l, other} {
		if err := lim.SetLimit(t.Context(), throttle.Sliding(2, time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	place := throttle.BookingRef{Policy: l.Policy(), IDs: []string{l.ID(key)}, Job: "large", Costs: []int{3}}
	if got := throttle.Refresh(t.Context(), s.rdb, []throttle.BookingRef{place})[0]; !errors.Is(got.Err, throttle.ErrExceedsLimit) {
		t.Errorf("Check = %+v, want %v", got, throttle.ErrExceedsLimit)
	}
	_, err := l.Redeem(t.Context(), throttle.Request{Key: key, Cost: 3, Job: "large"})
	if e, ok := errors.AsType[*throttle.ExceedsLimitError](err); !ok || e.Limit != throttle.Sliding(2, time.Minute) {
		t.Errorf("Redeem = %v, want an ExceedsLimitError", err)
	}
	s.want(s.job(l, "small", 1), false, time.Minute)
	// what was spent under the higher limit can be given back
	if _, err := other.Refund(t.Context(), grant); err != nil {
		t.Errorf("Refund = %v", err)
	}
	s.want(s.try(other, 2), true, 0)
}
