package throttle_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

func TestAvailableAndTimeUntil(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(3, time.Minute))
	look := func(available int, until ...time.Duration) {
		t.Helper()
		if got, err := l.Available(t.Context(), key); err != nil || got != available {
			t.Errorf("Available = %d, %v, want %d", got, err, available)
		}
		for i, want := range until {
			if got, err := l.TimeUntil(t.Context(), key, i+1); err != nil || got != want {
				t.Errorf("TimeUntil(%d) = %v, %v, want %v", i+1, got, err, want)
			}
		}
	}
	look(3, 0, 0, 0)
	s.want(s.try(l, 1), true, 0)
	s.at(20 * time.Second)
	s.want(s.try(l, 1), true, 20*time.Second)
	look(1, 0, 40*time.Second, time.Minute)
	s.want(s.job(l, "a", 2), false, time.Minute)
	look(0, time.Minute, 100*time.Second, 100*time.Second) // behind the two of a, which go at once
	if _, err := l.TimeUntil(t.Context(), key, 4); !errors.Is(err, throttle.ErrExceedsLimit) {
		t.Errorf("TimeUntil(4) = %v, want %v", err, throttle.ErrExceedsLimit)
	}
	if _, err := l.TimeUntil(t.Context(), key, 0); !errors.Is(err, throttle.ErrInvalidCost) {
		t.Errorf("TimeUntil(0) = %v, want %v", err, throttle.ErrInvalidCost)
	}
	for _, k := range redistest.Keys(t, s.raw, "hw:*") {
		before := s.raw.Dump(t.Context(), k).Val()
		look(0)
		if after := s.raw.Dump(t.Context(), k).Val(); after != before {
			t.Errorf("%s changed by a look", k)
		}
	}
}

// A key tells when it is forgotten.
func TestPeekReturnsExpiry(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := newLimiter(t, s.raw, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
	if got, err := l.Peek(t.Context(), key, 0); err != nil || got.Expires != 0 {
		t.Errorf("Expires of an unknown key = %v, %v, want 0", got.Expires, err)
	}
	if _, err := l.TryAcquire(t.Context(), key, 1); err != nil {
		t.Fatal(err)
	}
	if got, err := l.Peek(t.Context(), key, 0); err != nil || got.Expires <= 50*time.Second || got.Expires > time.Minute+time.Second {
		t.Errorf("Expires = %v, %v, want about a minute", got.Expires, err)
	}
}

func TestPeekWhenRedisIsUnavailable(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	defer rdb.Close()
	for _, away := range []throttle.FailureMode{throttle.FailClosed, throttle.FailOpen, throttle.FailLocal} {
		l := newLimiter(t, rdb, "sms", throttle.Sliding(3, time.Minute), throttle.Config{OnUnavailable: away})
		if _, err := l.Available(t.Context(), key); !errors.Is(err, throttle.ErrUnavailable) {
			t.Errorf("%v: Available = %v, want %v", away, err, throttle.ErrUnavailable)
		}
		if _, err := l.TimeUntil(t.Context(), key, 1); !errors.Is(err, throttle.ErrUnavailable) {
			t.Errorf("%v: TimeUntil = %v, want %v", away, err, throttle.ErrUnavailable)
		}
	}
}

// A look answers what a check does, and leaves the promise as it was: else a job that
// may come earlier, and was not told so, would be late.
func TestLookupIsARefreshWithoutAPromise(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]throttle.Limit{
		"sliding": throttle.Sliding(2, time.Minute), "gcra": throttle.GCRA(1, time.Second, 2), "fixed": throttle.Fixed(3, time.Minute),
		"smooth": throttle.Smooth(1, time.Second, 2), "concurrent": throttle.Concurrent(2, time.Minute),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			l := s.limiter("sms", limit)
			for i := range 20 {
				s.job(l, fmt.Sprint("w", i), 1)
			}
			_, err := l.Policy().Cancel(t.Context(), throttle.Request{Key: key, Cost: 1, Job: "w9"}) // those behind it may come earlier
			if err != nil {
				t.Fatal(err)
			}
			place := throttle.BookingRef{Policy: l.Policy(), IDs: []string{l.ID(key)}, Costs: []int{1}}
			known := 0
			for i := range 20 {
				place.Job = fmt.Sprint("w", i)
				before := dump(t, s)
				got, err := throttle.ForWorkers.Lookup(t.Context(), place, false)
				if err != nil {
					t.Fatal(err)
				}
				if after := dump(t, s); after != before {
					t.Errorf("%s: a look changed what Redis holds", place.Job)
				}
				want := throttle.ForWorkers.Refresh(t.Context(), s.rdb, []throttle.BookingRef{place})[0]
				if want.Err != nil || got.Known != want.Known || !got.At.Equal(want.At) || got.Rule != want.Rule || got.Permits != want.Permits || !got.Now.Equal(want.Now) || got.Parked {
					t.Errorf("%s: Lookup = %+v, want as Refresh, %+v", place.Job, got, want)
				}
				if got.Known {
					if got.Jobs != known {
						t.Errorf("%s is behind %d, want %d", place.Job, got.Jobs, known)
					}
					known++
				}
			}
			if known < 10 {
				t.Errorf("%d wait, want more", known)
			}
		})
	}
}

// On Redis Cluster the rules of one policy lie in several slots: the one is told that
// holds the job up.
func TestLookupOnCluster(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3)
	phone := newLimiter(t, rdb, "phone", throttle.Sliding(1, time.Minute), throttle.Config{})
	provider := newLimiter(t, rdb, "provider", throttle.Sliding(1, time.Hour), throttle.Config{})
	p, err := throttle.NewPolicy(phone, provider)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 9 {
		r := throttle.Request{Key: fmt.Sprint("+", max(i, 2)), Cost: 1, More: []throttle.KeyCost{{Key: "acme", Cost: 1}}, Job: fmt.Sprint("w", i)}
		d, err := p.Redeem(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		got, err := throttle.ForWorkers.Lookup(t.Context(), throttle.ForWorkers.Ref(p, r), false)
		if err != nil || got.Known != !d.Granted || got.Known && (got.Rule != d.Rule || got.At.Sub(d.At).Abs() > time.Second) {
			t.Errorf("w%d: Lookup = %+v, %v, want it as it was told, %v", i, got, err, d)
		}
		if i > 2 && got.Rule != "provider" {
			t.Errorf("w%d waits for %q, want provider", i, got.Rule)
		}
	}
}

// dump is all that Redis holds of ours.
func dump(t *testing.T, s *scene) (all string) {
	t.Helper()
	for _, k := range redistest.Keys(t, s.raw, "hw:*") {
		all += k + s.raw.Dump(t.Context(), k).Val()
	}
	return all
}

// Costs of one line differ: the list tells the instants that follow from them.
func TestListMixedCosts(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.GCRA(1, time.Second, 10))
	s.want(s.try(l, 10), true, 0)
	at, want := time.Duration(0), []time.Duration(nil)
	for i := range 30 {
		at += time.Duration(1+i%3) * time.Second
		want = append(want, at)
		s.want(s.job(l, fmt.Sprint("w", i), 1+i%3), false, at)
	}
	for most := 1; most <= 31; most += 6 {
		n := 0
		for from := (throttle.ListFrom{}); ; {
			list, err := l.List(t.Context(), key, from, most)
			if err != nil || list.All != 30 {
				t.Fatal(list, err)
			}
			for _, w := range list.Listed {
				if w.Job != fmt.Sprint("w", n) || w.Cost != 1+n%3 || w.At.Sub(start) != want[n] {
					t.Errorf("lists of %d: place %d is %+v, want it at %v", most, n, w, want[n])
				}
				n++
			}
			if from = list.Next; len(list.Listed) == 0 {
				break
			}
		}
		if n != 30 {
			t.Errorf("lists of %d have %d places, want 30", most, n)
		}
	}
}

func TestLookupAndListRefuse(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Minute))
	for _, most := range []int{0, throttle.PeekMax + 1} {
		if _, err := l.List(t.Context(), key, throttle.ListFrom{}, most); !errors.Is(err, throttle.ErrInvalidConfig) {
			t.Errorf("List of %d = %v, want %v", most, err, throttle.ErrInvalidConfig)
		}
	}
	if _, err := l.List(t.Context(), "", throttle.ListFrom{}, 1); !errors.Is(err, throttle.ErrInvalidKey) {
		t.Errorf("List without a key = %v, want %v", err, throttle.ErrInvalidKey)
	}
	local, err := throttle.NewLocal("sms", throttle.Sliding(1, time.Minute), throttle.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := local.List(t.Context(), key, throttle.ListFrom{}, 1); !errors.Is(err, throttle.ErrInvalidConfig) {
		t.Errorf("List of a local limiter = %v, want %v", err, throttle.ErrInvalidConfig)
	}
	place := throttle.BookingRef{Policy: local.Policy(), IDs: []string{key}, Costs: []int{1}, Job: "a"}
	if _, err := throttle.ForWorkers.Lookup(t.Context(), place, false); !errors.Is(err, throttle.ErrInvalidConfig) {
		t.Errorf("Lookup with a local limiter = %v, want %v", err, throttle.ErrInvalidConfig)
	}
	place = throttle.BookingRef{Policy: l.Policy(), IDs: []string{key}, Costs: []int{2}, Job: "a"}
	if _, err := throttle.ForWorkers.Lookup(t.Context(), place, false); !errors.Is(err, throttle.ErrExceedsLimit) {
		t.Errorf("Lookup above the limit = %v, want %v", err, throttle.ErrExceedsLimit)
	}
}
