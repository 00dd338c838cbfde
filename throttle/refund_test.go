package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/headwayq/headway/internal/judge"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// hourly are limits of all kinds whose grants count for longer than their tokens are
// remembered, of 6 permits at once where they know that.
var hourly = []throttle.Limit{
	throttle.Sliding(6, time.Hour), throttle.Fixed(6, time.Hour), throttle.Calendar(6, throttle.Hour, "UTC"), throttle.Bucket(6, time.Hour, 6),
	throttle.SteppedBucket(6, time.Hour, 6), throttle.GCRA(6, time.Hour, 6), throttle.Smooth(6, time.Hour, 6), throttle.WarmUp(6, time.Hour, time.Hour, 3),
}

// underEach runs a test under each of some limits, on a scene of its own.
func underEach(t *testing.T, limits []throttle.Limit, test func(s *scene, l *throttle.Limiter)) {
	t.Helper()
	for _, limit := range limits {
		t.Run(limit.String(), func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			test(s, s.limiter("rule", limit))
		})
	}
}

// permits asks for the permits that are to be had, and when the next one is.
func (s *scene) permits(l *throttle.Limiter) (int, time.Duration) {
	s.Helper()
	got, err := l.Peek(s.Context(), key, 0)
	if err != nil {
		s.Fatal(err)
	}
	return got.Available, got.Next.Sub(start)
}

func (s *scene) refund(l *throttle.Limiter, d throttle.Decision) {
	s.Helper()
	if _, err := l.Policy().Refund(s.Context(), d.Request); err != nil {
		s.Fatal(err)
	}
}

// later moves the clock, and forgets what may be forgotten by then: scripts do it by
// portions, and the keys of a scene live an hour longer.
func (s *scene) later(l *throttle.Limiter, d time.Duration) {
	s.Helper()
	s.at(d)
	over := s.now.Add(-time.Minute).UnixMicro()
	tokens := l.Ledger(key) + ":tokens"
	s.raw.ZRemRangeByScore(s.Context(), tokens, "0", fmt.Sprint(over))
	s.raw.ZRemRangeByScore(s.Context(), tokens, fmt.Sprint("(", -over), "(0")
}

// wantAvailable checks how many permits are to be had.
func (s *scene) wantAvailable(l *throttle.Limiter, want int) {
	s.Helper()
	if got, _ := s.permits(l); got != want {
		s.Errorf("at %v %d permits are available, want %d", s.now.Sub(start), got, want)
	}
}

// A grant is given back long after its token is forgotten: the ledger is as if it had
// been given back at once.
func TestRefundOfAnOldGrant(t *testing.T) {
	t.Parallel()
	for _, limit := range hourly {
		for _, later := range []time.Duration{30 * time.Second, time.Minute, 20 * time.Minute} {
			t.Run(limit.String()+" after "+later.String(), func(t *testing.T) {
				t.Parallel()
				s := newScene(t)
				l := s.limiter("rule", limit)
				d := s.job(l, "a", 2)
				before, _ := s.permits(l)
				s.later(l, later)
				s.try(l, 1)
				s.later(l, later)
				idle, idleNext := s.permits(l)
				s.refund(l, d)
				got, next := s.permits(l)
				if got < idle || got < before-1 || next > later && next >= idleNext {
					t.Errorf("%d permits are available after the refund, the next at %v; without it %d, at %v; want more, or earlier", got, next, idle, idleNext)
				}
				if exact := limit.Kind() == "sliding" || limit.Kind() == "fixed" || limit.Kind() == "calendar"; exact && got != 5 {
					t.Errorf("%d permits are available after the refund, want 5 of 6", got)
				}
			})
		}
	}
}

// Given back again, within a minute and long after it, a grant gives back nothing: not
// the permits of its neighbour either, which was granted at the same instant.
func TestRefundOfAnOldGrantTwice(t *testing.T) {
	t.Parallel()
	for _, limit := range hourly[:6] {
		for _, first := range []time.Duration{10 * time.Second, 2 * time.Minute} {
			t.Run(limit.String()+" after "+first.String(), func(t *testing.T) {
				t.Parallel()
				s := newScene(t)
				l := s.limiter("rule", limit)
				d := s.try(l, 2)
				s.try(l, 2)
				s.try(l, 2)
				s.later(l, first)
				s.refund(l, d)
				want, next := s.permits(l)
				for _, again := range []time.Duration{first, first + 30*time.Second, first + 2*time.Minute, 9 * time.Minute} {
					s.later(l, again)
					idle, _ := s.permits(l)
					s.refund(l, d)
					if got, _ := s.permits(l); got != idle || idle > want {
						t.Errorf("given back again at %v: %d permits are available, %d without that, want %d (the next is at %v)", again, got, idle, want, next)
					}
				}
			})
		}
	}
}

// Also when it was given back by its token alone, while that was remembered.
func TestRefundByTokenAndThenByInstant(t *testing.T) {
	t.Parallel()
	underEach(t, hourly[:6], func(s *scene, l *throttle.Limiter) {
		var all []throttle.Decision
		for range 3 { // at one instant
			d, err := l.TryAcquire(s.Context(), key, 2)
			if err != nil || !d.Granted {
				s.Fatal(d, err)
			}
			all = append(all, d)
		}
		s.later(l, 30*time.Second)
		if _, err := l.Policy().Refund(s.Context(), throttle.Request{Key: key, Cost: 2, Token: all[0].Token}); err != nil {
			s.Fatal(err)
		}
		s.later(l, 3*time.Minute)
		want, _ := s.permits(l)
		s.refund(l, all[0])
		s.wantAvailable(l, want)
	})
}

// What was lost can't be given back: the ledger that began anew is of others.
func TestRefundOfAGrantThatIsNotInTheLedger(t *testing.T) {
	t.Parallel()
	underEach(t, hourly, func(s *scene, l *throttle.Limiter) {
		d := s.try(l, 3)
		s.at(ms)
		s.raw.Del(s.Context(), redistest.Keys(s.T, s.raw, "hw:*")...)
		s.job(l, "b", 3)
		s.at(ms + us)
		s.job(l, "c", 1)
		s.at(2 * time.Minute)
		want, wantNext := s.permits(l)
		s.refund(l, d)
		if got, next := s.permits(l); got != want || next != wantNext {
			s.Errorf("%d permits are available, the next at %v, want %d and %v as before", got, next, want, wantNext)
		}
	})
}

// A refund of another limit's grant gives back nothing here, nor one of another key.
func TestRefundAtAnotherRule(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l, other := s.limiter("rule", throttle.Fixed(6, time.Hour)), s.limiter("other", throttle.Fixed(6, time.Hour))
	s.try(l, 2)
	s.at(ms)
	d := s.try(other, 2)
	s.at(2 * time.Minute)
	s.refund(l, d)
	s.wantAvailable(l, 4)
	elsewhere := d
	elsewhere.Key = key + "0"
	d, err := other.TryAcquire(t.Context(), elsewhere.Key, 2)
	if err != nil {
		t.Fatal(err)
	}
	s.at(4 * time.Minute)
	s.refund(other, elsewhere)
	if got, err := other.Available(t.Context(), d.Key); err != nil || got != 4 {
		t.Errorf("of another key %d permits are available, %v, want 4", got, err)
	}
	s.refund(s.limiter("other", throttle.Fixed(6, 2*time.Hour)), d) // another limiter of the rule finds it
}

// A charge is adjusted hours after the grant, up and down, and its copy does nothing.
func TestAdjustOfAnOldGrant(t *testing.T) {
	t.Parallel()
	for _, limit := range []throttle.Limit{throttle.Sliding(20, time.Hour), throttle.Fixed(20, time.Hour)} {
		t.Run(limit.String(), func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			l := s.limiter("rule", limit)
			charge := l.Policy().Charge(s.try(l, 4))
			s.try(l, 1)
			for i, to := range []int{2, 5, 3, 3, 0, 1, 0} {
				s.later(l, time.Duration(i+1)*7*time.Minute)
				if _, err := charge.Adjust(t.Context(), map[string]int{"rule": to}); err != nil {
					t.Fatal(err)
				}
				s.try(l, 1) // which takes the place of what was paid more
				s.wantAvailable(l, 18-i-to)
			}
		})
	}
}

// The newest grant was adjusted to nothing: a late copy of its call is the same grant,
// and its refund takes nothing from the one before.
func TestCopyOfACallThatWasAdjustedToNothing(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("rule", throttle.Sliding(3, time.Hour))
	s.try(l, 1)
	s.at(time.Second)
	d := s.try(l, 2)
	if _, err := l.Policy().Charge(d).Adjust(t.Context(), map[string]int{"rule": 0}); err != nil {
		t.Fatal(err)
	}
	s.at(30 * time.Second)
	again, err := l.Policy().Redeem(t.Context(), throttle.Request{Key: key, Cost: 2, Job: "a", Token: d.Token})
	if err != nil {
		t.Fatal(err)
	}
	s.want(again, true, time.Second)
	s.wantAvailable(l, 2)
	s.refund(l, d)
	s.wantAvailable(l, 2)
}

// The tokens of a busy hour are gone a minute after it, whether anybody comes or not.
func TestTokensAreForgottenAfterAMinute(t *testing.T) {
	t.Parallel()
	for _, limit := range []throttle.Limit{throttle.Sliding(100, time.Hour), throttle.Fixed(100, time.Hour)} {
		s := newScene(t)
		l := s.limiter("rule", limit)
		for i := range 15 {
			s.at(time.Duration(i) * time.Second)
			s.try(l, 1)
		}
		tokens := l.Ledger(key) + ":tokens"
		if got := s.raw.ZCard(t.Context(), tokens).Val(); got < 14 {
			t.Errorf("%v: %d tokens are kept of 15 calls in a quarter of a minute, want those", limit, got)
		}
		if got := s.life(tokens); got > time.Minute+2*time.Second {
			t.Errorf("%v: the tokens live for %v, want a minute", limit, got)
		}
		s.at(2 * time.Minute)
		s.try(l, 1)
		s.at(2*time.Minute + 20*time.Second)
		s.try(l, 1)
		if got := s.raw.ZCard(t.Context(), tokens).Val(); got > 2 {
			t.Errorf("%v: %d tokens are kept a minute later, want one of the two calls since", limit, got)
		}
	}
}

// A grant of Redis is not one of what counts here while Redis is away.
func TestOldGrantOfRedisIsNotGivenBackHere(t *testing.T) {
	t.Parallel()
	pulled(t, throttle.Fixed(2, time.Hour), throttle.Config{OnUnavailable: throttle.FailLocal}, func(t *testing.T, l *throttle.Limiter, c *cable) {
		mustTry(t, l, true, throttle.FailLocal)
		c.pulled.Store(false)
		time.Sleep(time.Second)
		d := mustTry(t, l, true, throttle.FailClosed)
		time.Sleep(time.Second)
		c.pulled.Store(true)
		mustTry(t, l, true, throttle.FailLocal)
		c.pulled.Store(false)
		time.Sleep(2 * time.Minute)
		if _, err := l.Policy().Refund(t.Context(), d.Request); err != nil {
			t.Errorf("Refund = %v, want nil", err)
		}
		if got, err := l.Available(t.Context(), key); err != nil || got != 2 {
			t.Errorf("%d permits are available in Redis, %v, want 2", got, err)
		}
		c.pulled.Store(true)
		mustTry(t, l, false, throttle.FailLocal)
	})
}

// A grant that was corrected is not taken for a later one when it is corrected again. In a bucket of two, b took two permits and C
// one. D took two when those of C had been regained: then a refund of C gives nothing back, whatever became of b's.
func TestCorrectedTwiceIsNotALaterGrant(t *testing.T) {
	t.Parallel()
	for _, limit := range []throttle.Limit{throttle.GCRA(1, time.Second, 2), throttle.Bucket(1, time.Second, 2), throttle.SteppedBucket(1, time.Second, 2)} {
		for name, pause := range map[string]time.Duration{"later": 10 * time.Second, "at one instant": 0} {
			t.Run(limit.String()+", "+name, func(t *testing.T) {
				t.Parallel()
				s := newScene(t)
				l := s.limiter("rule", limit)
				first := s.try(l, 2)
				charge := l.Policy().Charge(first)
				adjust := func(to int) {
					t.Helper()
					if _, err := charge.Adjust(t.Context(), map[string]int{"rule": to}); err != nil {
						t.Fatal(err)
					}
				}
				s.at(pause)
				adjust(1)
				second := s.try(l, 1)
				s.want(second, true, pause)
				if pause > 0 {
					s.at(pause + 2*time.Second)
				}
				adjust(0)
				third := pause + 5*time.Second
				s.at(third)
				s.want(s.try(l, 2), true, third)
				s.refund(l, second)
				s.wantAvailable(l, 0)
			})
		}
	}
}

// Whatever is given back or adjusted, again or not, of a ledger that is lost or not,
// and however late: the grants that were not given back keep the limit, in every kind.
func TestCorrectionsOfOldGrants(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	rapid.Check(t, func(rt *rapid.T) {
		ctx := context.Background()
		redistest.Flush(t, s.raw)
		limit := drawLimit(rt, "limit", 10*time.Minute)
		if limit.Validate() != nil {
			rt.Skip("these numbers go together in no limit")
		}
		l := s.limiter("rule", limit)
		type held struct {
			throttle.Decision
			charge *throttle.Charge
			left   int // that count
		}
		var all, gone []*held
		now := int64(0)
		for range rapid.IntRange(4, 25).Draw(rt, "calls") {
			now += rapid.OneOf(rapid.Int64Range(0, limit.Window().Microseconds()/2), rapid.Int64Range(1, 90_000_000), rapid.Just(int64(1))).Draw(rt, "later")
			s.later(l, time.Duration(now)*us)
			switch op := rapid.IntRange(0, 9).Draw(rt, "op"); {
			case op == 0:
				s.raw.Del(ctx, l.Ledger(key), l.Ledger(key)+":tokens")
				all, gone = nil, append(gone, all...)
				now++ // a grant of the same instant would be another
				s.at(time.Duration(now) * us)
				continue
			case op < 3 && len(gone) > 0:
				if _, err := l.Policy().Refund(ctx, rapid.SampledFrom(gone).Draw(rt, "gone").Request); err != nil {
					rt.Fatal(err)
				}
				continue
			case op < 5 && len(all) > 0:
				i := rapid.IntRange(0, len(all)-1).Draw(rt, "which")
				if throttle.ForWorkers.Adjusted(all[i].charge) {
					continue
				}
				if _, err := l.Policy().Refund(ctx, all[i].Request); err != nil {
					rt.Fatal(err)
				}
				gone = append(gone, all[i])
				all = append(all[:i:i], all[i+1:]...)
				continue
			case op < 7 && len(all) > 0:
				h := rapid.SampledFrom(all).Draw(rt, "adjusted")
				h.left = rapid.IntRange(0, h.left).Draw(rt, "to")
				if _, err := h.charge.Adjust(ctx, map[string]int{"rule": h.left}); err != nil {
					rt.Fatal(err)
				}
				continue
			}
			d := s.try(l, rapid.IntRange(1, min(2*limit.Permits(), limit.MaxCost())).Draw(rt, "cost"))
			if !d.Granted {
				continue
			}
			all = append(all, &held{d, l.Policy().Charge(d), d.Cost})
			var h history
			for _, k := range all {
				if k.left > 0 {
					h.new = append(h.new, judge.Spent{At: k.At.Sub(start).Microseconds(), Cost: k.left})
				}
			}
			if breach := h.breach(limit); breach != "" {
				rt.Fatalf("%v: the grant of %d at %d: %s\nall %v", limit, d.Cost, now, breach, h.new)
			}
		}
	})
}

// A refund that knows less of the grant than the one before does not shorten how long
// its token refuses.
func TestRefundByTheTokenAloneForgetsNothing(t *testing.T) {
	t.Parallel()
	underEach(t, hourly[:3], func(s *scene, l *throttle.Limiter) {
		d := s.try(l, 2)
		s.try(l, 2)
		s.try(l, 2)
		for i, r := range []throttle.Request{d.Request, {Key: key, Cost: 2, Token: d.Token}, d.Request} {
			s.later(l, time.Duration(i+1)*2*time.Minute)
			if _, err := l.Policy().Refund(s.Context(), r); err != nil {
				s.Fatal(err)
			}
			s.wantAvailable(l, 2)
		}
	})
}

// An adjustment whose answer was lost is done once as long as any of the grants counts, not
// only that of the narrowest rule.
func TestAdjustAgainAfterTheNarrowestWindow(t *testing.T) {
	t.Parallel()
	for _, to := range []int{1, 6} {
		s := newScene(t)
		narrow, wide := s.limiter("narrow", throttle.Sliding(6, time.Second)), s.limiter("wide", throttle.Sliding(20, time.Hour))
		p := newPolicy(s, narrow, wide)
		more := []throttle.KeyCost{{Key: key, Cost: 3}}
		c := &cable{}
		s.raw.AddHook(c)
		d := s.redeem(p, throttle.Request{Key: key, Job: "a", Cost: 3, More: more})
		other := s.redeem(p, throttle.Request{Key: key, Job: "b", Cost: 3, More: more}) // of the same instant
		if !d.Granted || !other.Granted {
			t.Fatalf("%v, %v, want both granted", d, other)
		}
		charge := p.Charge(d)
		c.deaf.Store(true)
		_, err := charge.Adjust(t.Context(), map[string]int{"wide": to})
		c.deaf.Store(false)
		if !errors.Is(err, throttle.ErrUnavailable) {
			t.Fatalf("Adjust = %v, want %v", err, throttle.ErrUnavailable)
		}
		s.later(narrow, 5*time.Minute)
		if _, err := narrow.TryAcquire(t.Context(), key, 1); err != nil {
			t.Fatal(err)
		}
		_, err = p.Charge(s.redeem(p, throttle.Request{Key: key, Job: "c", Cost: 1, More: more})).Adjust(t.Context(), map[string]int{"wide": 0}) // which clears away
		if err != nil {
			t.Fatal(err)
		}
		if _, err := charge.Adjust(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		s.wantAvailable(wide, 20-3-to)
	}
}

// Who holds a lease since before a deployment made its rule a rate gives back no permit
// of others.
func TestRefundOfALeaseUnderARate(t *testing.T) {
	t.Parallel()
	for _, limit := range hourly {
		t.Run(limit.String(), func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			d := s.try(s.limiter("rule", throttle.Concurrent(2, time.Hour)), 1)
			l := s.limiter("rule", limit)
			s.at(time.Second)
			if got := s.job(l, "b", 2); !got.Granted {
				t.Fatalf("%v, want a grant", got)
			}
			want, wantNext := s.permits(l)
			s.refund(l, d)
			if got, next := s.permits(l); got != want || next != wantNext {
				t.Errorf("%d permits are available, the next at %v, want %d and %v as before", got, next, want, wantNext)
			}
		})
	}
}

// Whatever is given back, and when: the grants that were not keep the limit,
// in every kind.
func TestRefundsOfEachKind(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	rapid.Check(t, func(rt *rapid.T) {
		ctx := context.Background()
		redistest.Flush(t, s.raw)
		limit := drawLimit(rt, "limit", 2*time.Minute)
		if limit.Validate() != nil {
			rt.Skip("these numbers go together in no limit")
		}
		l := s.limiter("rule", limit)
		var kept []throttle.Decision
		now := int64(0)
		for range rapid.IntRange(4, 14).Draw(rt, "calls") {
			now += rapid.Int64Range(0, limit.Window().Microseconds()/2).Draw(rt, "later")
			s.at(time.Duration(now) * us)
			if len(kept) > 0 && rapid.IntRange(0, 2).Draw(rt, "refund") == 0 {
				i := rapid.IntRange(0, len(kept)-1).Draw(rt, "which")
				for range rapid.IntRange(1, 2).Draw(rt, "times") {
					if _, err := l.Policy().Refund(ctx, kept[i].Request); err != nil {
						rt.Fatal(err)
					}
				}
				kept = append(kept[:i:i], kept[i+1:]...)
				continue
			}
			d := s.try(l, rapid.IntRange(1, min(2*limit.Permits(), limit.MaxCost())).Draw(rt, "cost"))
			if !d.Granted {
				now = d.At.Sub(start).Microseconds()
				s.at(time.Duration(now) * us)
				if d = s.try(l, d.Cost); !d.Granted {
					rt.Fatalf("%v: refused at the instant it was told: %v", limit, d)
				}
			}
			kept = append(kept, d)
			var h history
			for _, k := range kept {
				h.new = append(h.new, judge.Spent{At: k.At.Sub(start).Microseconds(), Cost: k.Cost})
			}
			if breach := h.breach(limit); breach != "" {
				rt.Fatalf("%v: the grant of %d at %d: %s\nall %v", limit, d.Cost, now, breach, h.new)
			}
		}
	})
}

// A stepped bucket gives a grant back whose answer does not say what it is worth: the call
// was repeated when another had been granted, or only its token is known.
func TestSteppedBucketRefundsWithoutWorth(t *testing.T) {
	t.Parallel()
	for name, only := range map[string]bool{"a repeat": false, "a token": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			l := s.limiter("rule", throttle.SteppedBucket(5, 10*time.Second, 7))
			r := throttle.Request{Key: key, Cost: 4, Token: throttle.NewToken(), Job: "a"}
			if d, err := l.Policy().Redeem(t.Context(), r); err != nil || !d.Granted {
				t.Fatalf("%v, %v, want a grant", d, err)
			}
			s.at(time.Second)
			s.try(l, 1)
			back := r
			if !only {
				d, err := l.Policy().Redeem(t.Context(), r)
				if err != nil || !d.Granted {
					t.Fatalf("%v, %v, want the same grant", d, err)
				}
				back = d.Request
			}
			s.at(9 * time.Second)
			if _, err := l.Policy().Refund(t.Context(), back); err != nil {
				t.Fatal(err)
			}
			if state, err := l.Peek(t.Context(), key, 0); err != nil || state.Available != 6 {
				t.Errorf("Peek = %+v, %v, want 6 of 7: one is spent", state, err)
			}
		})
	}
}
