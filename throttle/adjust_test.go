package throttle_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// Whatever a grant is adjusted to on the way, as much is spent as it comes to: exactly
// where the ledger knows single permits. A bucket is one instant or one count: of a
// correction of a correction it gives back what is sure, and never more.
func TestAdjustUpAndDown(t *testing.T) {
	t.Parallel()
	for _, limit := range []throttle.Limit{
		throttle.Sliding(6, time.Minute), throttle.Fixed(6, time.Minute), throttle.Bucket(6, time.Minute, 6),
		throttle.GCRA(6, time.Minute, 6), throttle.SteppedBucket(6, time.Minute, 6),
	} {
		t.Run(limit.String(), func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			l, exact := s.limiter("rule", limit), limit.Kind() == "sliding" || limit.Kind() == "fixed"
			charge := l.Policy().Charge(s.try(l, 1))
			for i, to := range []int{1, 5, 4, 5, 2, 0, 3, 0, 6, 0} {
				s.at(time.Duration(i) * ms)
				for range 2 { // the second time nothing is left to do
					if _, err := charge.Adjust(t.Context(), map[string]int{"rule": to}); err != nil {
						t.Fatal(err)
					}
				}
				got, err := l.Available(t.Context(), key)
				if err != nil || got > 6-to || exact && got != 6-to || charge.Charged("rule") != to {
					t.Fatalf("adjusted to %d: %d available, %v, %d charged, want %d available", to, got, err, charge.Charged("rule"), 6-to)
				}
			}
		})
	}
}

// A charge is corrected to more than is left, and then down again: what others took stays spent.
func TestOverchargeGivesBackWhatItTook(t *testing.T) {
	t.Parallel()
	for _, limit := range []throttle.Limit{
		throttle.Sliding(6, time.Minute), throttle.Fixed(6, time.Minute), throttle.Bucket(6, time.Minute, 6),
		throttle.GCRA(6, time.Minute, 6), throttle.SteppedBucket(6, time.Minute, 6), throttle.Leaky(6, time.Minute),
	} {
		t.Run(limit.String(), func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			l := s.limiter("rule", limit)
			if limit.Kind() != "leaky" { // which lets one after the other
				s.try(l, 3)
				s.at(ms)
			}
			charge := l.Policy().Charge(s.try(l, 1))
			before, err := l.TimeUntil(t.Context(), key, 1)
			if err != nil {
				t.Fatal(err)
			}
			free, err := l.Available(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			for i, to := range []int{20, 3, 9, 1} {
				s.at(time.Duration(2+i) * ms)
				if _, err := charge.Adjust(t.Context(), map[string]int{"rule": to}); err != nil || charge.Charged("rule") != to {
					t.Fatalf("Adjust(%d) = %v, %d are charged", to, err, charge.Charged("rule"))
				}
			}
			got, err := l.Available(t.Context(), key)
			if err != nil || got > free {
				t.Errorf("%d available, %v, want the %d that nobody took at most", got, err, free)
			}
			if after, err := l.TimeUntil(t.Context(), key, 1); err != nil || after < before-10*ms {
				t.Errorf("the next one waits %v, %v, want %v as before", after, err, before)
			}
		})
	}
}

// What a wider rule was paid more is found again when others have come since.
func TestAdjustOfAWiderRule(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	requests, tokens := s.limiter("requests", throttle.Sliding(100, time.Hour)), s.limiter("tokens", throttle.Sliding(200, time.Hour))
	p, err := throttle.NewPolicy(requests, tokens)
	if err != nil {
		t.Fatal(err)
	}
	d, err := p.TryAcquire(t.Context(), throttle.Request{Key: key, Cost: 1, More: []throttle.KeyCost{{Key: key, Cost: 100}}})
	if err != nil || !d.Granted {
		t.Fatalf("TryAcquire = %v, %v, want a grant", d, err)
	}
	charge := p.Charge(d)
	for i, to := range []int{150, 100} {
		s.at(time.Duration(1+i) * ms)
		if _, err := charge.Adjust(t.Context(), map[string]int{"tokens": to}); err != nil {
			t.Fatal(err)
		}
		s.try(tokens, 1) // another has the newest grant
		if got, err := tokens.Available(t.Context(), key); err != nil || got != 200-to-1-i {
			t.Errorf("adjusted to %d: %d available, %v, want %d", to, got, err, 200-to-1-i)
		}
	}
}

// A bucket whose burst takes longer than its window to fill counts a permit as long. So long it comes back.
func TestAdjustLongAfterTheWindow(t *testing.T) {
	t.Parallel()
	for _, limit := range []throttle.Limit{throttle.Bucket(1, time.Second, 600), throttle.SteppedBucket(1, time.Second, 600)} {
		t.Run(limit.String(), func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			l := s.limiter("rule", limit)
			charge := l.Policy().Charge(s.try(l, 300))
			s.at(time.Second)
			s.try(l, 1) // the newest grant is another's
			s.at(70 * time.Second)
			if _, err := charge.Adjust(t.Context(), map[string]int{"rule": 10}); err != nil {
				t.Fatal(err)
			}
			if got, err := l.Available(t.Context(), key); err != nil || got < 590 {
				t.Errorf("%d available, %v, want nearly all", got, err)
			}
		})
	}
}

// What this process counted while Redis was away is adjusted here too.
func TestChargeOfALocalGrant(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	opts := srv.ClientOptions()
	opts.MaxRetries, opts.DialerRetries = -1, 1
	rdb := redis.NewClient(opts)
	t.Cleanup(func() { _ = rdb.Close() })
	p := newLimiter(t, rdb, "r", throttle.Sliding(6, time.Minute), throttle.Config{OnUnavailable: throttle.FailLocal}).Policy()
	srv.Kill()
	d, err := p.TryAcquire(t.Context(), throttle.Request{Key: key, Cost: 5})
	if err != nil || !d.Granted || d.Fallback != throttle.FailLocal {
		t.Fatalf("TryAcquire = %v, %v, want a local grant", d, err)
	}
	// it does not adjust by a limit that was heard a moment ago
	if _, err := throttle.LimitInForce(t.Context(), p.Rules()[0]); !errors.Is(err, throttle.ErrUnavailable) {
		t.Fatalf("LimitInForce = %v, want %v", err, throttle.ErrUnavailable)
	}
	if _, err := p.Charge(d).Adjust(t.Context(), map[string]int{"r": 2}); err != nil {
		t.Fatalf("Adjust: %v", err)
	}
	for _, want := range []bool{true, false} {
		d, err := p.TryAcquire(t.Context(), throttle.Request{Key: key, Cost: 4})
		if err != nil || d.Granted != want {
			t.Errorf("TryAcquire = %v, %v, want granted %v: 2 of 6 are paid", d, err, want)
		}
	}
}

// An Adjust fails, and is made again: the observer hears of it once.
func TestAdjustedIsToldWhenItSucceeds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, m := redistest.Mini(t)
		var told []event.Adjusted
		l := newLimiter(t, miniClient(t, m), "sms", throttle.Fixed(5, time.Hour), throttle.Config{Observer: event.Observer{
			Adjusted: func(_ context.Context, e event.Adjusted) { told = append(told, e) },
		}})
		d, err := l.TryAcquire(t.Context(), key, 3)
		if err != nil || !d.Granted {
			t.Fatalf("TryAcquire = %v, %v, want a grant", d, err)
		}
		charge := l.Policy().Charge(d)
		m.SetError("ERR an outage")
		if _, err := charge.Adjust(t.Context(), map[string]int{"sms": 1}); !errors.Is(err, throttle.ErrUnavailable) {
			t.Errorf("Adjust = %v, want %v", err, throttle.ErrUnavailable)
		}
		m.SetError("")
		for range 2 { // the second corrects nothing
			if _, err := charge.Adjust(t.Context(), map[string]int{"sms": 1}); err != nil {
				t.Fatal(err)
			}
		}
		if len(told) != 1 || told[0].From != 3 || told[0].To != 1 {
			t.Errorf("the observer heard %+v, want one from 3 to 1", told)
		}
	})
}
