package throttle_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/throttle"
)

// A process that has not heard of a change yet, as it may for a moment, neither
// grants by the old limit on a key that was asked under the new one, nor makes
// its ledger forget: the ledger knows the version of its limit.
func TestOutdatedProcessHearsFromTheLedger(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]throttle.Limit{
		{throttle.Fixed(10, 10*ms), throttle.Sliding(10, time.Minute)},
		{throttle.Fixed(10, 10*ms), throttle.Fixed(10, time.Minute)},
		{throttle.GCRA(10, 10*ms, 10), throttle.GCRA(10, time.Minute, 10)},
		{throttle.GCRA(10, 10*ms, 10), throttle.Sliding(10, time.Minute)},
		{throttle.Sliding(10, 10*ms), throttle.Sliding(10, time.Minute)},
		{throttle.Sliding(10, 10*ms), throttle.SteppedBucket(10, time.Minute, 10)},
	} {
		t.Run(c[0].String()+" to "+c[1].String(), func(t *testing.T) {
			t.Parallel()
			bubble(t, c[0], func(t *testing.T, limiter func() *throttle.Limiter, _ *redis.Client) {
				knows, late := limiter(), limiter()
				total := 0
				take := func(l *throttle.Limiter, n int) {
					t.Helper()
					d, err := l.TryAcquire(t.Context(), key, n)
					if err != nil {
						t.Fatal(err)
					}
					if d.Granted {
						total += n
					}
				}
				take(late, 1)
				if err := setLimit(t.Context(), knows, c[1]); err != nil {
					t.Fatal(err)
				}
				take(knows, 9)
				for range 20 {
					time.Sleep(20 * ms) // at first it decides by what it read before the change
					take(late, 1)
					take(knows, 1)
				}
				if total != 10 {
					t.Errorf("%d permits within a minute, want 10", total)
				}
			})
		})
	}
}

// The version that a ledger knows may be stored nowhere any more: then what is in
// force counts as that version, and nobody asks in circles.
func TestVersionThatIsStoredNoMore(t *testing.T) {
	t.Parallel()
	bubble(t, throttle.Sliding(1, time.Minute), func(t *testing.T, limiter func() *throttle.Limiter, rdb *redis.Client) {
		l := limiter()
		if err := setLimit(t.Context(), l, throttle.Fixed(3, time.Hour)); err != nil {
			t.Fatal(err)
		}
		if d, err := l.TryAcquire(t.Context(), key, 1); err != nil || !d.Granted {
			t.Fatalf("TryAcquire = %v, %v, want a grant", d, err)
		}
		rdb.Del(t.Context(), storedKey)
		time.Sleep(time.Minute)
		for _, l := range []*throttle.Limiter{l, limiter()} { // one that heard of it, and one that never did
			if d, err := l.TryAcquire(t.Context(), "other"+key, 1); err != nil {
				t.Errorf("TryAcquire of another key = %v, %v", d, err)
			}
			st, err := l.Peek(t.Context(), key, 0)
			if err != nil || st.Available != 1 {
				t.Errorf("Peek = %+v, %v, want 1 available: the limit in code counts", st, err)
			}
		}
		if d, err := l.TryAcquire(t.Context(), key, 1); err != nil || !d.Granted {
			t.Errorf("TryAcquire = %v, %v, want a grant", d, err)
		}
	})
}

// A limit of a longer window keeps what the shorter one would let go, from the
// first time that somebody asks under it.
func TestLongerWindowOutlivesTheShorter(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]throttle.Limit{
		{throttle.Sliding(1, time.Second), throttle.Sliding(1, time.Minute)},
		{throttle.Sliding(1, time.Second), throttle.Fixed(1, time.Minute)},
		{throttle.Fixed(2, time.Second), throttle.Sliding(2, time.Minute)},
		{throttle.GCRA(10, time.Second, 10), throttle.GCRA(1, time.Second, 10)},
	} {
		bubble(t, c[0], func(t *testing.T, limiter func() *throttle.Limiter, _ *redis.Client) {
			l := limiter()
			n := c[0].MaxCost()
			if d, err := l.TryAcquire(t.Context(), key, n); err != nil || !d.Granted {
				t.Fatalf("TryAcquire = %v, %v, want a grant", d, err)
			}
			time.Sleep(500 * ms)
			if err := setLimit(t.Context(), l, c[1]); err != nil {
				t.Fatal(err)
			}
			if d, err := l.TryAcquire(t.Context(), key, n); err != nil || d.Granted {
				t.Fatalf("%v: TryAcquire = %v, %v, want a refusal", c, d, err)
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if d, err := l.TryAcquire(t.Context(), key, n); err != nil || d.Granted {
				t.Errorf("%v: TryAcquire when the old window is over = %v, %v, want a refusal", c, d, err)
			}
		})
	}
}

// fixed 10/1s had 10 in the window before and 1 in this one: a window of a minute
// holds both.
func TestLongerFixedWindowHoldsBothThatAreKnown(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("rule", throttle.Fixed(10, time.Second))
	s.want(s.try(l, 10), true, 0)
	s.at(time.Second)
	s.want(s.try(l, 1), true, time.Second)
	s.at(1100 * ms)
	if err := setLimit(t.Context(), l, throttle.Fixed(10, time.Minute)); err != nil {
		t.Fatal(err)
	}
	s.want(s.try(l, 1), false, time.Minute)
}

// Of a ledger on which nothing is spent any more a log is made: the refund of a
// grant that it does not know must leave it in order.
func TestRefundOnALogOfNothing(t *testing.T) {
	t.Parallel()
	for _, limit := range []throttle.Limit{
		throttle.Fixed(5, time.Second), throttle.GCRA(5, time.Second, 5), throttle.SteppedBucket(5, time.Second, 5), throttle.Smooth(5, time.Second, 5),
	} {
		s := newScene(t)
		l := s.limiter("rule", limit)
		first := s.job(l, "a", 1)
		if err := s.raw.Del(t.Context(), l.Ledger(key)).Err(); err != nil { // it expired, its token lives on
			t.Fatal(err)
		}
		s.at(5 * time.Second)
		second := s.job(l, "b", 1)
		if _, err := l.Policy().Refund(t.Context(), second.Request); err != nil {
			t.Fatal(err)
		}
		if err := setLimit(t.Context(), l, throttle.Sliding(5, time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Policy().Refund(t.Context(), first.Request); err != nil {
			t.Errorf("%v: Refund = %v", limit, err)
		}
		s.at(6 * time.Second)
		s.want(s.try(l, 1), true, 6*time.Second)
	}
}

// A refund in the last millisecond of a ledger's life finds a TTL of 0: the write
// must not fail halfway.
func TestRefundAtTheEndOfALife(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for i, limit := range []throttle.Limit{throttle.GCRA(1, ms, 1), throttle.Fixed(1, ms), throttle.WarmUp(1, ms, ms, 3)} {
		l := s.limiter("rule"+string(rune('a'+i)), limit)
		s.at(0)
		d := s.job(l, "a", 1)
		if err := s.raw.Persist(t.Context(), l.Ledger(key)).Err(); err != nil { // PTTL is below 1
			t.Fatal(err)
		}
		s.at(time.Minute - ms)
		s.at(3 * time.Hour) // its life is negative now
		if _, err := l.Policy().Refund(t.Context(), d.Request); err != nil {
			t.Errorf("%v: Refund = %v", limit, err)
		}
	}
}
