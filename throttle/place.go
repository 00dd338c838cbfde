package throttle

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
)

// Place is a booking as others see it, without the keys in clear: what a worker
// stores beside a deferred task.
type BookingRef struct {
	Policy *Policy
	IDs    []string // the keys as [Limiter.ID] gives them, by rule
	Costs  []int    // by rule
	Job    string
}

// Instant is the answer about one place.
type RefreshedBooking struct {
	Known    bool        // the job has a booking
	Rule     string      // by which it waits
	At       time.Time   // its instant now, by Redis' clock
	Now      time.Time   // Redis' clock
	Before   int         // permits ahead of it in its line
	Promoted []Promotion // who may come earlier: the job does not stand in their way any more
	Err      error       // what kept this one from being answered
}

// request is what the place was booked for, without the keys.
func (p BookingRef) request() Request {
	r := Request{Job: p.Job, Cost: p.Costs[0]}
	for _, cost := range p.Costs[1:] {
		r.More = append(r.More, KeyCost{Cost: cost})
	}
	return r
}

// Check asks for the current instants of many bookings, in order, and makes
// them the last promises: in one round trip for all that are in Redis, which
// must be rdb, and one by one for those of a [NewLocal]. A booking that the
// limits in force never admit is an [ExceedsLimitError].
func Refresh(ctx context.Context, rdb redis.UniversalClient, places []BookingRef) []RefreshedBooking {
	out := make([]RefreshedBooking, len(places))
	var there, here []int
	rulings := make([][]activeLimit, len(places))
	for i, p := range places {
		var err error
		if rulings[i], err = p.Policy.activeLimits(ctx); err == nil {
			_, err = p.Policy.fits(rulings[i], new(p.request()))
		}
		switch {
		case err != nil:
			out[i].Err = err
		case p.Policy.rdb == nil:
			here = append(here, i)
		default:
			there = append(there, i)
		}
	}
	refreshOn(ctx, storeOn(rdb), places, rulings, there, out)
	for _, i := range here {
		refreshOn(ctx, places[i].Policy.store, places, rulings, []int{i}, out)
	}
	return out
}

// checkOn asks a store about the places of the given indices, and again about
// those whose windows lay elsewhere.
func refreshOn(ctx context.Context, s store, places []BookingRef, rulings [][]activeLimit, indices []int, out []RefreshedBooking) {
	for n := 0; len(indices) > 0; n++ {
		args := make([]luascripts.RefreshArgs, len(indices))
		for j, i := range indices {
			p := places[i].Policy
			args[j] = luascripts.RefreshArgs{Rules: p.ruleCalls(rulings[i], places[i].IDs, places[i].request()), Policy: p.name, Job: places[i].Job}
			number(args[j].Rules, rulings[i], p.store.clock())
		}
		var again []int
		for j, r := range s.refresh(ctx, args) {
			i, err := indices[j], r.Err
			p := places[i].Policy
			p.store.observeClock(r.Now)
			if err == nil && r.Status == luascripts.NotCovered {
				again, err = append(again, i), errClock
			}
			if err == nil && r.Status == luascripts.Outdated {
				if rulings[i], err = p.catchUp(ctx, rulings[i], r.Rule-1, r.Version); err == nil {
					again, err = append(again, i), &outdatedError{r.Version, r.Rule - 1}
				}
			}
			err = p.fault("check", r.Rule, r.Status, err)
			out[i] = RefreshedBooking{Known: err == nil && r.Status == luascripts.Booked, At: r.At, Now: r.Now, Before: r.Before, Promoted: p.promotions(r.Promoted, r.Now), Err: err}
			if r.Rule > 0 && r.Rule <= len(p.rules) {
				out[i].Rule = p.rules[r.Rule-1].rule
			}
		}
		if indices = again; n+1 == roundTripsMax {
			return
		}
	}
}

// Leave takes a booking out of its lines by its place; see [Limiter.Cancel].
func (p BookingRef) Leave(ctx context.Context) ([]Promotion, error) {
	return p.Policy.takeBackIDs(ctx, p.IDs, p.request(), false)
}
