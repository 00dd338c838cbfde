package batch

import (
	"slices"
	"time"

	"github.com/headwayq/headway/queue/internal/backend"
	"github.com/headwayq/headway/throttle"
)

// redisClock is Redis' clock as this process knows it.
type redisClock struct {
	local  func() time.Time
	offset time.Duration // of Redis' clock to ours
}

func (c *redisClock) now() time.Time { return c.local().Add(c.offset) }

// here is an instant of Redis' clock by ours.
func (c *redisClock) here(at time.Time) time.Time { return at.Add(-c.offset) }

// paceSlack is how much of what a pace allowed may be made up.
const paceSlack = 250 * time.Millisecond

// pacer spreads the elements of a batch by its pace. Without a pace (N is 0) all may go.
// Its instants are of Redis' clock.
type pacer struct {
	Pace
	clock *redisClock
	at    time.Time // from when on the next element may go
}

// allows is how many of n elements may go now.
func (p *pacer) allows(n int) int {
	if p.N == 0 {
		return n
	}
	now := p.clock.now()
	at := later(p.at, now.Add(-paceSlack))
	if at.After(now) {
		return 0
	}
	return min(n, int(now.Sub(at)/p.each())+1)
}

// resume goes on from the instant that Redis has. A call that came just behind a change of
// pace has written it by the pace before: nobody must wait an hour for that one.
func (p *pacer) resume(at, now time.Time) {
	p.at = at
	if p.N > 0 && at.After(now.Add(p.each())) {
		p.at = now.Add(p.each())
	}
}

// after is from when on the pace allows the next element, behind n more.
func (p *pacer) after(n int) time.Time {
	if p.N == 0 || n == 0 {
		return p.at
	}
	return later(p.at, p.clock.now().Add(-paceSlack)).Add(time.Duration(n) * p.each())
}

// policy is the policy of a batch's type. It answers by the limits that this process read
// last, and does not ask Redis. Only limited counts when there is none.
type policy struct {
	backend.Policy
	limited bool
}

// widest is the last rule of the policy that is a rate; the first, if no rule is one: it has the line in which elements wait.
func (p *policy) widest() int {
	for i, l := range slices.Backward(p.Limiters) {
		if !throttle.ForWorkers.LimitLastKnown(l).IsConcurrent() {
			return i
		}
	}
	return 0
}

// width is the most that one may ask of a rule at once.
func (p *policy) width(rule int) int {
	return throttle.ForWorkers.LimitLastKnown(p.Limiters[rule]).MaxCost()
}

// regain is how long after it was spent a cost can be asked for again.
func (p *policy) regain(rule, cost int) time.Duration {
	limit := throttle.ForWorkers.LimitLastKnown(p.Limiters[rule])
	switch limit.Kind() {
	case "gcra", "leaky", "smooth": // bit by bit
		return time.Duration(float64(limit.Window()) * min(1, float64(cost)/float64(max(limit.Permits(), 1))))
	}
	return limit.Window()
}

// leased says that a rule of the policy limits how many run at once.
func (p *policy) leased() bool {
	return slices.ContainsFunc(p.Limiters, func(l *throttle.Limiter) bool { return throttle.ForWorkers.LimitLastKnown(l).IsConcurrent() })
}
