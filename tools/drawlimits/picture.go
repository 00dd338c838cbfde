package main

import (
	"time"

	"github.com/headwayq/headway/throttle"
)

// picture is what is drawn of one algorithm.
type picture struct {
	name  string
	limit throttle.Limit
	over  int // how many permits beyond its own a window of any place may hold
}

const permits = 5

// pictures are in the order of docs/algorithms.md. The calendar gets what makes
// every job go in one of two minutes.
var pictures = [...]picture{
	{"sliding", throttle.Sliding(permits, time.Second), 0},
	{"fixed", throttle.Fixed(permits, time.Second), permits - 1},
	{"calendar", throttle.Calendar(12, throttle.Minute, "UTC"), 12},
	{"bucket", throttle.Bucket(permits, time.Second, 7), 7 - 1},
	{"bucket-step", throttle.SteppedBucket(permits, time.Second, 7), 7 - 1},
	{"gcra", throttle.GCRA(permits, time.Second, 2), 2 - 1},
	{"leaky", throttle.Leaky(permits, time.Second), 0},
	{"smooth", throttle.Smooth(permits, time.Second, 5), 5},
	{"warmup", throttle.WarmUp(permits, time.Second, time.Second, 3), 0},
}

// pattern is when jobs come: one, a burst late in its window, a trickle above
// the rate, a pause, and another burst.
var pattern = arrivals()

func arrivals() []time.Duration {
	const burst, trickle = 8, 7
	at := []time.Duration{0}
	for range burst {
		at = append(at, 800*time.Millisecond)
	}
	for i := range trickle {
		at = append(at, 1200*time.Millisecond+time.Duration(i)*120*time.Millisecond)
	}
	for range burst {
		at = append(at, 5500*time.Millisecond)
	}
	return at
}

func (p picture) file() string { return p.name + ".svg" }

func (p picture) bound() int { return p.limit.Permits() + p.over }

// delay puts the start of a calendar's run three seconds before its next edge.
func (p picture) delay(now time.Time) time.Duration {
	const ahead = 3 * time.Second
	if p.name != "calendar" {
		return 0
	}
	edge := now.Truncate(time.Minute).Add(time.Minute)
	if edge.Sub(now) < ahead {
		edge = edge.Add(time.Minute)
	}
	return edge.Add(-ahead).Sub(now)
}

// windows are those that the limit counts by, where it has such.
func (p picture) windows(r run) []span {
	width := p.limit.Window()
	var all []span
	for _, at := range r.grants() {
		if len(all) > 0 && at < all[len(all)-1].to {
			continue
		}
		switch p.name {
		case "calendar":
			at = r.began.Add(at).Truncate(width).Sub(r.began)
		case "fixed":
		default:
			return nil
		}
		all = append(all, span{at, at + width})
	}
	return all
}

// span is a time from the start of a run on, without its end.
type span struct{ from, to time.Duration }
