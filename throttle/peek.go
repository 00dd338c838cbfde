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
	reply, err := luascripts.Peek(ctx, l.rdb, l.keys(l.ID(key)), l.numbers(), most)
	if err := l.fault("peek", reply.Status, err); err != nil {
		return State{}, err
	}
	s := State{Now: reply.Now, Available: reply.Free, Next: reply.Next, Waiting: reply.Waiting}
	for _, w := range reply.Listed {
		s.Booked = append(s.Booked, Waiting{Job: w.Job, Cost: w.Cost, At: w.At})
	}
	return s, nil
}
