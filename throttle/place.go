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

// Check asks for the current instants of many bookings, in order, and makes
// them the last promises: in one round trip for all that are in Redis, which
// must be rdb, and one by one for those of a [NewLocal]. A booking that the
// limit in force never admits is an [ExceedsLimitError].
func Check(ctx context.Context, rdb redis.UniversalClient, places []Place) []Instant {
	out := make([]Instant, len(places))
	var there, here []int
	rulings := make([]ruling, len(places))
	for i, p := range places {
		var err error
		if rulings[i], err = p.Limiter.ruling(ctx); err == nil {
			err = p.Limiter.fits(rulings[i].Limit, Request{Cost: p.Cost})
		}
		switch {
		case err != nil:
			out[i].Err = err
		case p.Limiter.rdb == nil:
			here = append(here, i)
		default:
			there = append(there, i)
		}
	}
	checkOn(ctx, redisStore{rdb}, places, rulings, there, out)
	for _, i := range here {
		checkOn(ctx, places[i].Limiter.store, places, rulings, []int{i}, out)
	}
	return out
}

// checkOn asks a store about the places of the given indices, and again about
// those whose windows lay elsewhere.
func checkOn(ctx context.Context, s store, places []Place, rulings []ruling, indices []int, out []Instant) {
	for n := 0; len(indices) > 0; n++ {
		args := make([]luascripts.CheckArgs, len(indices))
		for j, i := range indices {
			l := places[i].Limiter
			args[j] = luascripts.CheckArgs{
				Limit: l.keys(places[i].ID), Numbers: rulings[i].numbers(l.store.clock()),
				Member: luascripts.Member{Job: places[i].Job, Cost: places[i].Cost},
			}
			args[j].Version = rulings[i].version
		}
		var again []int
		for j, r := range s.check(ctx, args) {
			i, err := indices[j], r.Err
			places[i].Limiter.store.heard(r.Now)
			if err == nil && r.Status == luascripts.NotCovered {
				again, err = append(again, i), errClock
			}
			if err == nil && r.Status == luascripts.Outdated {
				if rulings[i], err = places[i].Limiter.catchUp(ctx, r.Version); err == nil {
					again, err = append(again, i), &outdatedError{r.Version}
				}
			}
			err = places[i].Limiter.fault("check", r.Status, err)
			out[i] = Instant{Known: err == nil && r.Status == luascripts.Booked, At: r.At, Now: r.Now, Before: r.Before, Err: err}
		}
		if indices = again; n+1 == asksMax {
			return
		}
	}
}

// Leave takes a booking out of its line by its place; see [Limiter.Cancel].
func (p Place) Leave(ctx context.Context) (Turn, error) {
	return p.Limiter.takeBackID(ctx, p.ID, Request{Cost: p.Cost, Job: p.Job}, false)
}
