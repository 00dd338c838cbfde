package throttle_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/fake"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// A job that has a turn on a key, by one policy, keeps its ticket there when another policy asks for it: first
// in the line, and not behind those who came later.
func TestTurnIsKeptByAnotherPolicy(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	phone, tenant := s.limiter("phone", throttle.Sliding(1, time.Minute)), s.limiter("tenant", throttle.Sliding(1000, time.Minute))
	provider := s.limiter("provider", throttle.Sliding(1, 10*time.Minute))
	before, after := newPolicy(t, phone, provider), newPolicy(t, phone, tenant, provider)
	s.want(s.redeem(before, jobRequest(2, "B", "spends the provider")), true, 0)
	s.by(s.redeem(before, jobRequest(2, key, "first")), "provider", 10*time.Minute)
	s.at(time.Second)
	s.want(s.try(phone, 1), true, time.Second)
	s.by(s.redeem(after, jobRequest(3, key, "second")), "phone", 61*time.Second) // it does not see the turn of the other policy
	s.at(30 * time.Second)
	s.by(s.redeem(after, jobRequest(3, key, "first")), "phone", 61*time.Second)
	s.by(s.redeem(after, jobRequest(3, key, "second")), "phone", 121*time.Second)
	s.by(s.redeem(after, jobRequest(3, key, "third")), "phone", 181*time.Second)
	s.by(s.redeem(phone.Policy(), throttle.Request{Key: key, Cost: 1, Job: "first"}), "phone", 61*time.Second)
	s.at(61 * time.Second)
	s.by(s.redeem(before, jobRequest(2, key, "first")), "provider", 10*time.Minute)
	s.by(s.redeem(after, jobRequest(3, key, "first")), "provider", 10*time.Minute)
	s.by(s.redeem(before, jobRequest(2, key, "fourth")), "phone", 13*time.Minute) // behind the turn of the first, and behind the second and third
	for _, name := range redistest.Keys(s, s.raw, "hw:*") {
		if life := s.raw.PTTL(s.Context(), name).Val(); life < 0 {
			t.Errorf("%q lives for ever, want it to expire", name)
		}
	}
	for _, job := range []string{"first", "second", "third", "fourth"} {
		for _, p := range []*throttle.Policy{before, after} {
			if _, err := p.Cancel(t.Context(), jobRequest(len(p.Rules()), key, job)); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.nobodyWaits()
}

// Who gets the turn by another policy notes that costs differ: a newcomer of cost 1 passes no turn of cost 5.
func TestTurnOfAnotherPolicyIsCountedByItsCost(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	phone, tenant := s.limiter("phone", throttle.Sliding(6, time.Minute)), s.limiter("tenant", throttle.Sliding(1000, time.Minute))
	provider := s.limiter("provider", throttle.Sliding(3, 10*time.Minute))
	one, other := newPolicy(t, phone, provider), newPolicy(t, phone, tenant, provider)
	spend := jobRequest(2, "B", "spends the provider")
	spend.More[0].Cost = 3
	s.want(s.redeem(one, spend), true, 0)
	costly := func(p *throttle.Policy) throttle.Request {
		r := jobRequest(len(p.Rules()), key, "costly")
		r.Cost = 5
		return r
	}
	s.by(s.redeem(one, jobRequest(2, key, "cheap")), "provider", 10*time.Minute)
	s.by(s.redeem(other, costly(other)), "provider", 10*time.Minute)
	s.by(s.redeem(one, costly(one)), "provider", 10*time.Minute)
	s.at(570 * time.Second)
	s.want(s.try(phone, 3), true, 570*time.Second)
	s.at(10 * time.Minute)
	s.by(s.redeem(one, jobRequest(2, key, "newcomer")), "phone", 11*time.Minute) // six permits go before it, three are left
}

// Behind many jobs of mixed costs tickets tell how many permits go before, in the line and among turns of another
// policy, also when these turns have come into the line again.
func TestPolicyCountsManyInLineAndTurns(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	phone := s.limiter("phone", throttle.Sliding(100, time.Minute))
	p := newPolicy(t, phone, s.limiter("provider", throttle.Sliding(1000, time.Minute)))
	spend := jobRequest(2, "B", "spends the provider")
	spend.More[0].Cost = 1000
	s.want(s.redeem(p, spend), true, 0)
	turn := func(i int) throttle.Request { return jobRequest(2, key, fmt.Sprint("turn ", i)) }
	alone := func(job string, cost int) throttle.Decision {
		return s.redeem(phone.Policy(), throttle.Request{Key: key, Cost: cost, Job: job})
	}
	for i := range 40 {
		s.by(s.redeem(p, turn(i)), "provider", time.Minute)
	}
	s.at(2 * time.Second)
	s.want(s.try(phone, 100), true, 2*time.Second)
	for i := range 30 {
		s.by(alone(fmt.Sprint("other ", i), 2), "phone", 62*time.Second)
	}
	last := jobRequest(2, key, "last")
	s.by(s.redeem(p, last), "phone", 122*time.Second) // 40 and 60 go at 62 s
	if _, err := p.Cancel(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	s.at(time.Minute)
	for i := range 40 {
		s.by(s.redeem(p, turn(i)), "phone", 62*time.Second)
	}
	s.by(alone("late other", 1), "phone", 122*time.Second)
}

// mixedJob is a task that waits for the instant that it was told last.
type mixedJob struct {
	id, phone string
	came, at  time.Time
}

// mixedPools are pools of a rolling deploy, which ask by one of two policies about the same tasks. The provider's
// limit binds, and phones get more than one message at a time.
type mixedPools struct {
	tb      testing.TB
	now     time.Time
	changed func()
	random  *rand.Rand
	ask     []*throttle.Policy // by pool
	waiting map[string]*mixedJob
	longest time.Duration
}

func newMixedPools(tb testing.TB, seed uint64) *mixedPools {
	m := &mixedPools{tb: tb, now: start, random: rand.New(rand.NewPCG(seed, 1)), waiting: map[string]*mixedJob{}}
	rdb := &fake.Client{Source: fake.Source{
		Now: func() time.Time { return m.now }, Fault: func() error { return nil }, Join: func(changed func()) { m.changed = changed },
	}}
	limiter := func(rule string, limit throttle.Limit) *throttle.Limiter {
		l, err := throttle.New(rdb, rule, limit, throttle.Config{})
		if err != nil {
			tb.Fatal(err)
		}
		return l
	}
	phone, tenant := limiter("phone", throttle.Sliding(1, 2*time.Second)), limiter("tenant", throttle.Sliding(1000, time.Second))
	provider := limiter("provider", throttle.Sliding(20, time.Second))
	m.ask = []*throttle.Policy{newPolicy(tb, phone, provider), newPolicy(tb, phone, tenant, provider)}
	return m
}

// redeem asks for a job by the policy of any pool.
func (m *mixedPools) redeem(j *mixedJob) {
	p := m.ask[m.random.IntN(len(m.ask))]
	r := jobRequest(len(p.Rules()), j.phone, j.id)
	d, err := p.Redeem(m.tb.Context(), r)
	if err != nil {
		m.tb.Fatal(err)
	}
	j.at = d.At
	if d.Granted {
		m.longest = max(m.longest, m.now.Sub(j.came))
		delete(m.waiting, j.id)
	}
	for _, told := range d.Promoted {
		if other := m.waiting[told.Job]; other != nil && told.At.Before(other.at) {
			other.at = told.At
		}
	}
}

// run lets so many jobs come, 22 a second, and go.
func (m *mixedPools) run(jobs int) {
	for came := 0; came < jobs || len(m.waiting) > 0; {
		next := slices.MinFunc(append(m.all(), &mixedJob{at: m.now.Add(time.Hour)}), func(a, b *mixedJob) int {
			return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.id, b.id))
		})
		if arrives := start.Add(time.Duration(came) * time.Second / 22); came < jobs && !next.at.Before(arrives) {
			next = &mixedJob{id: fmt.Sprintf("%06d", came), phone: fmt.Sprint("phone ", m.random.IntN(80)), came: arrives, at: arrives}
			m.waiting[next.id] = next
			came++
		}
		if next.at.After(m.now) {
			m.now = next.at
			m.changed()
		}
		if m.now.Sub(start) > time.Hour {
			m.tb.Fatalf("%d jobs wait still after an hour, want none", len(m.waiting))
		}
		m.redeem(next)
	}
}

func (m *mixedPools) all() []*mixedJob {
	var all []*mixedJob
	for _, j := range m.waiting {
		all = append(all, j)
	}
	return all
}

// While pools of two policies run side by side, nobody waits for much longer than with one of them: each job has
// one ticket on a key, whoever asks for it.
func TestPoliciesSideBySideStarveNobody(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		one, both := newMixedPools(t, seed), newMixedPools(t, seed)
		one.ask = one.ask[:1]
		one.run(2000)
		both.run(2000)
		if both.longest > 2*one.longest {
			t.Errorf("seed %d: with two policies a job waited for %v, want at most twice what it waits with one, %v", seed, both.longest, one.longest)
		}
	}
}
