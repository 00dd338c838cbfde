package throttle_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
)

// wider are the keys behind that of the phone, in the order of the rules.
var wider = []string{"tenant", "provider"}

// wish is what a job asks of a policy of n rules on behalf of a phone.
func wish(n int, phone, job string) throttle.Request {
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
	for _, k := range allKeys(s, s.raw) {
		if strings.HasSuffix(k, ":line") || strings.Contains(k, ":turns:") {
			s.Errorf("%q is left, want no line when nobody waits", k)
		}
	}
}
