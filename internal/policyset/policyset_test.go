package policyset

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/headwayq/headway/throttle"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// client returns one that never connects: a set does not talk to Redis.
func client(t *testing.T) redis.UniversalClient {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func rule(name string) Rule { return Rule{Name: name, Limit: throttle.Sliding(1, time.Minute)} }

func compile(t *testing.T, s *Set, rules ...Rule) *throttle.Policy {
	t.Helper()
	p, err := s.Compile(rules)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Two policies that share a rule share its limiter, and two with equal rules are one.
// Gates have no limiter.
func TestRulesOfOneNameShareALimiter(t *testing.T) {
	t.Parallel()
	s := New(client(t), throttle.Config{})
	code := compile(t, s, rule("phone"), Rule{Name: "day"}, rule("all"))
	ad := compile(t, s, rule("phone"), rule("tenant"), rule("all"))
	if code.String() != "phone+all" || ad.String() != "phone+tenant+all" {
		t.Fatalf("policies of %v and %v, want the limits in their order", code, ad)
	}
	if code.Rules()[0] != ad.Rules()[0] || code.Rules()[1] != ad.Rules()[2] || s.Limiter("phone") != ad.Rules()[0] {
		t.Error("rules of one name have several limiters")
	}
	if compile(t, s, rule("phone"), rule("all")) != code {
		t.Error("equal lists of rules have several policies")
	}
	if one := compile(t, s, rule("all")); one != s.Limiter("all").Policy() {
		t.Error("the policy of one rule is not that of its limiter")
	}
	if s.Limiter("day") != nil || len(s.Limiters()) != 3 {
		t.Errorf("%d limiters, want 3 and none of a gate", len(s.Limiters()))
	}
}

// What New and NewPolicy of throttle refuse is refused.
func TestBadRulesAreRefused(t *testing.T) {
	t.Parallel()
	slots := Rule{Name: "slots", Limit: throttle.Concurrent(2, time.Minute)}
	for _, rules := range [][]Rule{nil, {{Name: "gate"}}, {rule("a"), rule("a")}, {rule("a b")}, {slots, rule("a")}} {
		if _, err := New(client(t), throttle.Config{}).Compile(rules); !errors.Is(err, throttle.ErrInvalidConfig) {
			t.Errorf("Compile(%v): %v, want a refusal", rules, err)
		}
	}
}

// A booking is looked up by the names of its rules, in whatever policy they stood.
func TestLookup(t *testing.T) {
	t.Parallel()
	s := New(client(t), throttle.Config{})
	both := compile(t, s, rule("phone"), rule("all"))
	if s.Lookup("phone+all") != both || s.Lookup("phone") != s.Limiter("phone").Policy() {
		t.Error("a compiled policy is not found by its names")
	}
	other := s.Lookup("all+phone")
	if other == nil || other.String() != "all+phone" || s.Lookup("all+phone") != other {
		t.Errorf("rules of another order are %v, want one policy of them", other)
	}
	for _, names := range []string{"", "tenant", "phone+tenant", "phone+phone", "+"} {
		if p := s.Lookup(names); p != nil {
			t.Errorf("Lookup(%q) = %v, want nothing", names, p)
		}
	}
}

// Rules of handlers are learned up to a bound, and replace none that is known.
func TestLearn(t *testing.T) {
	t.Parallel()
	rdb := client(t)
	s := New(rdb, throttle.Config{})
	compile(t, s, rule("phone"))
	known := s.Limiter("phone")
	learn := func(name string) *throttle.Limiter {
		l, err := throttle.New(rdb, name, throttle.Sliding(2, time.Hour), throttle.Config{})
		if err != nil {
			t.Fatal(err)
		}
		s.Learn(l.Policy())
		return l
	}
	learn("phone")
	if tenant := learn("tenant"); s.Limiter("tenant") != tenant || s.Limiter("phone") != known {
		t.Error("a new rule is not learned, or a known one is replaced")
	}
	for i := range Max {
		learn(fmt.Sprint("rule", i))
	}
	if n := len(s.Limiters()); n != Max {
		t.Errorf("%d limiters, want at most %d", n, Max)
	}
}

// Of the policies of several rules no more are kept than the bound; others are found all the same.
func TestPoliciesAreBounded(t *testing.T) {
	t.Parallel()
	s := New(client(t), throttle.Config{})
	rules := make([]Rule, 40)
	for i := range rules {
		rules[i] = rule(fmt.Sprint("r", i))
		compile(t, s, rules[i])
	}
	for i := range rules {
		for n := range rules {
			names := fmt.Sprintf("r%d+r%d", i, n)
			if p := s.Lookup(names); i != n && (p == nil || p.String() != names) {
				t.Fatalf("Lookup(%q) = %v", names, p)
			}
		}
	}
	if len(s.policies) != Max {
		t.Errorf("%d policies are kept, want %d", len(s.policies), Max)
	}
}

// Handlers learn while wakers look up; the race detector watches.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	rdb := client(t)
	s := New(rdb, throttle.Config{})
	compile(t, s, rule("a"), rule("b"))
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 100 {
				l, err := throttle.New(rdb, fmt.Sprint("r", i), throttle.Sliding(1, time.Minute), throttle.Config{})
				if err != nil {
					t.Error(err)
					return
				}
				s.Learn(l.Policy())
				if s.Lookup(fmt.Sprintf("a+r%d", i)) == nil || s.Lookup("a+b") == nil || len(s.Limiters()) < 3 {
					t.Errorf("goroutine %d does not find what it has learned", g)
				}
			}
		})
	}
	wg.Wait()
}
