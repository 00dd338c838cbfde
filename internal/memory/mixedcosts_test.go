package memory

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/limitscripts"
)

// A backlog of jobs of many costs goes in the order of its line, as fast as whoever is first can
// always go, and costs two calls a job. Jobs come when they were told, in no order where several
// were told the same instant; as in a pool a job is looked at before it is woken.
func TestMixedCostsGoInOrder(t *testing.T) {
	t.Parallel()
	minutes := make([]time.Duration, 0, 2000)
	for i := range cap(minutes) {
		minutes = append(minutes, time.Duration(i-1)*time.Minute)
	}
	for name, n := range map[string]limitscripts.Numbers{
		"fixed":               fixedOf(5, 3*time.Second),
		"fixed, short":        fixedOf(5, 20*ms),
		"calendar":            calendarOf(5, time.Minute, time.Minute, minutes...),
		"step":                stepOf(2, time.Second, 5),
		"step, short":         stepOf(2, 15*ms, 5),
		"sliding":             slidingOf(5, 3*time.Second),
		"sliding, InlineWait": slidingOf(5, 50*ms),
		"sliding, short":      slidingOf(5, 10*ms),
		"gcra":                gcraOf(5, time.Second, 5),
		"gcra, short":         gcraOf(500, time.Second, 5),
		"leaky":               smoothOf(5, time.Second, 0),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(5) {
				b := newMixedBacklog(n, 200, seed)
				b.run(t)
			}
		})
	}
}

// mixedBacklog is jobs of one key that wait for their instants.
type mixedBacklog struct {
	*scene
	n     limitscripts.Numbers
	rnd   *rand.Rand
	costs []int
	told  map[int]time.Time
	asks  int
	went  []int // in this order
	at    []time.Time
}

func newMixedBacklog(n limitscripts.Numbers, jobs int, seed uint64) *mixedBacklog {
	b := &mixedBacklog{scene: newScene(), n: n, rnd: rand.New(rand.NewPCG(seed, 7)), told: map[int]time.Time{}}
	for range jobs {
		b.costs = append(b.costs, 1+b.rnd.IntN(5))
	}
	return b
}

func (b *mixedBacklog) ask(job int) {
	b.asks++
	b.token++
	r := b.Acquire(limitscripts.AcquireArgs{
		Rules: b.one(b.n, b.costs[job]), Token: b.token, Job: fmt.Sprint(job), Mode: limitscripts.GrantOrBook, Inline: 50 * ms, MaxWait: -1,
	})
	b.promote(r.Promoted)
	if r.Status == limitscripts.Granted {
		delete(b.told, job)
		b.went, b.at = append(b.went, job), append(b.at, r.At)
		return
	}
	b.told[job] = r.At
}

func (b *mixedBacklog) promote(promoted []limitscripts.Promotion) {
	for _, p := range promoted {
		job := 0
		_, _ = fmt.Sscan(p.Job, &job)
		b.told[job] = p.At
	}
}

// due is a job that was told the earliest instant.
func (b *mixedBacklog) due() int {
	var first []int
	for job, at := range b.told {
		switch {
		case len(first) == 0 || at.Before(b.told[first[0]]):
			first = []int{job}
		case at.Equal(b.told[first[0]]):
			first = append(first, job)
		}
	}
	slices.Sort(first)
	return first[b.rnd.IntN(len(first))]
}

func (b *mixedBacklog) run(t *testing.T) {
	t.Helper()
	for job := range b.costs {
		b.ask(job)
	}
	for len(b.told) > 0 {
		job := b.due()
		const lead = 15 * ms
		if at := b.told[job].Add(-lead); at.After(b.Store.now()) {
			b.now = at
		}
		r := b.Refresh(limitscripts.RefreshArgs{Rules: b.one(b.n, b.costs[job]), Job: fmt.Sprint(job)})
		b.promote(r.Promoted)
		if at := r.At.Add(-lead); at.After(b.now) { // it has moved
			b.told[job] = r.At
			continue
		}
		b.ask(job)
	}

	alone := newScene() // each asks when the one before has gone
	want := make([]time.Time, len(b.costs))
	for job, cost := range b.costs {
		for want[job].IsZero() {
			r := alone.ask(b.n, cost, "")
			if alone.now = r.At; r.Status == limitscripts.Granted {
				want[job] = r.At
			}
		}
	}
	for i, job := range b.went {
		if i > 0 && job < b.went[i-1] && !b.at[i].Equal(b.at[i-1]) {
			t.Fatalf("job %d went at %v, before job %d at %v", b.went[i-1], b.at[i-1].Sub(start), job, b.at[i].Sub(start))
		}
	}
	last, best := b.at[len(b.at)-1].Sub(start), want[len(want)-1].Sub(start)
	if share := float64(best) / float64(last); share < 0.995 {
		t.Errorf("the last went at %v, first come first served allows %v: %.1f %%", last, best, 100*share)
	}
	if per := float64(b.asks) / float64(len(b.costs)); per > 2.05 {
		t.Errorf("%.2f calls a job, want at most 2.05", per)
	}
}
