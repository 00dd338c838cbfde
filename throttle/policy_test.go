package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// wider are the keys behind that of the phone, in the order of the rules.
var wider = []string{"tenant", "provider"}

// jobRequest is what a job asks of a policy of n rules on behalf of a phone.
func jobRequest(n int, phone, job string) throttle.Request {
	r := throttle.Request{Key: phone, Cost: 1, Job: job}
	for _, k := range wider[len(wider)-n+1:] {
		r.More = append(r.More, throttle.KeyCost{Key: k, Cost: 1})
	}
	return r
}

func newPolicy(tb testing.TB, rules ...*throttle.Limiter) *throttle.Policy {
	tb.Helper()
	p, err := throttle.NewPolicy(rules...)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// pair is a policy of a phone, one in a minute, and a provider.
func (s *scene) pair(provider throttle.Limit) *throttle.Policy {
	s.Helper()
	return newPolicy(s, s.limiter("phone", throttle.Sliding(1, time.Minute)), s.limiter("provider", provider))
}

// redeem asks a policy, each time as a new attempt.
func (s *scene) redeem(p *throttle.Policy, r throttle.Request) throttle.Decision {
	s.Helper()
	d, err := p.Redeem(s.Context(), r)
	if err != nil {
		s.Fatalf("Redeem(%q): %v", r.Job, err)
	}
	return d
}

// by checks which rule decided a booking or a refusal, and for when.
func (s *scene) by(d throttle.Decision, rule string, at time.Duration) {
	s.Helper()
	s.want(d, false, at)
	if d.Rule != rule {
		s.Errorf("%v: refused by %q, want %q", d, d.Rule, rule)
	}
}

// ledgers are what each rule knows of its key in a request.
func (s *scene) ledgers(p *throttle.Policy, r throttle.Request) []throttle.State {
	s.Helper()
	var all []throttle.State
	for i, l := range p.Rules() {
		k := r.Key
		if i > 0 {
			k = r.More[i-1].Key
		}
		state, err := l.Peek(s.Context(), k, throttle.PeekMax)
		if err != nil {
			s.Fatal(err)
		}
		state.Expires = 0 // by the server's clock
		all = append(all, state)
	}
	return all
}

// available checks how many permits each rule has left.
func (s *scene) available(p *throttle.Policy, r throttle.Request, want ...int) {
	s.Helper()
	var got []int
	for _, state := range s.ledgers(p, r) {
		got = append(got, state.Available)
	}
	if !slices.Equal(got, want) {
		s.Errorf("at %v there are %v permits of %v, want %v", s.now.Sub(start), got, p, want)
	}
}

// nobodyWaits checks that no line and no turn is left.
func (s *scene) nobodyWaits() {
	s.Helper()
	for _, k := range linesLeft(s.T, s.raw) {
		s.Errorf("%q is left, want no line when nobody waits", k)
	}
}

// linesLeft are the lines and turns with more in them than tickets of jobs that were granted in one hash slot of a Cluster. Those are gone
// within seconds, see limitscripts.TestTicketForALaterHashSlotIsForgotten.
func linesLeft(t *testing.T, raw redis.UniversalClient) []string {
	t.Helper()
	return slices.DeleteFunc(redistest.Keys(t, raw, "hw:*"), func(k string) bool {
		if !strings.HasSuffix(k, ":line") {
			return !strings.Contains(k, ":turns:")
		}
		return !slices.ContainsFunc(raw.ZRange(t.Context(), k, 0, -1).Val(), func(m string) bool { return m != "granted" && !strings.HasPrefix(m, "~") })
	})
}

// A grant takes from all rules; a refusal takes from none, and names the first
// that refuses and its instant.
func TestPolicyTakesFromAllOrNone(t *testing.T) {
	t.Parallel()
	s := newSceneOnOne(t, "a refusal on a Cluster does not say what is left in other hash slots")
	phone, tenant := s.limiter("phone", throttle.Sliding(1, time.Minute)), s.limiter("tenant", throttle.Sliding(2, time.Minute))
	provider := s.limiter("provider", throttle.Sliding(3, time.Minute))
	three, two := newPolicy(t, phone, tenant, provider), newPolicy(t, phone, provider)
	other := jobRequest(3, "C", "")
	other.More[0].Key = "another tenant"
	for _, step := range []struct {
		at   time.Duration
		p    *throttle.Policy
		r    throttle.Request
		rule string // that refuses, until a minute
		left []int
	}{
		{0, three, jobRequest(3, "A", ""), "", []int{0, 1, 2}},
		{10 * time.Second, three, jobRequest(3, "A", ""), "phone", []int{0, 1, 2}},
		{10 * time.Second, two, jobRequest(2, "A", ""), "phone", []int{0, 2}},
		{15 * time.Second, three, jobRequest(3, "B", ""), "", []int{0, 0, 1}},
		{20 * time.Second, three, jobRequest(3, "C", ""), "tenant", []int{1, 0, 1}},
		{25 * time.Second, three, other, "", []int{0, 1, 0}},
		{30 * time.Second, two, jobRequest(2, "D", ""), "provider", []int{1, 0}},
		{time.Minute, two, jobRequest(2, "D", ""), "", []int{0, 0}},
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
	s.want(s.redeem(p, jobRequest(2, "A", "first")), true, 0)
	s.by(s.redeem(p, jobRequest(2, "A", "waits")), "phone", time.Minute)
	s.by(s.redeem(p, jobRequest(2, "A", "behind")), "phone", 2*time.Minute)
	states := s.ledgers(p, jobRequest(2, "A", ""))
	if states[0].Waiting != 2 || states[1].Waiting != 0 || states[1].Available != 1 {
		t.Errorf("the phone and the provider are %+v, want 2 and nobody waiting, 1 left of the provider", states)
	}
	s.want(s.redeem(p, jobRequest(2, "B", "other phone")), true, 0)
	s.by(s.redeem(p, jobRequest(2, "C", "third phone")), "provider", time.Minute)
	s.at(time.Minute)
	s.want(s.redeem(p, jobRequest(2, "C", "third phone")), true, time.Minute)
	s.want(s.redeem(p, jobRequest(2, "A", "waits")), true, time.Minute)
	s.by(s.redeem(p, jobRequest(2, "A", "behind")), "phone", 2*time.Minute)
}

// Of two jobs of a policy on one phone the second comes behind the first, also
// when it is the provider that holds the first up; a job of another policy does
// not wait for that.
func TestPolicyKeepsTurns(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := s.pair(throttle.Sliding(1, time.Minute))
	s.want(s.redeem(p, jobRequest(2, "B", "spends the provider")), true, 0)
	s.at(10 * time.Second)
	s.by(s.redeem(p, jobRequest(2, key, "held up")), "provider", time.Minute)
	s.by(s.redeem(p, jobRequest(2, key, "behind")), "phone", 2*time.Minute)
	s.at(time.Minute)
	s.by(s.redeem(p, jobRequest(2, key, "behind")), "phone", 2*time.Minute)
	d := s.redeem(p, jobRequest(2, key, "held up"))
	s.want(d, true, time.Minute)
	if d.Promised.Sub(start) != time.Minute {
		t.Errorf("promised = %v, want a minute", d.Promised.Sub(start))
	}
	s.at(2 * time.Minute)
	s.want(s.redeem(p, jobRequest(2, key, "behind")), true, 2*time.Minute)
	s.nobodyWaits()

	// another policy: the same phone, and no provider
	phone := p.Rules()[0]
	s.by(s.redeem(p, jobRequest(2, "C", "held up")), "provider", 3*time.Minute)
	if d, err := phone.TryAcquire(t.Context(), "C", 1); err != nil || !d.Granted {
		t.Errorf("TryAcquire of another policy = %v, %v, want a grant", d, err)
	}
	s.at(3 * time.Minute) // now the phone's own limit is in the way, a minute from 2m
	s.want(s.redeem(p, jobRequest(2, "C", "held up")), true, 3*time.Minute)
	s.by(s.redeem(p, jobRequest(2, "C", "late")), "phone", 4*time.Minute)
}

// Jobs of other policies do not see the turns of a policy. A job of that policy counts both, each by its
// own cost: those who came to the line meanwhile, and the turns before it.
func TestPolicyCountsLineAndTurnsByTheirCosts(t *testing.T) {
	t.Parallel()
	type ask func(job string, cost int) throttle.Decision
	for name, tt := range map[string]struct {
		phone, provider throttle.Limit
		run             func(s *scene, p *throttle.Policy, ask ask)
	}{
		"a turn of two, and one in the line": {throttle.Sliding(3, time.Minute), throttle.Sliding(1, time.Minute), func(s *scene, p *throttle.Policy, ask ask) {
			s.by(ask("turn", 2), "provider", time.Minute)
			s.at(2 * time.Second)
			s.want(s.try(p.Rules()[0], 3), true, 2*time.Second)
			s.by(s.redeem(p.Rules()[0].Policy(), throttle.Request{Key: key, Cost: 1, Job: "other"}), "phone", 62*time.Second)
			s.by(ask("last", 1), "phone", 122*time.Second) // at 62 s the two before it take all three
		}},
		"turns of one and three, and nobody in the line any more": {throttle.Sliding(4, time.Minute), throttle.Sliding(1, time.Minute), func(s *scene, p *throttle.Policy, ask ask) {
			s.by(ask("first turn", 1), "provider", time.Minute)
			s.by(ask("second turn", 3), "provider", 2*time.Minute)
			s.at(2 * time.Second)
			s.want(s.try(p.Rules()[0], 4), true, 2*time.Second)
			alone := throttle.Request{Key: key, Cost: 1, Job: "other"}
			s.by(s.redeem(p.Rules()[0].Policy(), alone), "phone", 62*time.Second)
			if _, err := p.Rules()[0].Policy().Cancel(t.Context(), alone); err != nil {
				t.Fatal(err)
			}
			s.by(ask("last", 1), "phone", 122*time.Second) // at 62 s the turns take all four
		}},
		"a turn of three that came behind three of another policy": {throttle.Sliding(4, time.Minute), throttle.Sliding(1, 10*time.Minute), func(s *scene, p *throttle.Policy, ask ask) {
			s.by(ask("first turn", 1), "provider", 10*time.Minute)
			s.at(2 * time.Second)
			s.want(s.try(p.Rules()[0], 4), true, 2*time.Second)
			alone := throttle.Request{Key: key, Cost: 3, Job: "other"}
			s.by(s.redeem(p.Rules()[0].Policy(), alone), "phone", 62*time.Second)
			s.by(ask("second turn", 3), "phone", 11*time.Minute) // the first goes at 10 minutes, and the other with it
			if _, err := p.Rules()[0].Policy().Cancel(t.Context(), alone); err != nil {
				t.Fatal(err)
			}
			s.at(62 * time.Second)
			s.by(ask("second turn", 3), "provider", 20*time.Minute)
			s.by(ask("last", 1), "phone", 20*time.Minute) // behind the second, which goes then
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			p := newPolicy(t, s.limiter("phone", tt.phone), s.limiter("provider", tt.provider))
			s.want(s.redeem(p, jobRequest(2, "B", "spends the provider")), true, 0)
			tt.run(s, p, func(job string, cost int) throttle.Decision {
				r := jobRequest(2, key, job)
				r.Cost = cost
				return s.redeem(p, r)
			})
		})
	}
}

// Jobs of mixed costs that come due at one instant, in any order, keep their turns: more than 32 of them are
// counted by tickets, of which those in the line and those of the turns lie between each other.
func TestPolicyOfMixedCostsKeepsItsOrder(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	phone := s.limiter("phone", throttle.Sliding(100, time.Minute))
	p := newPolicy(t, phone, s.limiter("provider", throttle.Sliding(1000, time.Minute)))
	job := func(i int) throttle.Request {
		r := jobRequest(2, key, fmt.Sprint("job ", i))
		if i == 0 {
			r.Cost = 2
		}
		return r
	}
	s.want(s.try(phone, 100), true, 0)
	for i := range 90 {
		s.by(s.redeem(p, job(i)), "phone", time.Minute)
	}
	s.at(59 * time.Second)
	spend := jobRequest(2, "B", "spends the provider")
	spend.More[0].Cost = 1000
	s.want(s.redeem(p, spend), true, 59*time.Second)
	s.at(time.Minute)
	for _, first := range []int{0, 1} { // those with even numbers come first
		for i := first; i < 90; i += 2 {
			s.by(s.redeem(p, job(i)), "provider", 119*time.Second)
		}
	}
	s.by(s.redeem(p, jobRequest(2, key, "newcomer")), "provider", 119*time.Second)
}

// What another policy took meanwhile counts: then the phone refuses who was
// waiting for the provider, and it keeps its turn.
func TestPolicyWaitsWhereItIsRefusedNow(t *testing.T) {
	t.Parallel()
	s := newSceneOnOne(t, "on a Cluster a job that its phone refuses keeps its place at the provider until it is late there")
	p := s.pair(throttle.Sliding(1, time.Minute))
	s.want(s.redeem(p, jobRequest(2, "B", "spends the provider")), true, 0)
	s.by(s.redeem(p, jobRequest(2, key, "a")), "provider", time.Minute)
	s.by(s.redeem(p, jobRequest(2, "C", "c")), "provider", 2*time.Minute)
	s.at(30 * time.Second)
	s.want(s.try(p.Rules()[0], 1), true, 30*time.Second)
	s.at(time.Minute)
	s.by(s.redeem(p, jobRequest(2, key, "a")), "phone", 90*time.Second)
	s.want(s.redeem(p, jobRequest(2, "C", "c")), true, time.Minute) // a holds it up no longer
	s.at(90 * time.Second)
	s.by(s.redeem(p, jobRequest(2, "D", "d")), "provider", 2*time.Minute)
	s.by(s.redeem(p, jobRequest(2, key, "a")), "provider", 2*time.Minute) // before d: its turn at the provider was kept
	s.at(2 * time.Minute)
	s.want(s.redeem(p, jobRequest(2, key, "a")), true, 2*time.Minute)
	s.by(s.redeem(p, jobRequest(2, "D", "d")), "provider", 3*time.Minute)
}

// A place in several lines is asked about, and left, by the ids alone.
func TestPolicyBooking(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := s.pair(throttle.Sliding(1, time.Minute))
	place := func(phone, job string) throttle.BookingRef {
		return throttle.BookingRef{Policy: p, IDs: []string{p.Rules()[0].ID(phone), p.Rules()[1].ID("provider")}, Costs: []int{1, 1}, Job: job}
	}
	s.want(s.redeem(p, jobRequest(2, key, "a")), true, 0)
	s.by(s.redeem(p, jobRequest(2, key, "b")), "phone", time.Minute)
	s.by(s.redeem(p, jobRequest(2, "C", "c")), "provider", time.Minute)
	s.by(s.redeem(p, jobRequest(2, "D", "d")), "provider", 2*time.Minute)
	got := throttle.ForWorkers.Refresh(t.Context(), s.rdb, []throttle.BookingRef{place(key, "b"), place("C", "c"), place("D", "d"), place("D", "nobody")})
	for i, want := range []throttle.BookingStatus{
		{Known: true, Rule: "phone", At: start.Add(time.Minute)},
		{Known: true, Rule: "provider", At: start.Add(time.Minute)},
		{Known: true, Rule: "provider", At: start.Add(2 * time.Minute), Permits: 1},
		{},
	} {
		g := got[i]
		if g.Err != nil || g.Known != want.Known || g.Rule != want.Rule || g.Permits != want.Permits || want.Known && !g.At.Equal(want.At) {
			t.Errorf("Refresh %d = %+v, want %+v", i, g, want)
		}
	}
	turns, err := throttle.ForWorkers.CancelBooking(t.Context(), place("C", "c"))
	if turn := soleTurn(t, turns); err != nil || turn.Job != "d" || turn.Wait != time.Minute {
		t.Errorf("Leave = %+v, %v, want d to come in a minute", turns, err)
	}
	for _, pl := range []throttle.BookingRef{place(key, "b"), place("D", "d")} {
		if _, err := throttle.ForWorkers.CancelBooking(t.Context(), pl); err != nil {
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
	two := jobRequest(2, key, "a")
	two.More[0] = throttle.KeyCost{Key: "", Cost: 1}
	free := jobRequest(2, key, "a")
	free.More[0].Cost = 0
	for _, tt := range []struct {
		r    throttle.Request
		want error
	}{
		{jobRequest(3, key, "a"), throttle.ErrInvalidConfig}, {throttle.Request{Key: key, Cost: 1, Job: "a"}, throttle.ErrInvalidConfig},
		{two, throttle.ErrInvalidKey}, {free, throttle.ErrInvalidCost},
	} {
		if _, err := p.Redeem(t.Context(), tt.r); !errors.Is(err, tt.want) || strings.Contains(err.Error(), key) {
			t.Errorf("Redeem with %d more keys = %v, want %v", len(tt.r.More), err, tt.want)
		}
	}
	large := jobRequest(2, key, "a")
	large.More[0].Cost = 2
	_, err = p.Redeem(t.Context(), large)
	if e, ok := errors.AsType[*throttle.ExceedsLimitError](err); !ok || e.Rule != "provider" {
		t.Errorf("Redeem of 2 = %v, want it to exceed the provider's limit", err)
	}
	if keys := redistest.Keys(t, s.raw, "hw:*"); len(keys) != 0 {
		t.Errorf("keys = %q, want none", keys)
	}
}

// Who would come too late leaves all lines, wherever it waits.
func TestPolicyTooLateLeavesAllLines(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := s.pair(throttle.Sliding(1, time.Minute))
	s.want(s.redeem(p, jobRequest(2, key, "a")), true, 0)
	for phone, rule := range map[string]string{key: "phone", "B": "provider"} {
		r := jobRequest(2, phone, "b")
		s.by(s.redeem(p, r), rule, time.Minute)
		r.MaxWait = 59 * time.Second
		_, err := p.Redeem(t.Context(), r)
		e, ok := errors.AsType[*throttle.TooLateError](err)
		if !ok || e.Rule != rule || e.Wait != time.Minute {
			t.Errorf("Redeem = %v, want too late by rule %q for a minute", err, rule)
		}
		s.nobodyWaits()
	}
	s.available(p, jobRequest(2, "B", ""), 1, 0)
}

func TestPolicyGivesBack(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := s.pair(throttle.Sliding(1, time.Minute))
	r := jobRequest(2, key, "a")
	d := s.redeem(p, r)
	s.want(d, true, 0)
	s.by(s.redeem(p, jobRequest(2, "B", "b")), "provider", time.Minute)
	turns, err := p.Refund(t.Context(), d.Request)
	if turn := soleTurn(t, turns); err != nil || turn.Job != "b" || turn.Wait != 0 {
		t.Errorf("Refund = %+v, %v, want b to come now", turns, err)
	}
	if turns, err := p.Refund(t.Context(), d.Request); err != nil || len(turns) > 1 {
		t.Errorf("Refund again = %+v, %v, want nothing new", turns, err)
	}
	if _, err := p.Redeem(t.Context(), d.Request); !errors.Is(err, throttle.ErrWithdrawn) {
		t.Errorf("Redeem with the old token = %v, want %v", err, throttle.ErrWithdrawn)
	}
	s.want(s.redeem(p, jobRequest(2, "B", "b")), true, 0)
	s.available(p, r, 1, 0)

	// Cancel: the job behind comes for it
	s.by(s.redeem(p, jobRequest(2, "B", "c")), "phone", time.Minute)
	s.by(s.redeem(p, jobRequest(2, "B", "d")), "phone", 2*time.Minute)
	turns, err = p.Cancel(t.Context(), jobRequest(2, "B", "c"))
	if turn := soleTurn(t, turns); err != nil || turn.Job != "d" || turn.Wait != time.Minute {
		t.Errorf("Cancel = %+v, %v, want d to come in a minute", turns, err)
	}
	if _, err := p.Cancel(t.Context(), jobRequest(2, "B", "d")); err != nil {
		t.Error(err)
	}
	s.nobodyWaits()
}

// A grant that is returned gives the job the first place at its phone, and
// nothing at the provider is held up by it.
func TestPolicyReturn(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := s.pair(throttle.Sliding(1, time.Minute))
	d := s.redeem(p, jobRequest(2, key, "a"))
	s.by(s.redeem(p, jobRequest(2, key, "b")), "phone", time.Minute)
	if _, err := throttle.ForWorkers.Return(t.Context(), p, d.Request); err != nil {
		t.Fatal(err)
	}
	if got := s.ledgers(p, d.Request); got[0].Waiting != 2 || got[0].Booked[0].Job != "a" || got[1].Waiting != 0 || got[1].Available != 1 {
		t.Errorf("after Return: %+v, want a first of 2 at the phone, the provider free", got)
	}
	if _, err := throttle.ForWorkers.Return(t.Context(), p, d.Request); err != nil {
		t.Fatal(err)
	}
	s.by(s.redeem(p, jobRequest(2, key, "b")), "phone", time.Minute)
	s.want(s.redeem(p, jobRequest(2, key, "a")), true, 0)
	s.at(time.Minute)
	s.want(s.redeem(p, jobRequest(2, key, "b")), true, time.Minute)
	s.nobodyWaits()
}

// The same token gets the same grant, and is charged once by each rule.
func TestPolicyChargesATokenOnce(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := newPolicy(t, s.limiter("phone", throttle.Sliding(3, time.Minute)), s.limiter("provider", throttle.Sliding(9, time.Minute)))
	r := jobRequest(2, key, "a")
	r.Token = throttle.NewToken()
	s.want(s.redeem(p, r), true, 0)
	s.want(s.redeem(p, jobRequest(2, key, "b")), true, 0)
	s.at(time.Second)
	again := s.redeem(p, r)
	s.want(again, true, 0)
	s.available(p, r, 1, 7)
	if _, err := p.Refund(t.Context(), again.Request); err != nil {
		t.Fatal(err)
	}
	s.available(p, r, 2, 8)
}

// policies runs f in a bubble; each call of policy is another process, with the
// phone one in 3 s and the provider one a second.
func policies(t *testing.T, f func(t *testing.T, policy func() *throttle.Policy, rdb *redis.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		rdb, m := redistest.Mini(t)
		f(t, func() *throttle.Policy {
			client := miniClient(t, m)
			return newPolicy(t, newLimiter(t, client, "phone", throttle.Sliding(1, 3*time.Second), throttle.Config{}),
				newLimiter(t, client, "provider", throttle.Sliding(1, time.Second), throttle.Config{}))
		}, rdb)
	})
}

// Whoever blocks goes as soon as both rules admit it, in whatever process.
func TestPolicyAcquireBlocks(t *testing.T) {
	t.Parallel()
	policies(t, func(t *testing.T, policy func() *throttle.Policy, _ *redis.Client) {
		processes := []*throttle.Policy{policy(), policy()}
		begin := time.Now()
		var wg sync.WaitGroup
		for i, call := range []struct {
			phone string
			at    time.Duration
		}{{"A", 0}, {"A", 3 * time.Second}, {"B", time.Second}, {"B", 4 * time.Second}, {"C", 2 * time.Second}} {
			wg.Go(func() {
				d, err := processes[i%2].Acquire(t.Context(), jobRequest(2, call.phone, ""))
				if took := time.Since(begin); err != nil || !d.Granted || took < call.at || took > call.at+ms {
					t.Errorf("Acquire of %s = %v, %v after %v, want a grant after %v", call.phone, d, err, took, call.at)
				}
			})
			synctest.Wait() // it waits in its line
		}
		wg.Wait()
	})
}

// Who gives up, or has not the time, leaves no place in any line.
func TestPolicyAcquireGivesUp(t *testing.T) {
	t.Parallel()
	policies(t, func(t *testing.T, policy func() *throttle.Policy, rdb *redis.Client) {
		p := policy()
		if d, err := p.Acquire(t.Context(), jobRequest(2, "A", "")); err != nil || !d.Granted {
			t.Fatalf("Acquire = %v, %v", d, err)
		}
		for _, phone := range []string{"A", "B"} {
			cause := errors.New("shut down")
			ctx, cancel := context.WithCancelCause(t.Context())
			result := make(chan error)
			go func() {
				_, err := p.Acquire(ctx, jobRequest(2, phone, ""))
				result <- err
			}()
			synctest.Wait()
			cancel(cause)
			if err := <-result; !errors.Is(err, cause) {
				t.Errorf("Acquire of %s = %v, want its context's cause", phone, err)
			}
			r := jobRequest(2, phone, "")
			r.MaxWait = 500 * ms
			if _, err := p.Acquire(t.Context(), r); !errors.Is(err, throttle.ErrTooLate) {
				t.Errorf("Acquire of %s = %v, want %v", phone, err, throttle.ErrTooLate)
			}
			for _, l := range p.Rules() {
				for _, k := range []string{phone, "provider"} {
					if n := rdb.Exists(t.Context(), l.Ledger(k)+":line").Val(); n != 0 {
						t.Errorf("%d keys of the line of %s are left, want none", n, l.Rule())
					}
				}
			}
		}
	})
}
