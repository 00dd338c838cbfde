package throttle

import (
	"context"
	"fmt"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
)

// PeekMax bounds how many places in a line one look tells.
const PeekMax = 250

// State is what a key looks like at one moment.
type State struct {
	Now       time.Time // by Redis' clock
	Available int       // permits that TryAcquire could take now; none while somebody waits
	Next      time.Time // when a newcomer with one permit would go
	Waiting   int       // length of the line, without those who are late
	Booked    []Waiting // the first of the line, in order

	Expires time.Duration // until what was spent is forgotten; 0 when nothing is known
	Closed  time.Time     // until when nothing goes, see [Limiter.CloseKey] and [Limiter.CloseRule]; zero for not
}

// Waiting is one place in a line.
type Waiting struct {
	Job  string
	Cost int
	At   time.Time // its instant as it follows from its place now
}

// Peek looks at a key without changing it: available permits, and who is
// booked until when, the first most of them (0 to [PeekMax]). It asks the
// master; on an unknown key everything is available.
func (l *Limiter) Peek(ctx context.Context, key string, most int) (State, error) {
	if err := checkKey(key); err != nil {
		return State{}, err
	}
	if most < 0 || most > PeekMax {
		return State{}, fmt.Errorf("%w: a look at %d places, want 0 to %d", ErrInvalidConfig, most, PeekMax)
	}
	reply, err := l.look(ctx, Request{Key: key, Cost: 1}, most)
	if err != nil {
		return State{}, err
	}
	s := State{Now: reply.Now, Available: reply.Free, Next: reply.Next, Waiting: reply.Waiting, Expires: reply.Life, Closed: reply.Closed}
	for _, w := range reply.Listed {
		s.Booked = append(s.Booked, Waiting{Job: w.Job, Cost: w.Cost, At: w.At})
	}
	return s, nil
}

// Available tells how many permits of key TryAcquire could take now: none while
// somebody waits. It asks Redis once and does not wait; somebody else may take
// them before the caller does. When Redis is away the error unwraps to
// [ErrUnavailable].
func (l *Limiter) Available(ctx context.Context, key string) (int, error) {
	s, err := l.Peek(ctx, key, 0)
	return s.Available, err
}

// TimeUntil tells how long it would take a newcomer to get n permits of key,
// behind all who wait; 0 is now. It asks Redis once and does not wait, and
// reserves nothing: see [Limiter.Reserve]. More than the limit can ever give is
// an [ExceedsLimitError]; when Redis is away the error unwraps to
// [ErrUnavailable].
func (l *Limiter) TimeUntil(ctx context.Context, key string, n int) (time.Duration, error) {
	r := Request{Key: key, Cost: n}
	if err := l.policy.check(&r); err != nil {
		return 0, err
	}
	reply, err := l.look(ctx, r, 0)
	return max(0, reply.Next.Sub(reply.Now)), err
}

// look peeks with a newcomer of r's cost.
func (l *Limiter) look(ctx context.Context, r Request, most int) (reply luascripts.PeekReply, err error) {
	err = l.policy.withActiveLimits(ctx, func(in []activeLimit) (err error) {
		if err := l.fits(in[0].Limit, r.Cost); err != nil {
			return err
		}
		reply, err = l.store.peekBy(ctx, in[0], l.keys(l.ID(r.Key)), luascripts.PeekArgs{Cost: r.Cost, Most: most})
		return l.fault("peek", reply.Status, err)
	})
	return reply, err
}
