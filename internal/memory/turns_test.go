package memory

import (
	"fmt"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
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
			rules := func(phone string) []luascripts.RuleCall {
				return []luascripts.RuleCall{
					ruleOf("phone", phone, slidingOf(1, 100*ms)), ruleOf("provider", "all", slidingOf(1, time.Second)),
					ruleOf("slots", "slots", luascripts.Numbers{Kind: luascripts.Leases, Permits: 1, Window: time.Minute}),
				}
			}
			ask := func(job string, at time.Duration, status luascripts.Status, rule int, goes time.Duration) luascripts.AcquireReply {
				t.Helper()
				s.at(at)
				s.token++
				r := s.Acquire(luascripts.AcquireArgs{Rules: rules(job), Policy: "sms", Token: s.token, Job: job, Mode: luascripts.GrantOrBook, MaxWait: -1})
				if r.Status != status || r.Rule != rule || !r.At.Equal(start.Add(goes)) {
					t.Fatalf("%s: got %+v, want status %d by rule %d at %v", job, r, status, rule, goes)
				}
				return r
			}
			ask("a", 0, luascripts.Granted, 0, 0)
			holder := s.token
			ask("y", 1500*ms, luascripts.Booked, 3, time.Minute)
			ask("z", 1600*ms, luascripts.Booked, 2, 61*time.Second)
			s.at(2 * time.Second)
			s.Release(rules("a")[2], holder)
			s.Close(luascripts.CloseArgs{Rules: rules("y"), Rule: 1, Job: "y", For: 10 * time.Second})

			var promoted []luascripts.Promotion
			if refreshed {
				promoted = s.Refresh(luascripts.RefreshArgs{Rules: rules("y"), Policy: "sms", Job: "y"}).Promoted
			} else {
				promoted = ask("y", 2*time.Second, luascripts.Booked, 1, 12*time.Second).Promoted
			}
			if len(promoted) != 1 || promoted[0].Job != "z" || !promoted[0].At.Equal(s.now) {
				t.Errorf("promoted %+v, want z at once", promoted)
			}
			ask("z", 2*time.Second, luascripts.Granted, 0, 2*time.Second)
		})
	}
}

// TestNextTurnIsToldWhenAJobIsGrantedInTime: y waits for its tenant for a minute, and keeps its turn at the provider. z and v, of another
// tenant, are told to come after it. y gives up, and z is told to come. Somebody else has the provider's permit by then, so z is told the
// next instant, and comes then. Now v must hear that it need not wait for a minute.
func TestNextTurnIsToldWhenAJobIsGrantedInTime(t *testing.T) {
	t.Parallel()
	s := newScene()
	rules := func(tenant string) []luascripts.RuleCall {
		return []luascripts.RuleCall{
			ruleOf("provider", "all", slidingOf(1, time.Second)), ruleOf("tenant", tenant, slidingOf(2, time.Minute)),
		}
	}
	ask := func(job, tenant string, at time.Duration, mode luascripts.Mode, status luascripts.Status, goes time.Duration) luascripts.AcquireReply {
		t.Helper()
		s.at(at)
		s.token++
		r := s.Acquire(luascripts.AcquireArgs{Rules: rules(tenant), Policy: "sms", Token: s.token, Job: job, Mode: mode, MaxWait: -1})
		if r.Status != status || !r.At.Equal(start.Add(goes)) {
			t.Fatalf("%s: got %+v, want status %d at %v", job, r, status, goes)
		}
		return r
	}
	ask("a", "t1", 0, luascripts.GrantOrBook, luascripts.Granted, 0)
	ask("b", "t1", time.Second, luascripts.GrantOrBook, luascripts.Granted, time.Second)
	ask("y", "t1", 2500*ms, luascripts.GrantOrBook, luascripts.Booked, time.Minute)
	ask("z", "t2", 2600*ms, luascripts.GrantOrBook, luascripts.Booked, 61*time.Second)
	ask("v", "t2", 2600*ms, luascripts.GrantOrBook, luascripts.Booked, 62*time.Second)
	s.at(3 * time.Second)
	told := s.Cancel(luascripts.CancelArgs{Rules: rules("t1"), Policy: "sms", Job: "y"}).Promoted
	if len(told) != 1 || told[0].Job != "z" || !told[0].At.Equal(s.now) {
		t.Fatalf("promoted %+v, want z at once", told)
	}
	s.token++
	other := []luascripts.RuleCall{rules("t2")[0]}
	if r := s.Acquire(luascripts.AcquireArgs{Rules: other, Policy: "provider", Token: s.token, Mode: luascripts.Try}); r.Status != luascripts.Granted {
		t.Fatalf("another caller: %+v, want it granted", r)
	}
	ask("z", "t2", 3*time.Second, luascripts.GrantOrBook, luascripts.Booked, 4*time.Second)
	granted := ask("z", "t2", 4*time.Second, luascripts.GrantOrBook, luascripts.Granted, 4*time.Second)
	if p := granted.Promoted; len(p) != 1 || p[0].Job != "v" || !p[0].At.Equal(start.Add(5*time.Second)) {
		t.Errorf("promoted %+v, want v at 5 s", p)
	}
	ask("v", "t2", 5*time.Second, luascripts.GrantOrBook, luascripts.Granted, 5*time.Second)
}

// TestTurnIsKept follows three jobs of a policy past a phone of 1/60s and a
// provider of 1/5min, and one of another policy,
// for which they do not exist.
func TestTurnIsKept(t *testing.T) {
	t.Parallel()
	s := newScene()
	rules := []luascripts.RuleCall{ruleOf("phone", "x", slidingOf(1, time.Minute)), ruleOf("provider", "all", slidingOf(1, 5*time.Minute))}
	ask := func(job, policy string, rules ...luascripts.RuleCall) luascripts.AcquireReply {
		s.token++
		return s.Acquire(luascripts.AcquireArgs{Rules: rules, Policy: policy, Token: s.token, Job: job, Mode: luascripts.GrantOrBook, MaxWait: -1})
	}
	want := func(r luascripts.AcquireReply, status luascripts.Status, rule int, at time.Duration) {
		t.Helper()
		if r.Status != status || r.Rule != rule || !r.At.Equal(start.Add(at)) {
			t.Fatalf("got %+v, want status %d by rule %d at %v", r, status, rule, at)
		}
	}
	want(ask("a", "both", rules...), luascripts.Granted, 0, 0)
	want(ask("b", "both", rules...), luascripts.Booked, 1, time.Minute)
	s.at(time.Minute)
	want(ask("b", "both", rules...), luascripts.Booked, 2, 5*time.Minute)
	if k := s.keys.byName[rules[0].Ledger()]; k.line.len() != 0 || k.policies["both"].len() != 1 {
		t.Fatalf("b stands in the phone's line: %v, turns %v", k.line.order, k.policies["both"])
	}
	want(ask("c", "both", rules...), luascripts.Booked, 1, 6*time.Minute) // behind b, which goes at 5 min
	if k := s.keys.byName[rules[0].Ledger()]; k.line.len() != 0 || k.policies["both"].len() != 2 {
		t.Fatalf("c stands in the phone's line: %v, turns %v", k.line.order, k.policies["both"])
	}
	want(ask("d", "alone", rules[0]), luascripts.Granted, 0, time.Minute) // c only follows b: the phone is free
	s.at(5 * time.Minute)
	if r := s.Refresh(luascripts.RefreshArgs{Rules: rules, Policy: "both", Job: "b"}); r.Status != luascripts.Booked || !r.At.Equal(s.now) || r.Before != 0 {
		t.Fatalf("b is at %+v, want it now", r)
	}
	want(ask("b", "both", rules...), luascripts.Granted, 0, 5*time.Minute)
	s.at(6 * time.Minute)
	want(ask("c", "both", rules...), luascripts.Booked, 2, 10*time.Minute)
	s.at(10*time.Minute + 101*ms) // c is late at the provider, and its turn at the phone too
	want(ask("e", "both", rules...), luascripts.Granted, 0, 10*time.Minute+101*ms)
	s.at(16 * time.Minute)
	want(ask("c", "both", rules...), luascripts.Granted, 0, 16*time.Minute)
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
	rules := []luascripts.RuleCall{ruleOf("phone", "x", slidingOf(1, time.Minute)), ruleOf("provider", "all", slidingOf(1, time.Second))}
	ask := func(job string) luascripts.AcquireReply {
		s.token++
		return s.Acquire(luascripts.AcquireArgs{Rules: rules, Policy: "p", Token: s.token, Job: job, Mode: luascripts.GrantOrBook, MaxWait: -1})
	}
	ask("a")
	ask("b")
	back := luascripts.CancelArgs{Rules: rules, Policy: "p", Token: 1, Job: "a", Back: true}
	if r := s.Cancel(back); r.Status != luascripts.Granted {
		t.Fatalf("a's grant back: %+v", r)
	}
	if r := s.Cancel(back); r.Status != luascripts.Refused {
		t.Fatalf("the same again: %+v", r)
	}
	if r := ask("b"); r.Status != luascripts.Booked || r.Rule != 1 || !r.At.Equal(start.Add(time.Minute)) {
		t.Fatalf("b = %+v, want it behind a", r)
	}
	if r := ask("a"); r.Status != luascripts.Granted || !r.Promised.Equal(start) {
		t.Fatalf("a = %+v, want it granted", r)
	}
}
