package batch

import (
	"slices"
	"time"

	"github.com/headwayq/headway/internal/batchscripts"
)

const (
	// lateShare is how much of a window may have come due and not have ended before less is
	// booked; lateLeast is so much of any.
	lateShare = 64
	lateLeast = batchscripts.ElementsMax
	// latePoll is how soon it is looked whether they still are.
	latePoll = 5 * time.Millisecond
	// progressWithin is how soon pools that are behind must have ended some of it.
	progressWithin = time.Second
	// Once the instant that was booked last is more than farAhead away, the feeder rests after
	// each step: what is due now needs Redis more. Where a step has moved that instant by gainIn, step
	// and rest are to take gainFor. The rest is restFor to restMost times the step, and restLongest
	// or what lies beyond farAhead at most.
	farAhead        = 500 * time.Millisecond
	gainFor, gainIn = 2, 3
	restFor         = 2
	restMost        = 10
	restLongest     = 100 * time.Millisecond
	// A feeder that has held back for progressWithin, and has booked nothing more than aheadLow ahead, lets
	// twice as many be late: what is late may wait for something else, such as a back-off.
	aheadLow = 500 * time.Millisecond
	// calmFor is how long little has to be late before less may be late again.
	calmFor = 5 * time.Second
)

// backpressure knows how far the pools are behind. A task that has not come 100 ms after its
// instant is parked: others pass it until it comes. While many are late, as in the burst with
// which a rate begins, a task that is booked behind them would be told an instant that is
// theirs, and run before them. So no more is booked then. A late task may also wait for
// something else, such as a back-off, and that holds nothing up: where there is no progress
// twice as many may be late, and where nothing has ended yet there are no pools that could be
// behind.
type backpressure struct {
	times  []time.Time // instants of what was booked, those to come, in order
	before int         // how many were unfinished when this feeder took the batch
	fed    int         // how many it booked since
	first  time.Time   // the first that it booked itself: those before it are due by then
	most   int         // how many may be late; 0 for the share of the window
	ended  int         // how many had ended when it began to hold back, or since then was looked for progress
	since  time.Time   // when that was; zero while it does not hold back
	held   time.Time   // since when it does without a break
	calm   time.Time   // since when little is late, as far as that counts
}

// booked notes when an item is to run.
func (l *backpressure) booked(at time.Time) {
	if l.fed++; l.first.IsZero() {
		l.first = at
	}
	i := len(l.times)
	for i > 0 && l.times[i-1].After(at) {
		i--
	}
	l.times = slices.Insert(l.times, i, at)
}

// room is how many more may be booked while so many are unfinished.
func (l *backpressure) room(unfinished, window int, now time.Time) int {
	passed, _ := slices.BinarySearchFunc(l.times, now, func(at, now time.Time) int {
		if at.After(now) {
			return 1
		}
		return -1
	})
	l.times = slices.Delete(l.times, 0, passed)
	late := unfinished - len(l.times)
	if now.Before(l.first) || l.first.IsZero() {
		late = max(0, late-l.before)
	}
	if unfinished >= l.before+l.fed {
		return window
	}
	least := max(lateLeast, window/lateShare)
	l.most = max(l.most, least)
	ended := l.before + l.fed - unfinished
	switch {
	case late < l.most:
		l.since, l.held = time.Time{}, time.Time{}
		l.calms(late, least, now)
		return l.most - late
	case l.held.IsZero():
		l.since, l.held, l.ended = now, now, ended
	case now.Sub(l.held) >= progressWithin && !l.reaches(now.Add(aheadLow)):
		l.most, l.since, l.held = 2*late, time.Time{}, time.Time{}
		return l.most - late
	case l.since.IsZero(), now.Sub(l.since) >= progressWithin && ended-l.ended > late/lateShare:
		l.since, l.ended = now, ended
	case now.Sub(l.since) >= progressWithin:
		l.most, l.since, l.held = 2*late, time.Time{}, time.Time{}
		return l.most - late
	}
	return 0
}

// reaches says that something is booked for then, or later.
func (l *backpressure) reaches(at time.Time) bool {
	return len(l.times) > 0 && !l.times[len(l.times)-1].Before(at)
}

// calms halves how many may be late when far fewer have been for a while.
func (l *backpressure) calms(late, least int, now time.Time) {
	switch {
	case l.most == least || late >= l.most/4:
		l.calm = time.Time{}
	case l.calm.IsZero():
		l.calm = now
	case now.Sub(l.calm) >= calmFor:
		l.most, l.calm = max(least, l.most/2), now
	}
}

// rest is how far ahead of now a batch is booked, and how long it rests for that.
type rest struct {
	ahead   time.Duration // from now to the instant that was booked last
	reached time.Time     // that instant at the last step, by our clock
	until   time.Time     // nothing is fed before
}

// after has the feeding rest after a step from began to now, when it is far ahead.
func (r *rest) after(began, now time.Time) {
	took, reached := now.Sub(began), began.Add(r.ahead)
	if spare := r.ahead - farAhead; spare > 0 {
		gained := reached.Sub(r.reached) * gainFor / gainIn
		r.until = now.Add(min(max(gained-took, restFor*took), restMost*took, restLongest, spare))
	}
	r.reached = reached
}
