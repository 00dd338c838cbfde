package worker

import (
	"context"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/throttle"
)

const (
	// sweepEvery is how often one of the pools sweeps a queue in which something waits.
	sweepEvery = 400 * time.Millisecond
	// sweepPortion bounds how many deferred tasks a script of a sweep looks at.
	sweepPortion = 200
	// sweepMost bounds how many portions in a row of tasks that are gone a sweep clears.
	sweepMost = 50
	// sweepLines bounds the lines for leases that a sweep asks about.
	sweepLines = 32
)

// sweeper finds what nobody tells: tasks that were deleted or archived while they waited,
// whose places are then given up, and free leases whose next in line died. A sweep looks at
// the tasks that are due next, where a place that is left costs most, and at a portion of
// the others, in turn. What it does not see in time is found when its instant comes.
type sweeper struct {
	*waker
	from time.Time // where the portion of the others begins; zero behind those that are due next
	skip int       // how many tasks of that very instant were seen
}

func (s *sweeper) run(ctx context.Context) {
	every(ctx, sweepEvery, func(time.Time) {
		if !s.hasDeferred() {
			return
		}
		if ours, err := luascripts.ClaimSweep(ctx, s.rdb, s.keys, sweepEvery*7/8); err == nil && ours {
			s.sweep(ctx)
		}
	})
}

func (s *sweeper) sweep(ctx context.Context) {
	lines := make(map[doubtKey]throttle.BookingRef)
	first, ok := s.portion(ctx, time.Time{}, 0, lines)
	for n := 1; ok && n < sweepMost && len(first.Tasks) == sweepPortion && gone(first.Tasks) > sweepPortion/2; n++ {
		first, ok = s.portion(ctx, time.Time{}, 0, lines)
	}
	switch {
	case !ok:
		return
	case len(first.Tasks) < sweepPortion: // that was all
		s.from, s.skip = time.Time{}, 0
	default:
		if s.from.IsZero() {
			s.advance(first.Tasks)
		}
		others, _ := s.portion(ctx, s.from, s.skip, lines)
		s.advance(others.Tasks)
	}
	s.offer(ctx, lines)
}

// portion looks at some deferred tasks, clears away those that are gone, and notes the
// lines for leases of the others.
func (s *sweeper) portion(ctx context.Context, from time.Time, skip int, lines map[doubtKey]throttle.BookingRef) (luascripts.ScanDeferredReply, bool) {
	r, err := luascripts.ScanDeferredWithStates(ctx, s.rdb, s.keys, from, skip, sweepPortion)
	if err != nil {
		s.logAndPause(ctx, "the due index can't be read", err)
		return r, false
	}
	var over []dueTask
	for _, d := range r.Tasks {
		t := dueTask{DueTask: d}
		t.record, t.known = luascripts.ParseWaitRecord(d.For)
		if isGone(d) {
			over = append(over, t)
		} else {
			s.noteLines(t, lines)
			s.recordWait(d.Wait.RuleOf(t.record.Rules), d.For, d.At)
		}
	}
	s.wake(ctx, over, time.Now()) // clears their entries
	s.cancelBookings(ctx, over)
	return r, true
}

func isGone(t luascripts.DueTask) bool {
	return t.State == "" || t.State == "archived" || t.State == "completed"
}

func gone(tasks []luascripts.DueTask) (n int) {
	for _, t := range tasks {
		if isGone(t) {
			n++
		}
	}
	return n
}

// advance moves the portion of the others behind these tasks, and to the beginning when
// there are none. Tasks of one instant that went meanwhile may make it pass some: they are
// seen the next time.
func (s *sweeper) advance(tasks []luascripts.DueTask) {
	if len(tasks) == 0 {
		s.from, s.skip = time.Time{}, 0
		return
	}
	for _, t := range tasks {
		if !t.At.Equal(s.from) {
			s.from, s.skip = t.At, 0
		}
		s.skip++
	}
}

// noteLines notes in which lines for leases a task may wait.
func (s *sweeper) noteLines(t dueTask, lines map[doubtKey]throttle.BookingRef) {
	p, ok := s.bookingOf(t)
	if !ok {
		return
	}
	for i, l := range p.Policy.Rules() {
		if len(lines) < sweepLines && throttle.ForWorkers.LimitLastKnown(l).IsConcurrent() {
			lines[doubtKey{l.Rule(), p.IDs[i]}] = throttle.BookingRef{Policy: l.Policy(), IDs: p.IDs[i : i+1], Costs: []int{1}}
		}
	}
}

// offer asks which job is next in some lines. No job leaves a line by that, but a free lease
// is offered to the next one.
func (s *sweeper) offer(ctx context.Context, lines map[doubtKey]throttle.BookingRef) {
	places := make([]throttle.BookingRef, 0, len(lines))
	for _, p := range lines {
		places = append(places, p)
	}
	s.promotions.cancelBookings(ctx, places)
}
