package memory

import (
	"fmt"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/limitscripts"
)

// TestOtherPolicyIsNotHeldUp lets jobs that wait for a slow provider share their
// phone with jobs that need it alone, one after the other. The first takes both at
// once, so those alone go at each minute that follows, as if the others were not
// there, and those at the pace of the provider.
func TestOtherPolicyIsNotHeldUp(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	phone := ruleOf("phone", "x", slidingOf(1, time.Minute))
	provider := ruleOf("provider", "all", slidingOf(1, 10*time.Minute))
	want := map[*runner]time.Duration{}
	for i := range 5 {
		want[c.add(fmt.Sprint("both ", i), "both", phone, provider)] = time.Duration(i) * 10 * time.Minute
		want[c.add(fmt.Sprint("alone ", i), "alone", phone)] = time.Duration(i+1) * time.Minute
	}
	c.run()
	c.holdAll()
	c.inOrder()
	for _, r := range c.runners {
		if d := r.at.Sub(start); d < want[r] || d > want[r]+c.inline {
			t.Errorf("%s went at %v, want %v", r.job, d, want[r])
		}
		if most := 1 + len(r.rules); r.came > most {
			t.Errorf("%s came %d times, want at most %d", r.job, r.came, most)
		}
	}
}

// TestNextTurnIsToldWhenAJobStepsAside: y waits for a slot until its lease ends in a minute, and keeps its turn at the provider. z is
// told to come after it. Then the slot is given back, but now y's phone is closed. So y steps aside at the provider, and z, which nothing
// holds up any more, must hear of that: nobody else is there to tell it.
func TestNextTurnIsToldWhenAJobStepsAside(t *testing.T) {
	t.Parallel()
	for name, refreshed := range map[string]bool{"it asks": false, "a pool looks": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene()
			rules := func(phone string) []limitscripts.RuleCall {
				return []limitscripts.RuleCall{
					ruleOf("phone", phone, slidingOf(1, 100*ms)), ruleOf("provider", "all", slidingOf(1, time.Second)),
					ruleOf("slots", "slots", limitscripts.Numbers{Kind: limitscripts.Leases, Permits: 1, Window: time.Minute}),
				}
			}
			ask := func(job string, at time.Duration, status limitscripts.Status, rule int, goes time.Duration) limitscripts.AcquireReply {
				t.Helper()
				s.at(at)
				s.token++
				r := s.Acquire(limitscripts.AcquireArgs{Rules: rules(job), Policy: "sms", Token: s.token, Job: job, Mode: limitscripts.GrantOrBook, MaxWait: -1})
				if r.Status != status || r.Rule != rule || !r.At.Equal(start.Add(goes)) {
					t.Fatalf("%s: got %+v, want status %d by rule %d at %v", job, r, status, rule, goes)
				}
				return r
			}
			ask("a", 0, limitscripts.Granted, 0, 0)
			holder := s.token
			ask("y", 1500*ms, limitscripts.Booked, 3, time.Minute)
			ask("z", 1600*ms, limitscripts.Booked, 2, 61*time.Second)
			s.at(2 * time.Second)
			s.Release(rules("a")[2], holder)
			s.Close(limitscripts.CloseArgs{Rules: rules("y"), Rule: 1, Job: "y", For: 10 * time.Second})

			var promoted []limitscripts.Promotion
			if refreshed {
				promoted = s.Refresh(limitscripts.RefreshArgs{Rules: rules("y"), Policy: "sms", Job: "y"}).Promoted
			} else {
				promoted = ask("y", 2*time.Second, limitscripts.Booked, 1, 12*time.Second).Promoted
			}
			if len(promoted) != 1 || promoted[0].Job != "z" || !promoted[0].At.Equal(s.now) {
				t.Errorf("promoted %+v, want z at once", promoted)
			}
			ask("z", 2*time.Second, limitscripts.Granted, 0, 2*time.Second)
		})
	}
}

// TestNextTurnIsToldWhenAJobIsGrantedInTime: y waits for its tenant for a minute, and keeps its turn at the provider. z and v, of another
// tenant, are told to come after it. y gives up, and z is told to come. Somebody else has the provider's permit by then, so z is told the
// next instant, and comes then. Now v must hear that it need not wait for a minute.
func TestNextTurnIsToldWhenAJobIsGrantedInTime(t *testing.T) {
	t.Parallel()
	s := newScene()
	rules := func(tenant string) []limitscripts.RuleCall {
		return []limitscripts.RuleCall{
			ruleOf("provider", "all", slidingOf(1, time.Second)), ruleOf("tenant", tenant, slidingOf(2, time.Minute)),
		}
	}
	ask := func(job, tenant string, at time.Duration, mode limitscripts.Mode, status limitscripts.Status, goes time.Duration) limitscripts.AcquireReply {
		t.Helper()
		s.at(at)
		s.token++
		r := s.Acquire(limitscripts.AcquireArgs{Rules: rules(tenant), Policy: "sms", Token: s.token, Job: job, Mode: mode, MaxWait: -1})
		if r.Status != status || !r.At.Equal(start.Add(goes)) {
			t.Fatalf("%s: got %+v, want status %d at %v", job, r, status, goes)
		}
		return r
	}
	ask("a", "t1", 0, limitscripts.GrantOrBook, limitscripts.Granted, 0)
	ask("b", "t1", time.Second, limitscripts.GrantOrBook, limitscripts.Granted, time.Second)
	ask("y", "t1", 2500*ms, limitscripts.GrantOrBook, limitscripts.Booked, time.Minute)
	ask("z", "t2", 2600*ms, limitscripts.GrantOrBook, limitscripts.Booked, 61*time.Second)
	ask("v", "t2", 2600*ms, limitscripts.GrantOrBook, limitscripts.Booked, 62*time.Second)
	s.at(3 * time.Second)
	told := s.Cancel(limitscripts.CancelArgs{Rules: rules("t1"), Policy: "sms", Job: "y"}).Promoted
	if len(told) != 1 || told[0].Job != "z" || !told[0].At.Equal(s.now) {
		t.Fatalf("promoted %+v, want z at once", told)
	}
	s.token++
	other := []limitscripts.RuleCall{rules("t2")[0]}
	if r := s.Acquire(limitscripts.AcquireArgs{Rules: other, Policy: "provider", Token: s.token, Mode: limitscripts.Try}); r.Status != limitscripts.Granted {
		t.Fatalf("another caller: %+v, want it granted", r)
	}
	ask("z", "t2", 3*time.Second, limitscripts.GrantOrBook, limitscripts.Booked, 4*time.Second)
	granted := ask("z", "t2", 4*time.Second, limitscripts.GrantOrBook, limitscripts.Granted, 4*time.Second)
	if p := granted.Promoted; len(p) != 1 || p[0].Job != "v" || !p[0].At.Equal(start.Add(5*time.Second)) {
		t.Errorf("promoted %+v, want v at 5 s", p)
	}
	ask("v", "t2", 5*time.Second, limitscripts.GrantOrBook, limitscripts.Granted, 5*time.Second)
}

// TestTurnIsKept follows three jobs of a policy past a phone of 1/60s and a
// provider of 1/5min, and one of another policy,
// for which they do not exist.
func TestTurnIsKept(t *testing.T) {
	t.Parallel()
	s := newScene()
	rules := []limitscripts.RuleCall{ruleOf("phone", "x", slidingOf(1, time.Minute)), ruleOf("provider", "all", slidingOf(1, 5*time.Minute))}
	ask := func(job, policy string, rules ...limitscripts.RuleCall) limitscripts.AcquireReply {
		s.token++
		return s.Acquire(limitscripts.AcquireArgs{Rules: rules, Policy: policy, Token: s.token, Job: job, Mode: limitscripts.GrantOrBook, MaxWait: -1})
	}
	want := func(r limitscripts.AcquireReply, status limitscripts.Status, rule int, at time.Duration) {
		t.Helper()
		if r.Status != status || r.Rule != rule || !r.At.Equal(start.Add(at)) {
			t.Fatalf("got %+v, want status %d by rule %d at %v", r, status, rule, at)
		}
	}
	want(ask("a", "both", rules...), limitscripts.Granted, 0, 0)
	want(ask("b", "both", rules...), limitscripts.Booked, 1, time.Minute)
	s.at(time.Minute)
	want(ask("b", "both", rules...), limitscripts.Booked, 2, 5*time.Minute)
	if k := s.keys.byName[rules[0].Ledger()]; k.line.len() != 0 || k.policies["both"].len() != 1 {
		t.Fatalf("b stands in the phone's line: %v, turns %v", k.line.order, k.policies["both"])
	}
	want(ask("c", "both", rules...), limitscripts.Booked, 1, 6*time.Minute) // behind b, which goes at 5 min
	if k := s.keys.byName[rules[0].Ledger()]; k.line.len() != 0 || k.policies["both"].len() != 2 {
		t.Fatalf("c stands in the phone's line: %v, turns %v", k.line.order, k.policies["both"])
	}
	want(ask("d", "alone", rules[0]), limitscripts.Granted, 0, time.Minute) // c only follows b: the phone is free
	s.at(5 * time.Minute)
	if r := s.Refresh(limitscripts.RefreshArgs{Rules: rules, Policy: "both", Job: "b"}); r.Status != limitscripts.Booked || !r.At.Equal(s.now) || r.Before != 0 {
		t.Fatalf("b is at %+v, want it now", r)
	}
	want(ask("b", "both", rules...), limitscripts.Granted, 0, 5*time.Minute)
	s.at(6 * time.Minute)
	want(ask("c", "both", rules...), limitscripts.Booked, 2, 10*time.Minute)
	s.at(10*time.Minute + 101*ms) // c is late at the provider, and its turn at the phone too
	want(ask("e", "both", rules...), limitscripts.Granted, 0, 10*time.Minute+101*ms)
	s.at(16 * time.Minute)
	want(ask("c", "both", rules...), limitscripts.Granted, 0, 16*time.Minute)
	for _, p := range rules {
		if k := s.keys.byName[p.Ledger()]; k != nil && k.policies["both"] != nil {
			t.Errorf("turns are left: %v", k.policies["both"])
		}
	}
}

// TestRefundTakesTheFirstPlace gives a grant on two rules back: the job waits at
// the first, and finds its turn at the second.
func TestRefundTakesTheFirstPlace(t *testing.T) {
	t.Parallel()
	s := newScene()
	rules := []limitscripts.RuleCall{ruleOf("phone", "x", slidingOf(1, time.Minute)), ruleOf("provider", "all", slidingOf(1, time.Second))}
	ask := func(job string) limitscripts.AcquireReply {
		s.token++
		return s.Acquire(limitscripts.AcquireArgs{Rules: rules, Policy: "p", Token: s.token, Job: job, Mode: limitscripts.GrantOrBook, MaxWait: -1})
	}
	ask("a")
	ask("b")
	back := limitscripts.CancelArgs{Rules: rules, Policy: "p", Token: 1, Job: "a", Back: true}
	if r := s.Cancel(back); r.Status != limitscripts.Granted {
		t.Fatalf("a's grant back: %+v", r)
	}
	if r := s.Cancel(back); r.Status != limitscripts.Refused {
		t.Fatalf("the same again: %+v", r)
	}
	if r := ask("b"); r.Status != limitscripts.Booked || r.Rule != 1 || !r.At.Equal(start.Add(time.Minute)) {
		t.Fatalf("b = %+v, want it behind a", r)
	}
	if r := ask("a"); r.Status != limitscripts.Granted || !r.Promised.Equal(start) {
		t.Fatalf("a = %+v, want it granted", r)
	}
}
