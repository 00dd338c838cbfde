package memory

import (
	"fmt"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/limitscripts"
)

// TestClosed closes a provider while jobs wait for it: nobody goes before it
// opens, who found it closed goes first, and then the others in their order.
func TestClosed(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	provider := ruleOf("provider", "all", slidingOf(1, time.Second))
	for i := range 10 {
		c.add(fmt.Sprint(i), "p", ruleOf("phone", fmt.Sprint(i), slidingOf(1, time.Minute)), provider)
	}
	first := c.runners[0]
	c.come(first)
	for _, r := range c.runners[1:] {
		c.come(r)
	}
	back := limitscripts.CancelArgs{Rules: first.rules, Policy: "p", Token: first.token}
	if r := c.Cancel(back); r.Status != limitscripts.Granted {
		t.Fatalf("refund = %+v", r)
	}
	until := start.Add(10 * time.Minute)
	closing := limitscripts.CloseArgs{Rules: first.rules, Rule: len(first.rules), Policy: "p", Job: first.job, For: 10 * time.Minute}
	if r := c.Close(closing); r.Status != limitscripts.Granted || !r.Until.Equal(until) || r.Promoted != nil {
		t.Fatalf("Close = %+v, want it closed until %v", r, until)
	}
	closing.For = time.Minute
	if r := c.Close(closing); !r.Until.Equal(until) {
		t.Fatalf("Close = %+v, want it closed as long as it was", r)
	}
	first.status, first.told, c.grants = limitscripts.Booked, until, nil
	p := c.Peek(provider.LimitKeys, limitscripts.PeekArgs{Numbers: provider.Numbers, Cost: 1, Most: 1})
	if p.Free != 0 || !p.Closed.Equal(until) || p.Listed[0].Job != "0" || !p.Listed[0].At.Equal(until) || p.Next.Before(until) {
		t.Fatalf("Peek = %+v, want it closed with the first at its end", p)
	}
	c.run()
	c.holdAll()
	for i, r := range c.grants {
		if r != c.runners[i] || !r.at.Equal(until.Add(time.Duration(i)*time.Second)) {
			t.Errorf("grant %d is of %s at %v", i, r.job, r.at.Sub(start))
		}
	}
	if got := c.admissions(); got > 3.05 {
		t.Errorf("%.2f admissions a job, want at most 3.05", got)
	}
}

// TestOpenedEarly: the next in line hears of it.
func TestOpenedEarly(t *testing.T) {
	t.Parallel()
	s := newScene()
	limit := slidingOf(1, time.Second)
	s.Close(limitscripts.CloseArgs{Rules: s.one(limit, 1), Rule: 1, For: time.Hour})
	if r := s.ask(limit, 1, ""); r.Status != limitscripts.Refused || r.Rule != 1 || !r.At.Equal(start.Add(time.Hour)) || !r.From.Equal(r.At) {
		t.Fatalf("closed, and %+v", r)
	}
	s.ask(limit, 1, "a")
	s.at(time.Minute)
	if r := s.Close(limitscripts.CloseArgs{Rules: s.one(limit, 1), Rule: 1}); !r.Until.IsZero() || !next(r.Promoted, "a", s.now) {
		t.Fatalf("opened = %+v, want a to come now", r)
	}
	if r := s.ask(limit, 1, "a"); r.Status != limitscripts.Granted {
		t.Fatalf("a = %+v, want it granted", r)
	}
}

// TestRuleClosed: a closing that the caller names counts for all keys of the
// rule, and is nothing when it is over.
func TestRuleClosed(t *testing.T) {
	t.Parallel()
	s := newScene()
	rules := []limitscripts.RuleCall{ruleOf("phone", "x", slidingOf(1, time.Second)), ruleOf("provider", "all", leasesOf(1, time.Minute))}
	for i := range rules {
		rules[i].Closed = start.Add(time.Hour)
		a := limitscripts.AcquireArgs{Rules: rules, Policy: "p", Token: 1, Job: "a", Mode: limitscripts.GrantOrBook, MaxWait: -1}
		if r := s.Acquire(a); r.Status != limitscripts.Booked || r.Rule != i+1 || !r.At.Equal(start.Add(time.Hour)) {
			t.Errorf("rule %d closed: %+v", i+1, r)
		}
		rules[i].Closed = start
	}
	if r := s.Acquire(limitscripts.AcquireArgs{Rules: rules, Policy: "p", Token: 1, Job: "a", Mode: limitscripts.GrantOrBook, MaxWait: -1}); r.Status != limitscripts.Granted {
		t.Errorf("closed until now: %+v, want it granted", r)
	}
}
