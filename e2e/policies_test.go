package e2e

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/worker"
)

// twoKeys is a case of two rules: phones with so many
// messages each, a limit for each phone, and one of the provider for all.
type twoKeys struct {
	phones, messages int
	phone, provider  string
	least            time.Duration // in which the provider's limit admits all: the first burst at once, the others at its rate
}

// twoKeysRun is what came out of a case.
type twoKeysRun struct {
	breaches map[string][]string
	early    []string
	perJob   float64
	took     time.Duration // from the first grant to the last
}

// run plays a case on so many processes. All messages are there when they start.
func (c twoKeys) run(t *testing.T, processes int) twoKeysRun {
	t.Helper()
	s := newPolicyTestbed(t, []string{
		"phone: {limit: " + c.phone + ", key: $.to}",
		"provider: {limit: " + c.provider + ", key: =acme}",
	}, workerSpec{Concurrency: 8})
	s.enqueue(c.phones*c.messages, c.phones)
	s.crew.start(processes)
	s.allSent(2*c.least + 30*time.Second)

	all := s.crew.records()
	grants := grantsOf(all, s.phones)
	if len(grants) != s.sent || len(s.gateway.Arrivals()) != s.sent {
		t.Errorf("%d grants and %d arrivals of %d messages, want one of each", len(grants), len(s.gateway.Arrivals()), s.sent)
	}
	stats := sum(all)
	t.Logf("%+v", stats)
	return twoKeysRun{
		breaches: s.breachesOf(grants), early: early(all), perJob: float64(stats.Admissions) / float64(s.sent),
		took: time.Duration(grants[len(grants)-1].at-grants[0].at) * time.Microsecond,
	}
}

// TestTwoKeys: a limit of each phone, and one of the provider for all.
func TestTwoKeys(t *testing.T) {
	t.Parallel()
	c := twoKeys{40, 3, "1/2s", "gcra 20/1s burst 3", (120 - 3) * time.Second / 20}
	r := c.run(t, 2)
	for rule, faults := range r.breaches {
		if len(faults) > 0 {
			t.Errorf("breaches of %s: %s", rule, few(faults))
		}
	}
	if len(r.early) > 0 {
		t.Errorf("handlers that began early: %s", few(r.early))
	}
	if r.perJob > 3.05 {
		t.Errorf("%.3f admissions per message, want 3.05 at most", r.perJob)
	}
	t.Logf("%.3f admissions per message, finished after %v, which is %.3f of the least that the provider allows, %v",
		r.perJob, r.took, r.took.Seconds()/c.least.Seconds(), c.least)
}

// night is a pool in a bubble whose clock begins at midnight of 2000-01-01, UTC.
type night struct {
	*testing.T
	rdb      *redis.Client
	policies []queue.Policy
	handler  *starts

	mu    sync.Mutex
	woken []int64 // instants, in microseconds
}

func newNight(t *testing.T, rules ...string) *night {
	t.Helper()
	policies, err := queue.ReadPolicies("night", strings.NewReader(policyFile(typeSMS, rules)))
	if err != nil {
		t.Fatal(err)
	}
	rdb, _ := redistest.Mini(t)
	return &night{T: t, rdb: rdb, policies: policies, handler: &starts{at: make(map[string]time.Time)}}
}

// noteWoken notes when a task is woken.
func (n *night) noteWoken(context.Context, event.Woken) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.woken = append(n.woken, time.Now().UnixMicro())
}

// wakes are the instants at which tasks were woken.
func (n *night) wakes() []int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.woken)
}

func (n *night) start() *worker.Pool {
	n.Helper()
	return startPool(n, n.rdb, n.handler, worker.Config{Asynq: asynq.Config{Concurrency: 8}, Policies: n.policies, Observer: event.Observer{Woken: n.noteWoken}})
}

// enqueue enqueues a message to each of so many phones.
func (n *night) enqueue(phones int) {
	n.Helper()
	client, err := queue.NewClient(n.rdb, queue.ClientConfig{Policies: n.policies})
	if err != nil {
		n.Fatal(err)
	}
	for i := range phones {
		body, err := json.Marshal(newMessage(phone(i), phone(i)))
		if err != nil {
			n.Fatal(err)
		}
		if _, err := client.Enqueue(n.Context(), queue.NewTask(typeSMS, body)); err != nil {
			n.Fatal(err)
		}
	}
}

// clock is an instant of the first days of the bubble.
func clock(day, hour, minute, second int) time.Time {
	return time.Date(2000, time.January, day, hour, minute, second, 0, time.UTC)
}

// mostWithin is how many instants lie within a time of d, at most.
func mostWithin(instants []int64, d time.Duration) int {
	slices.Sort(instants)
	most, first := 0, 0
	for last, at := range instants {
		for at-instants[first] >= d.Microseconds() {
			first++
		}
		most = max(most, last-first+1)
	}
	return most
}

// TestGateOpens: many messages wait for an opening. They come at the provider's
// pace, and not as a herd.
func TestGateOpens(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const jobs, rate, burst = 500, 10, 5
		opens := clock(1, 8, 0, 0)
		n := newNight(t, "hours: {gate: 08:00-21:00 UTC}", "phone: {limit: 1/60s, key: $.to}", "provider: {limit: gcra 10/1s burst 5, key: =acme}")
		time.Sleep(time.Until(opens.Add(-20 * time.Second)))
		pool := n.start()
		n.enqueue(jobs)
		time.Sleep(time.Until(opens.Add(-time.Second)))
		if ran, stats := n.handler.count(), pool.Stats(); ran != 0 || stats.Deferred != jobs || len(n.wakes()) != 0 {
			t.Fatalf("before the opening %d ran, %d were woken: %+v", ran, len(n.wakes()), stats)
		}
		time.Sleep(time.Until(opens.Add((jobs-burst)*time.Second/rate + time.Second)))

		at := n.handler.instants()
		if len(at) != jobs || n.handler.count() != jobs {
			t.Fatalf("%d of %d messages ran, %d times", len(at), jobs, n.handler.count())
		}
		var grants []grant
		for _, g := range at {
			if g.Before(opens) {
				t.Errorf("one was granted at %v, before the opening", g)
			}
			grants = append(grants, grant{to: "acme", at: g.UnixMicro()})
		}
		if f := gcraBreaches(grants, n.policies[0].Rules[2].Limit); len(f) > 0 {
			t.Errorf("breaches of the provider's limit: %s", few(f))
		}
		stats := pool.Stats()
		if per := float64(stats.Admissions) / jobs; per > 3.05 {
			t.Errorf("%.3f admissions per message, want 3.05 at most: %+v", per, stats)
		}
		if most := mostWithin(n.wakes(), time.Second); most > rate+2*burst {
			t.Errorf("%d were woken within a second, want about %d", most, rate)
		}
		t.Logf("the last at %v, at most %d wakes within a second, %+v", at[jobs-1].UTC(), mostWithin(n.wakes(), time.Second), stats)
	})
}

// TestGateAcrossMidnight: the hours go over midnight, the messages over the end of
// the hours, and a new pool finds those that wait for the next evening.
func TestGateAcrossMidnight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const first, jobs = 12, 20 // in the first night, and in all
		const every = 10 * time.Second
		n := newNight(t, "hours: {gate: 23:59-00:01 UTC}", "phone: {limit: 1/60s, key: $.to}", "provider: {limit: 1/10s, key: =acme}")
		time.Sleep(time.Until(clock(1, 23, 58, 50)))
		pool := n.start()
		n.enqueue(jobs)
		time.Sleep(time.Until(clock(2, 0, 1, 10)))
		pool.Shutdown()
		if ran := n.handler.count(); ran != first {
			t.Errorf("%d ran in the first night, want %d", ran, first)
		}
		time.Sleep(time.Until(clock(2, 23, 58, 50)))
		n.start()
		time.Sleep(time.Until(clock(3, 0, 1, 10)))

		at := n.handler.instants()
		if len(at) != jobs {
			t.Fatalf("%d of %d messages ran", len(at), jobs)
		}
		for i, g := range at {
			want := clock(1, 23, 59, 0).Add(time.Duration(i) * every)
			if i >= first {
				want = clock(2, 23, 59, 0).Add(time.Duration(i-first) * every)
			}
			if late := g.Sub(want); late < 0 || late > 100*time.Millisecond {
				t.Errorf("message %d was granted at %v, want %v", i+1, g.UTC(), want)
			}
		}
	})
}

// fiveRules are rules on four keys. Those of a day remember all that a test spends,
// and are wide enough to refuse nobody.
func fiveRules(phone, provider, slots string) []string {
	return []string{
		"phone-minute: {limit: " + phone + ", key: $.to}",
		"phone-day: {limit: 1000/24h, key: $.to}",
		"tenant: {limit: 100000/24h, key: $.tenant}",
		"provider: {limit: " + provider + ", key: =acme}",
		"slots: {limit: " + slots + ", key: =acme}",
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
func (s *testbed) audit(grants []grant, phones int) books {
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
		capacity := l.Limit().MaxCost()
		if l.Limit().Kind() == "sliding" { // of which one call takes a part at most
			capacity = l.Limit().Permits()
		}
		return capacity - state.Available
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
func (s *testbed) stray() []string {
	s.Helper()
	var out []string
	iter := s.rdb.Scan(s.Context(), 0, throttleDefaults.Prefix+":*", 1000).Iterator()
	for iter.Next(s.Context()) {
		if strings.HasPrefix(iter.Val(), throttleDefaults.Prefix+":process") || strings.Contains(iter.Val(), ":fetched:") {
			continue // what a killed process said of itself, and what it fetched last, stays for some seconds
		}
		if strings.HasPrefix(iter.Val(), throttleDefaults.Prefix+":history:") {
			continue // it is kept for days
		}
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
func (s *testbed) placesOf(key string, ids []string) bool {
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
	s := newPolicyTestbed(t, fiveRules("1/500ms", "gcra 100/1s burst 20", "concurrent 10 lease 1s"),
		workerSpec{Concurrency: 8})
	s.tenants = 3
	s.gateway.SetTakes(20 * time.Millisecond)
	lives := s.crew.start(3)
	s.enqueue(400, 40)
	s.eventually(20*time.Second, "it is under way", func() bool { return s.gateway.Answered() > 100 })
	lives[1].kill()
	s.crew.launch()
	s.settled(30*time.Second, s.crew.spec.Concurrency)
	// A task may be told of an earlier instant while it runs. Its entry in the due index is
	// cleared by a pool, in a moment, and otherwise lives for an hour.
	poll(t.Context(), 5*time.Second, func() bool { return s.rdb.Exists(t.Context(), "hw:{default}:due").Val() == 0 })
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
	if most := mostAtOnce(crowds(s.gateway.Arrivals())); most > 10 {
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
