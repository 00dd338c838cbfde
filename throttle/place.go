package throttle

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
)

// Place is a booking as others see it, without the key in clear: what a worker
// stores beside a deferred task.
type Place struct {
	Limiter *Limiter
	ID      string // the key as [Limiter.ID] gives it
	Job     string
	Cost    int
}

// Instant is the answer about one place.
type Instant struct {
	Known  bool      // the job has a booking
	At     time.Time // its instant now, by Redis' clock
	Now    time.Time // Redis' clock
	Before int       // permits ahead of it in its line
	Err    error     // what kept this one from being answered
}

// Check asks for the current instants of many bookings in one round trip, in
// order, and makes them the last promises. All limiters must be on rdb.
func Check(ctx context.Context, rdb redis.UniversalClient, places []Place) []Instant {
	args := make([]luascripts.CheckArgs, len(places))
	for i, p := range places {
		args[i] = luascripts.CheckArgs{
			Limit: p.Limiter.keys(p.ID), Numbers: p.Limiter.numbers(),
			Member: luascripts.Member{Job: p.Job, Cost: p.Cost},
		}
	}
	out := make([]Instant, len(places))
	for i, r := range luascripts.Check(ctx, rdb, args) {
		err := places[i].Limiter.fault("check", r.Status, r.Err)
		out[i] = Instant{Known: err == nil && r.Status == luascripts.Booked, At: r.At, Now: r.Now, Before: r.Before, Err: err}
	}
	return out
}

// Leave takes a booking out of its line by its place; see [Limiter.Cancel].
func (p Place) Leave(ctx context.Context) (Turn, error) {
	l := p.Limiter
	reply, err := luascripts.Cancel(ctx, l.rdb, l.keys(p.ID), luascripts.CancelArgs{
		Numbers: l.numbers(), Cost: p.Cost, Job: p.Job,
	})
	if err := l.fault("cancel", reply.Status, err); err != nil {
		return Turn{}, err
	}
	return l.turn(reply.Next, reply.Now), nil
}
