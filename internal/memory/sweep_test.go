package memory

import (
	"strconv"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/limitscripts"
)

// TestManyKeysOnce uses many keys once each: only those that may still matter
// are held, whatever came before.
func TestManyKeysOnce(t *testing.T) {
	t.Parallel()
	s := newScene()
	limit := slidingOf(1, time.Minute)
	most := 0
	for i := range 300_000 {
		s.now = s.now.Add(100 * ms) // 600 in a window
		s.token++
		k := limitscripts.NewLimitKeys("hw", "rule", strconv.Itoa(i))
		r := s.Acquire(limitscripts.AcquireArgs{Rules: []limitscripts.RuleCall{{LimitKeys: k, Numbers: limit, Cost: 1}}, Token: s.token, Mode: limitscripts.Try, MaxWait: -1})
		if r.Status != limitscripts.Granted {
			t.Fatalf("key %d: %+v", i, r)
		}
		most = max(most, s.Len())
	}
	if most > 2000 {
		t.Errorf("%d keys were held at once, want at most 2000 with 600 in a window", most)
	}
	s.now = s.now.Add(time.Hour)
	for range most {
		s.Peek(s.key, limitscripts.PeekArgs{Numbers: limit, Cost: 1})
	}
	if s.Len() != 0 || len(s.keys.byName) != 0 || cap(s.keys.all) > 2048 {
		t.Errorf("an hour later %d keys (%d by name, room for %d), want none", s.Len(), len(s.keys.byName), cap(s.keys.all))
	}
}

// TestPlacesExpire leaves a place of each sort, and the marks of a closing and of
// a gate: an hour after the last of them nothing is held.
func TestPlacesExpire(t *testing.T) {
	t.Parallel()
	s := newScene()
	rules := []limitscripts.RuleCall{ruleOf("phone", "x", slidingOf(1, ms)), ruleOf("provider", "all", slidingOf(1, time.Minute)), ruleOf("slots", "x", leasesOf(1, time.Minute))}
	ask := func(job string, g limitscripts.Gate) {
		s.token++
		s.Acquire(limitscripts.AcquireArgs{Rules: rules, Policy: "p", Token: s.token, Job: job, Mode: limitscripts.GrantOrBook, MaxWait: -1, Gate: g})
	}
	ask("a", limitscripts.Gate{})
	s.at(ms)
	ask("b", limitscripts.Gate{})
	ask("c", daily(s.now)) // booked until 9 o'clock, 1 h from now
	s.Close(limitscripts.CloseArgs{Rules: rules[:1], Rule: 1, For: 2 * time.Hour})
	phone := s.keys.byName[rules[0].Ledger()]
	if phone.policies["p"].len() != 1 || s.keys.byName[rules[1].Ledger()].opening.len() != 1 || s.Len() != 3 {
		t.Fatalf("%d keys, turns %v, want a turn and an opening", s.Len(), phone.policies["p"])
	}
	sweep := func() int {
		for range 4 {
			s.Peek(limitscripts.NewLimitKeys("hw", "rule", "other"), limitscripts.PeekArgs{Numbers: slidingOf(1, ms), Cost: 1})
		}
		return s.Len()
	}
	s.at(90 * time.Minute)
	if got := sweep(); got != 2 || phone.policies["p"] != nil {
		t.Errorf("%d keys after 90 min, want the closing and the opening alone", got)
	}
	s.at(2*time.Hour + 2*time.Second)
	if got := sweep(); got != 0 {
		t.Errorf("%d keys are left, want none", got)
	}
}

// TestPartsExpireAlone lets the ledger, the tokens and the line of a key end
// each in its own time.
func TestPartsExpireAlone(t *testing.T) {
	t.Parallel()
	s := newScene()
	limit := slidingOf(1, 2*time.Minute)
	granted := s.ask(limit, 1, "a")
	s.ask(limit, 1, "b") // booked at 2 min, parked for an hour from then
	look := limitscripts.PeekArgs{Numbers: limit, Cost: 1, Most: 10}
	if p := s.Peek(s.key, look); p.Life != 2*time.Minute+50*ms || p.Waiting != 1 {
		t.Fatalf("Peek = %+v, want a life of 2 min and 50 ms, one waiting", p)
	}
	s.at(time.Minute)
	if r := s.refund(limit, 1, 77, 0); r.Status != limitscripts.Refused {
		t.Fatalf("refund of nobody's token = %+v", r)
	}
	s.at(2*time.Minute + 2*ms)
	if p := s.Peek(s.key, look); p.Life != 48*ms || p.Next.IsZero() || p.Waiting != 1 {
		t.Fatalf("Peek behind the window = %+v, want a life of 48 ms, one waiting", p)
	}
	s.at(2*time.Minute + 51*ms)
	if p := s.Peek(s.key, look); p.Life != 0 || p.Next.IsZero() || p.Waiting != 1 {
		t.Fatalf("Peek behind the ledger's life = %+v, want no life, one waiting", p)
	}
	s.at(2*time.Minute + 251*ms)
	if p := s.Peek(s.key, look); p.Life != 0 || p.Next.IsZero() || p.Waiting != 0 {
		t.Fatalf("Peek behind the ledger's life = %+v, want no life, the one who waited late", p)
	}
	if k := s.keys.byName[s.key.Ledger()]; k.ledger.state != nil || k.tokens.len() != 0 || k.line.len() != 1 {
		t.Fatalf("left: %+v, want the line only", k)
	}
	s.at(62*time.Minute + 251*ms)
	s.Peek(s.key, look)
	if s.Len() != 0 {
		t.Fatalf("%d keys, want none", s.Len())
	}
	if r := s.Acquire(limitscripts.AcquireArgs{Rules: s.one(limit, 1), Token: 1, Mode: limitscripts.Try}); !r.At.After(granted.At) {
		t.Fatalf("the token of an hour ago = %+v, want a new grant", r)
	}
}
