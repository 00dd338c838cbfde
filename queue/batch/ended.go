package batch

import (
	"context"
	"slices"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
)

const (
	// overBefore is how much sooner than it was to be the end of an element is worth a look.
	overBefore = 2 * time.Second
	// overLook is how many open elements are read for that, once in promisesEvery.
	overLook = 1000
)

// dropEnded drops the promises of elements that have ended although their instants have
// not come: what was shut has been opened, and the ledgers know of them. Of a window that
// is longer than overLook each part is looked at in turn.
func (g *feeding) dropEnded(ctx context.Context, now time.Time) error {
	far := g.lanes.far(now.Add(overBefore))
	if len(far) == 0 {
		return nil
	}
	i, _ := slices.BinarySearch(far, g.looked)
	from := far[i%len(far)]
	open, err := luascripts.OpenElements(ctx, g.f.c.Redis(), g.keys, g.id, from, overLook)
	if err != nil {
		return err
	}
	still, last := make(map[int64]bool, len(open)), far[len(far)-1]
	for _, e := range open {
		still[e.Position] = true
	}
	if len(open) == overLook {
		last = open[len(open)-1].Position
	}
	g.looked = last + 1
	g.lanes.drop(now, func(e promise) bool { return e.position >= from && e.position <= last && !still[e.position] })
	return nil
}

// far are the positions of what was fed and is not known to the ledgers before an instant.
func (l *keyQueues) far(at time.Time) (positions []int64) {
	for _, pr := range l.promised {
		for _, e := range pr.each {
			if e.until.After(at) {
				positions = append(positions, e.position)
			}
		}
	}
	slices.Sort(positions)
	return slices.Compact(positions)
}

// dropAll is drop for all that was fed: nothing is open. Who is booked next may come at once.
func (l *keyQueues) dropAll(now time.Time) {
	if len(l.promised) > 0 {
		l.drop(now, func(promise) bool { return true })
	}
	l.last = time.Time{}
}

// drop drops promises of what was fed, and has lanes looked at again that wait for them.
func (l *keyQueues) drop(now time.Time, over func(promise) bool) {
	some := false
	for k, pr := range l.promised {
		n := len(pr.each)
		pr.each = slices.DeleteFunc(pr.each, func(e promise) bool { return !e.until.IsZero() && over(e) })
		some = some || len(pr.each) < n
		if len(pr.each) == 0 {
			delete(l.promised, k)
		}
	}
	if !some {
		return
	}
	for _, in := range l.byKey {
		if in.busy && in.at.After(now) {
			l.opensAt(in, now)
		}
	}
}
