package throttle_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// What this version can't read is refused, by every call that decides, and can
// be replaced.
func TestStoredLimitThatCannotBeReadRefuses(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	code := throttle.Sliding(1, time.Minute)
	for _, value := range []string{"17 quantum 3/1s", "1/60s", "0 1/60s", "x", ""} {
		if err := rdb.Set(t.Context(), storedKey, value, 0).Err(); err != nil {
			t.Fatal(err)
		}
		l := newLimiter(t, rdb, "sms", code, throttle.Config{})
		place := throttle.BookingRef{Policy: l.Policy(), IDs: []string{l.ID(key)}, Job: "a", Costs: []int{1}}
		all := asks(t.Context(), l, key, 1)
		all["Check"] = throttle.Refresh(t.Context(), rdb, []throttle.BookingRef{place})[0].Err
		_, all["Peek"] = l.Peek(t.Context(), key, 1)
		_, all["Reset"] = l.Reset(t.Context(), key)
		_, _, all["StoredLimit"] = l.StoredLimit(t.Context())
		for op, err := range all {
			e, ok := errors.AsType[*throttle.StoredLimitError](err)
			if !ok || e.Rule != "sms" || !errors.Is(err, throttle.ErrStoredLimit) || errors.Is(err, throttle.ErrUnavailable) {
				t.Errorf("%q is stored: %s = %v, want a StoredLimitError", value, op, err)
			}
		}
		if keys := allKeys(t, rdb); len(keys) != 1 {
			t.Errorf("%q is stored: keys = %v, want that alone", value, keys)
		}
		_, left := place.Leave(t.Context())
		_, given := l.Refund(t.Context(), throttle.Request{Key: key, Cost: 1, Token: 7})
		if left != nil || given != nil {
			t.Errorf("%q is stored: Leave = %v, Refund = %v, want nil", value, left, given)
		}
		rdb.FlushDB(t.Context())
		if err := l.SetLimit(t.Context(), code); err != nil {
			t.Fatal(err)
		}
		wantInForce(t, l, code)
	}
}

// Who blocks when the limit becomes one that can't be read leaves no place, and
// what was granted before can be given back.
func TestNoPlaceUnderALimitThatCannotBeRead(t *testing.T) {
	t.Parallel()
	bubble(t, throttle.Sliding(1, time.Hour), func(t *testing.T, limiter func() *throttle.Limiter, rdb *redis.Client) {
		l := limiter()
		first, err := l.TryAcquire(t.Context(), key, 1)
		if err != nil {
			t.Fatal(err)
		}
		result := make(chan error)
		go func() { result <- l.Acquire(t.Context(), key, 1) }()
		synctest.Wait()
		rdb.Set(t.Context(), storedKey, "1 nonsense", 0)
		if err := <-result; !errors.Is(err, throttle.ErrStoredLimit) {
			t.Errorf("Acquire = %v, want %v", err, throttle.ErrStoredLimit)
		}
		if _, err := l.Refund(t.Context(), first.Request); err != nil {
			t.Errorf("Refund = %v, want nil", err)
		}
		rdb.Del(t.Context(), storedKey)
		time.Sleep(time.Second)
		if s, err := l.Peek(t.Context(), key, 5); err != nil || s.Waiting != 0 || s.Available != 1 {
			t.Errorf("Peek = %+v, %v, want nobody waiting and 1 available", s, err)
		}
	})
}
