package throttle_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/headwayq/headway/throttle"
)

// A grant takes from all rules; a refusal takes from none, and names the first
// that refuses and its instant.
func TestPolicyTakesFromAllOrNone(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	phone, tenant := s.limiter("phone", throttle.Sliding(1, time.Minute)), s.limiter("tenant", throttle.Sliding(2, time.Minute))
	provider := s.limiter("provider", throttle.Sliding(3, time.Minute))
	three, two := newPolicy(t, phone, tenant, provider), newPolicy(t, phone, provider)
	other := wish(3, "C", "")
	other.More[0].Key = "another tenant"
	for _, step := range []struct {
		at   time.Duration
		p    *throttle.Policy
		r    throttle.Request
		rule string // that refuses, until a minute
		left []int
	}{
		{0, three, wish(3, "A", ""), "", []int{0, 1, 2}},
		{10 * time.Second, three, wish(3, "A", ""), "phone", []int{0, 1, 2}},
		{10 * time.Second, two, wish(2, "A", ""), "phone", []int{0, 2}},
		{15 * time.Second, three, wish(3, "B", ""), "", []int{0, 0, 1}},
		{20 * time.Second, three, wish(3, "C", ""), "tenant", []int{1, 0, 1}},
		{25 * time.Second, three, other, "", []int{0, 1, 0}},
		{30 * time.Second, two, wish(2, "D", ""), "provider", []int{1, 0}},
		{time.Minute, two, wish(2, "D", ""), "", []int{0, 0}},
	} {
		s.at(step.at)
		before := s.ledgers(step.p, step.r)
		d, err := step.p.TryAcquire(t.Context(), step.r)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(d.Left, step.left) {
			t.Errorf("%v at %v: left = %v, want %v", d, step.at, d.Left, step.left)
		}
		s.available(step.p, step.r, step.left...)
		if step.rule == "" {
			s.want(d, true, step.at)
			continue
		}
		s.by(d, step.rule, time.Minute)
		if diff := cmp.Diff(before, s.ledgers(step.p, step.r)); diff != "" {
			t.Errorf("a refusal by %q changed what is known (-before +after):\n%s", step.rule, diff)
		}
		e, ok := errors.AsType[*throttle.ThrottledError](d.Err())
		if !ok || e.Rule != step.rule || e.RetryAfter != time.Minute-step.at {
			t.Errorf("Err() = %v, want one of rule %q for %v", d.Err(), step.rule, time.Minute-step.at)
		}
	}
}

// Rules on one key count as one: the latest of their instants, and one line.
func TestPolicyOfRulesOnOneKey(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	minute, hour := s.limiter("minute", throttle.Sliding(1, time.Minute)), s.limiter("hour", throttle.Sliding(2, time.Hour))
	p := newPolicy(t, minute, hour, s.limiter("provider", throttle.Sliding(9, time.Hour)))
	ask := func(job string) throttle.Decision {
		return s.redeem(p, throttle.Request{Key: key, Cost: 1, Job: job, More: []throttle.KeyCost{{Key: key, Cost: 1}, {Key: "provider", Cost: 1}}})
	}
	s.want(ask("a"), true, 0)
	s.by(ask("b"), "minute", time.Minute)
	s.at(time.Minute)
	s.want(ask("b"), true, time.Minute)
	s.by(ask("c"), "hour", time.Hour)
	s.by(ask("d"), "hour", time.Hour+time.Minute) // an hour after b, and a minute after c
	s.by(ask("c"), "hour", time.Hour)
	s.at(time.Hour)
	s.want(ask("c"), true, time.Hour)
	s.by(ask("d"), "minute", time.Hour+time.Minute)
	s.at(time.Hour + time.Minute)
	s.want(ask("d"), true, time.Hour+time.Minute)
	s.nobodyWaits()
}

// Who waits for its phone holds no place at the provider.
func TestPolicyWaitsInTheNarrowLine(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := s.pair(throttle.Sliding(2, time.Minute))
	s.want(s.redeem(p, wish(2, "A", "first")), true, 0)
	s.by(s.redeem(p, wish(2, "A", "waits")), "phone", time.Minute)
	s.by(s.redeem(p, wish(2, "A", "behind")), "phone", 2*time.Minute)
	states := s.ledgers(p, wish(2, "A", ""))
	if states[0].Waiting != 2 || states[1].Waiting != 0 || states[1].Available != 1 {
		t.Errorf("the phone and the provider are %+v, want 2 and nobody waiting, 1 left of the provider", states)
	}
	s.want(s.redeem(p, wish(2, "B", "other phone")), true, 0)
	s.by(s.redeem(p, wish(2, "C", "third phone")), "provider", time.Minute)
	s.at(time.Minute)
	s.want(s.redeem(p, wish(2, "C", "third phone")), true, time.Minute)
	s.want(s.redeem(p, wish(2, "A", "waits")), true, time.Minute)
	s.by(s.redeem(p, wish(2, "A", "behind")), "phone", 2*time.Minute)
}

// Of two jobs of a policy on one phone the second comes behind the first, also
// when it is the provider that holds the first up; a job of another policy does
// not wait for that.
func TestPolicyKeepsTurns(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := s.pair(throttle.Sliding(1, time.Minute))
	s.want(s.redeem(p, wish(2, "B", "spends the provider")), true, 0)
	s.at(10 * time.Second)
	s.by(s.redeem(p, wish(2, key, "held up")), "provider", time.Minute)
	s.by(s.redeem(p, wish(2, key, "behind")), "phone", 2*time.Minute)
	s.at(time.Minute)
	s.by(s.redeem(p, wish(2, key, "behind")), "phone", 2*time.Minute)
	d := s.redeem(p, wish(2, key, "held up"))
	s.want(d, true, time.Minute)
	if d.Promised.Sub(start) != time.Minute {
		t.Errorf("promised = %v, want a minute", d.Promised.Sub(start))
	}
	s.at(2 * time.Minute)
	s.want(s.redeem(p, wish(2, key, "behind")), true, 2*time.Minute)
	s.nobodyWaits()

	// another policy: the same phone, and no provider
	phone := p.Rules()[0]
	s.by(s.redeem(p, wish(2, "C", "held up")), "provider", 3*time.Minute)
	if d, err := phone.TryAcquire(t.Context(), "C", 1); err != nil || !d.Granted {
		t.Errorf("TryAcquire of another policy = %v, %v, want a grant", d, err)
	}
	s.at(3 * time.Minute) // now the phone's own limit is in the way, a minute from 2m
	s.want(s.redeem(p, wish(2, "C", "held up")), true, 3*time.Minute)
	s.by(s.redeem(p, wish(2, "C", "late")), "phone", 4*time.Minute)
}

// What another policy took meanwhile counts: then the phone refuses who was
// waiting for the provider, and it keeps its turn.
func TestPolicyWaitsWhereItIsRefusedNow(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := s.pair(throttle.Sliding(1, time.Minute))
	s.want(s.redeem(p, wish(2, "B", "spends the provider")), true, 0)
	s.by(s.redeem(p, wish(2, key, "a")), "provider", time.Minute)
	s.by(s.redeem(p, wish(2, "C", "c")), "provider", 2*time.Minute)
	s.at(30 * time.Second)
	s.want(s.try(p.Rules()[0], 1), true, 30*time.Second)
	s.at(time.Minute)
	s.by(s.redeem(p, wish(2, key, "a")), "phone", 90*time.Second)
	s.want(s.redeem(p, wish(2, "C", "c")), true, time.Minute) // a holds it up no longer
	s.at(90 * time.Second)
	s.by(s.redeem(p, wish(2, "D", "d")), "provider", 2*time.Minute)
	s.by(s.redeem(p, wish(2, key, "a")), "provider", 2*time.Minute) // before d: its turn at the provider was kept
	s.at(2 * time.Minute)
	s.want(s.redeem(p, wish(2, key, "a")), true, 2*time.Minute)
	s.by(s.redeem(p, wish(2, "D", "d")), "provider", 3*time.Minute)
}

// A place in several lines is asked about, and left, by the ids alone.
func TestPolicyPlace(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := s.pair(throttle.Sliding(1, time.Minute))
	place := func(phone, job string) throttle.BookingRef {
		return throttle.BookingRef{Policy: p, IDs: []string{p.Rules()[0].ID(phone), p.Rules()[1].ID("provider")}, Costs: []int{1, 1}, Job: job}
	}
	s.want(s.redeem(p, wish(2, key, "a")), true, 0)
	s.by(s.redeem(p, wish(2, key, "b")), "phone", time.Minute)
	s.by(s.redeem(p, wish(2, "C", "c")), "provider", time.Minute)
	s.by(s.redeem(p, wish(2, "D", "d")), "provider", 2*time.Minute)
	got := throttle.Refresh(t.Context(), s.rdb, []throttle.BookingRef{place(key, "b"), place("C", "c"), place("D", "d"), place("D", "nobody")})
	for i, want := range []throttle.RefreshedBooking{
		{Known: true, Rule: "phone", At: start.Add(time.Minute)},
		{Known: true, Rule: "provider", At: start.Add(time.Minute)},
		{Known: true, Rule: "provider", At: start.Add(2 * time.Minute), Before: 1},
		{},
	} {
		g := got[i]
		if g.Err != nil || g.Known != want.Known || g.Rule != want.Rule || g.Before != want.Before || want.Known && !g.At.Equal(want.At) {
			t.Errorf("Check %d = %+v, want %+v", i, g, want)
		}
	}
	turns, err := place("C", "c").Leave(t.Context())
	if turn := soleTurn(t, turns); err != nil || turn.Job != "d" || turn.Wait != time.Minute {
		t.Errorf("Leave = %+v, %v, want d to come in a minute", turns, err)
	}
	for _, pl := range []throttle.BookingRef{place(key, "b"), place("D", "d")} {
		if _, err := pl.Leave(t.Context()); err != nil {
			t.Error(err)
		}
	}
	s.nobodyWaits()
}

// NewPolicy names all that is wrong, and asking with other keys than rules is
// refused.
func TestPolicyFaults(t *testing.T) {
	t.Parallel()
	s, other := newScene(t), newScene(t)
	sliding, lease := throttle.Sliding(1, time.Minute), throttle.Concurrent(1, time.Second)
	phone := s.limiter("phone", sliding)
	_, err := throttle.NewPolicy(phone, s.limiter("slots", lease), other.limiter("far", sliding), phone,
		newLimiter(t, s.rdb, "prefixed", sliding, throttle.Config{Prefix: "x"}))
	for _, want := range []string{
		`rules "phone" and "far" have another client`, `rule "phone" comes twice`, `rule "far" comes behind "slots"`,
		`rules "phone" and "prefixed" have another client or configuration`, `rule "prefixed" comes behind "slots"`,
	} {
		if !errors.Is(err, throttle.ErrInvalidConfig) || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("NewPolicy = %v, want %q in it", err, want)
		}
	}
	many := make([]*throttle.Limiter, throttle.RulesMax+1)
	for i := range many {
		many[i] = s.limiter(fmt.Sprint("r", i), sliding)
	}
	for _, rules := range [][]*throttle.Limiter{nil, many} {
		if _, err := throttle.NewPolicy(rules...); !errors.Is(err, throttle.ErrInvalidConfig) {
			t.Errorf("NewPolicy of %d rules = %v, want %v", len(rules), err, throttle.ErrInvalidConfig)
		}
	}
	if p := newPolicy(t, many[:throttle.RulesMax]...); len(p.Rules()) != throttle.RulesMax {
		t.Errorf("a policy of %d rules, want %d", len(p.Rules()), throttle.RulesMax)
	}

	p := s.pair(sliding)
	if p.String() != "phone+provider" {
		t.Errorf("String() = %q, want the names of the rules", p)
	}
	two := wish(2, key, "a")
	two.More[0] = throttle.KeyCost{Key: "", Cost: 1}
	free := wish(2, key, "a")
	free.More[0].Cost = 0
	for _, tt := range []struct {
		r    throttle.Request
		want error
	}{
		{wish(3, key, "a"), throttle.ErrInvalidConfig}, {throttle.Request{Key: key, Cost: 1, Job: "a"}, throttle.ErrInvalidConfig},
		{two, throttle.ErrInvalidKey}, {free, throttle.ErrInvalidCost},
	} {
		if _, err := p.Redeem(t.Context(), tt.r); !errors.Is(err, tt.want) || strings.Contains(err.Error(), key) {
			t.Errorf("Redeem with %d more keys = %v, want %v", len(tt.r.More), err, tt.want)
		}
	}
	large := wish(2, key, "a")
	large.More[0].Cost = 2
	_, err = p.Redeem(t.Context(), large)
	if e, ok := errors.AsType[*throttle.ExceedsLimitError](err); !ok || e.Rule != "provider" {
		t.Errorf("Redeem of 2 = %v, want it to exceed the provider's limit", err)
	}
	if keys := allKeys(t, s.raw); len(keys) != 0 {
		t.Errorf("keys = %q, want none", keys)
	}
}
