package memory

import (
	"fmt"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/limitscripts"
)

func leasesOf(n int, w time.Duration) limitscripts.Numbers {
	return limitscripts.Numbers{Kind: limitscripts.Leases, Permits: n, Window: w}
}

// TestLeases follows `concurrent 2 lease 30s`: the number of the type's comment,
// a release that wakes the next, a renewal, and a lease that ends.
func TestLeases(t *testing.T) {
	t.Parallel()
	s := newScene()
	rule := s.one(leasesOf(2, 30*time.Second), 1)[0]
	ask := func(job string) limitscripts.AcquireReply { return s.ask(rule.Numbers, 1, job) }
	a := ask("a")
	s.at(10 * time.Second)
	b := ask("b")
	if a.Status != limitscripts.Granted || b.Status != limitscripts.Granted || a.Fence <= 0 || b.Fence <= a.Fence {
		t.Fatalf("a = %+v, b = %+v, want both granted, and a fence that grows", a, b)
	}
	if c := ask("c"); c.Status != limitscripts.Booked || !c.At.Equal(start.Add(30*time.Second)) {
		t.Fatalf("c = %+v, want it at 30 s", c)
	}
	if d := ask("d"); d.Status != limitscripts.Booked || !d.At.Equal(start.Add(40*time.Second)) {
		t.Fatalf("d = %+v, want it at 40 s", d)
	}
	s.at(20 * time.Second)
	if r := s.Renew(rule, 2); !r.Held {
		t.Fatalf("b's renewal = %+v", r)
	}
	if r := s.Refresh(limitscripts.RefreshArgs{Rules: []limitscripts.RuleCall{rule}, Job: "d"}); !r.At.Equal(start.Add(50 * time.Second)) {
		t.Fatalf("d = %+v, want it when b's lease ends, at 50 s", r)
	}
	r := s.Release(rule, 1)
	if !r.Released || !next(r.Promoted, "c", s.now) {
		t.Fatalf("release = %+v, want c to come now", r)
	}
	if again := s.Release(rule, 1); again.Released {
		t.Fatalf("released twice: %+v", again)
	}
	if e := ask("e"); e.Status != limitscripts.Booked {
		t.Fatalf("e = %+v, want it behind c and d", e)
	}
	if c := ask("c"); c.Status != limitscripts.Granted || c.Promoted != nil {
		t.Fatalf("c = %+v, want it granted, and nobody else hinted", c)
	}
	s.at(50 * time.Second)
	if d := ask("d"); d.Status != limitscripts.Granted {
		t.Fatalf("d = %+v, want it granted for the leases that ended", d)
	}
	if r := s.Renew(rule, 2); r.Held {
		t.Fatalf("b's lease ended, but %+v", r)
	}
	if p := s.Peek(s.key, limitscripts.PeekArgs{Numbers: rule.Numbers, Cost: 1}); p.Free != 0 || p.Waiting != 1 {
		t.Fatalf("Peek = %+v, want e waiting", p)
	}
}

// TestLeaseGrantedAheadStays: who was granted what comes back in a moment keeps
// it, though its holder wakes up and renews.
func TestLeaseGrantedAheadStays(t *testing.T) {
	t.Parallel()
	s := newScene()
	rule := s.one(leasesOf(1, time.Second), 1)[0]
	s.ask(rule.Numbers, 1, "a")
	s.at(970 * ms)
	s.token++
	r := s.Acquire(limitscripts.AcquireArgs{Rules: []limitscripts.RuleCall{rule}, Token: s.token, Job: "b", Mode: limitscripts.GrantOrBook, Inline: 50 * ms, MaxWait: -1})
	if r.Status != limitscripts.Granted || !r.At.Equal(start.Add(time.Second)) {
		t.Fatalf("b = %+v, want it granted at 1 s", r)
	}
	if r := s.Renew(rule, 1); r.Held {
		t.Fatal("a renews a lease that went to b")
	}
	if r := s.Renew(rule, 2); !r.Held {
		t.Fatal("b can't renew its own")
	}
}

// TestRenewTakesNothingAway: on a clock that went backwards a renewal leaves the
// lease the end that its holder was told.
func TestRenewTakesNothingAway(t *testing.T) {
	t.Parallel()
	s := newScene()
	s.Keep(time.Hour)
	rule := s.one(leasesOf(1, time.Second), 1)[0]
	s.ask(rule.Numbers, 1, "a")
	s.at(-500 * ms)
	if r := s.Renew(rule, 1); !r.Held {
		t.Fatalf("renewal = %+v", r)
	}
	s.at(999 * ms)
	if r := s.ask(rule.Numbers, 1, ""); r.Status != limitscripts.Refused || !r.At.Equal(start.Add(time.Second)) {
		t.Fatalf("b = %+v, want it to wait for the end that a was told first", r)
	}
}

// TestWithdrawnLeaseRefusesOn: the release of a lease that was withdrawn leaves
// its token refusing: a late copy of the call gets no lease.
func TestWithdrawnLeaseRefusesOn(t *testing.T) {
	t.Parallel()
	s := newScene()
	rule := s.one(leasesOf(1, time.Minute), 1)[0]
	s.ask(rule.Numbers, 1, "a")
	if r := s.Cancel(limitscripts.CancelArgs{Rules: []limitscripts.RuleCall{rule}, Token: 1}); r.Status != limitscripts.Granted {
		t.Fatalf("a's lease back: %+v", r)
	}
	if r := s.Release(rule, 1); r.Released {
		t.Fatalf("release of what was given back = %+v", r)
	}
	s.token = 0
	if r := s.ask(rule.Numbers, 1, "a"); r.Status != limitscripts.Withdrawn {
		t.Fatalf("a late copy of the call = %+v, want it refused", r)
	}
}

// TestLeaseOffered: the next in line has a second to take what came back, then
// the one behind it goes.
func TestLeaseOffered(t *testing.T) {
	t.Parallel()
	s := newScene()
	rule := s.one(leasesOf(1, time.Minute), 1)[0]
	for _, job := range []string{"a", "b", "c"} {
		s.ask(rule.Numbers, 1, job)
	}
	s.at(time.Second)
	if r := s.Release(rule, 1); !next(r.Promoted[:1], "b", s.now) || !next(r.Promoted[1:], "c", s.now.Add(time.Minute)) {
		t.Fatalf("release = %+v, want b, and c when its lease ends", r)
	}
	s.at(1500 * ms)
	if r := s.Release(rule, 1); r.Released || !next(r.Promoted, "b", s.now) {
		t.Fatalf("released again = %+v, want b told again", r)
	}
	s.at(2 * time.Second)
	if r := s.ask(rule.Numbers, 1, ""); r.Status != limitscripts.Refused {
		t.Fatalf("a newcomer took what is offered to b: %+v", r)
	}
	s.at(2*time.Second + ms) // b did not come, and its offer was not renewed
	if r := s.ask(rule.Numbers, 1, "c"); r.Status != limitscripts.Granted {
		t.Fatalf("c = %+v, want it granted", r)
	}
}

// TestCrowdWithLeases runs jobs of a few phones, two at once in each pool: all of
// it is used, in order, and a process that dies holds up the others for as long
// as its lease.
func TestCrowdWithLeases(t *testing.T) {
	t.Parallel()
	for _, dies := range []bool{false, true} {
		c := newCrowd(t)
		c.hold = 2 * time.Second
		slots := ruleOf("slots", "pool", leasesOf(2, 20*time.Second))
		for i := range 40 {
			r := c.add(fmt.Sprint(i), "p", ruleOf("phone", fmt.Sprint(i%20), slidingOf(1, 5*time.Second)), slots)
			r.dies = dies && i == 3
		}
		c.run()
		c.holdAll()
		c.inOrder()
		want := 38 * time.Second
		if dies {
			want = 48 * time.Second
		}
		if took := c.grants[39].at.Sub(start); took > want+50*ms {
			t.Errorf("it took %v, want %v", took, want)
		}
		if got := c.admissions(); got > 3.05 {
			t.Errorf("%.2f admissions a job, want at most 3.05", got)
		}
		fence := int64(0)
		for i, r := range c.grants {
			if i >= 2 {
				n := 0
				for _, before := range c.grants[:i] {
					if end := before.at.Add(c.hold); end.After(r.at) && !before.dies || before.dies && before.at.Add(20*time.Second).After(r.at) {
						n++
					}
				}
				if n > 1 {
					t.Fatalf("%d others held a lease at %v", n, r.at)
				}
			}
			if r.fence <= fence {
				t.Fatalf("fence %d after %d", r.fence, fence)
			}
			fence = r.fence
		}
	}
}
