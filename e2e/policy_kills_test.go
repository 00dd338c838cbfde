package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
)

// fiveRules are rules on four keys. Those of a day remember all that a test spends,
// and are wide enough to refuse nobody.
func fiveRules(phone, provider, slots string) []string {
	return []string{
		"phone-minute: {limit: " + phone + ", key: $.to}",
		"phone-day: {limit: 1000/24h, key: $.to}",
		"tenant: {limit: 100000/24h, key: $.tenant}",
		"provider: {limit: " + provider + ", key: acme}",
		"slots: {limit: " + slots + ", key: acme}",
	}
}

// books is what the keys themselves say about who has paid, and what for.
type books struct {
	granted        int // attempts that were let in, as the worker processes tell
	perPhone, perT int // permits that are spent of phone-day and of tenant
	unpaid         []string
	left           []string // what is not as if nobody had ever come, beside the rules of a day
}

// audit reads the keys when all is done.
func (s *stage) audit(grants []grant, phones int) books {
	s.Helper()
	b := books{granted: len(grants)}
	byPhone, byTenant := make(map[string]int), make(map[string]int)
	for _, g := range grants {
		byPhone[g.to]++
		byTenant[s.messages[g.id].Tenant]++
	}
	spent := func(rule, key string) int {
		l := s.rules[rule]
		state, err := l.Peek(s.Context(), key, 1)
		if err != nil {
			s.Fatal(err)
		}
		if state.Waiting > 0 {
			b.left = append(b.left, rule+": somebody waits for "+key)
		}
		return l.Limit().MaxCost() - state.Available
	}
	paid := func(sum *int, rule, key string, ran int) {
		n := spent(rule, key)
		*sum += n
		if n < ran {
			b.unpaid = append(b.unpaid, rule+": more ran than paid for "+key)
		}
	}
	for i := range phones {
		paid(&b.perPhone, "phone-day", phone(i), byPhone[phone(i)])
		if spent("phone-minute", phone(i)) > 0 {
			b.left = append(b.left, "phone-minute: something is spent on "+phone(i))
		}
	}
	for tenant, ran := range byTenant {
		paid(&b.perT, "tenant", tenant, ran)
	}
	for _, rule := range []string{"provider", "slots"} {
		if spent(rule, "acme") > 0 {
			b.left = append(b.left, rule+": something is spent")
		}
	}
	return b
}

// stray are the keys of ours that nobody would miss: neither a ledger of a day nor
// the tokens of its attempts.
func (s *stage) stray() []string {
	s.Helper()
	var out []string
	iter := s.rdb.Scan(s.Context(), 0, throttle.PrefixDefault+":*", 1000).Iterator()
	for iter.Next(s.Context()) {
		switch last := iter.Val()[strings.LastIndex(iter.Val(), ":")+1:]; last {
		case "phone-day", "tenant", "tokens", "rules":
		default:
			out = append(out, iter.Val())
		}
	}
	if err := iter.Err(); err != nil {
		s.Fatal(err)
	}
	return out
}

// placesOf says that a key holds nothing but places of these messages: their process
// died between booking and deferring, and asynq will bring them back.
func (s *stage) placesOf(key string, ids []string) bool {
	s.Helper()
	members, err := s.rdb.ZRange(s.Context(), key, 0, -1).Result()
	return err == nil && !slices.ContainsFunc(members, func(m string) bool {
		return m != "mixed" && !slices.ContainsFunc(ids, func(id string) bool { return strings.HasSuffix(m, id) })
	})
}

// faultsOf tells what is wrong with the books after so many workers were killed
// with something in hand.
func (b books) faultsOf(killed int) []string {
	faults := append(b.unpaid, b.left...)
	for rule, n := range map[string]int{"phone-day": b.perPhone, "tenant": b.perT} {
		if n > b.granted+killed {
			faults = append(faults, rule+": more is spent than by those who ran, and those who were killed")
		}
	}
	return faults
}

// TestFiveRulesCrash: one of three processes dies. What was not let in has spent
// nothing.
func TestFiveRulesCrash(t *testing.T) {
	t.Parallel()
	s := newPolicyStage(t, fiveRules("1/500ms", "gcra 100/1s burst 20", "concurrent 10 lease 1s"),
		workerSpec{Concurrency: 8})
	s.tenants, s.gateway.takes = 3, 20*time.Millisecond
	lives := s.crew.start(3)
	s.enqueue(400, 40)
	s.eventually(20*time.Second, "it is under way", func() bool { return s.gateway.distinct() > 100 })
	lives[1].kill()
	s.crew.launch()
	s.settled(30*time.Second, s.crew.spec.Concurrency)
	s.crew.end()

	all := s.crew.records()
	grants := grantsOf(all, s.phones)
	for rule, faults := range s.breachesOf(grants) {
		if len(faults) > 0 {
			t.Errorf("breaches of %s: %s", rule, few(faults))
		}
	}
	missing := s.missing()
	if len(missing) > s.crew.spec.Concurrency {
		t.Errorf("%d messages wait for asynq's recovery, want no more than the workers of the killed process", len(missing))
	}
	if most := mostAtOnce(crowds(s.gateway.all())); most > 10 {
		t.Errorf("%d at once, want 10 at most", most)
	}
	stray := func() []string {
		return slices.DeleteFunc(s.stray(), func(key string) bool { return s.placesOf(key, missing) })
	}
	poll(t.Context(), 5*time.Second, func() bool { return len(stray()) == 0 }) // leases and windows end
	b := s.audit(grants, 40)
	if f := b.faultsOf(s.crew.spec.Concurrency); len(f) > 0 {
		t.Errorf("the books: %s; %+v", few(f), b)
	}
	if left := stray(); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	t.Logf("%d granted, spent %d by phone-day, %d by tenant", b.granted, b.perPhone, b.perT)
}
