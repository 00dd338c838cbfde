package batch

import (
	"context"

	"github.com/headwayq/headway/throttle"
)

const (
	// heldBackMore is how many elements beyond four windows may lie between the first
	// that is not settled and the last that was read: what is settled of them is named in
	// Redis.
	heldBackMore = 1000
	// asideMost is how many elements are put aside in one call.
	asideMost = 16
)

// farRead says that so much lies behind the first element that is not settled that no
// more is read.
func (g *feeding) farRead() bool { return len(g.track.open) >= 4*g.spec.Window+heldBackMore }

// putAside enqueues the oldest elements that are held back when they keep the source from
// being read on, although they can't go yet: in the lines of their narrow keys, as
// [queue.Client.Book] does. It costs each one admission more, and a place in the window until
// it has run; so it is done only while half of the window is free.
func (g *feeding) putAside(ctx context.Context, n int) (bool, error) {
	if g.over || !g.farRead() || g.open >= (g.batch.Ceiling()+1)/2 {
		return false, nil
	}
	pieces := g.lanes.oldest(min(n, asideMost), g.track.cursor+int64(len(g.track.open)/2))
	if len(pieces) == 0 {
		return false, nil
	}
	defer func() { g.lanes.settled(g.f.now()) }()
	placed, err := g.bookAside(ctx, pieces)
	if len(placed) == 0 {
		return false, err
	}
	return true, g.send(ctx, g.call(placed, nil))
}

// bookAside books pieces in their narrow lines. The others are back in their lanes, or
// refused.
func (g *feeding) bookAside(ctx context.Context, pieces []*item) (placed []*item, away error) {
	wishes := make([]throttle.BookRequest, len(pieces))
	for i, p := range pieces {
		r := p.task.Request
		r.MaxWait = p.task.Longest()
		wishes[i] = throttle.BookRequest{Policy: p.task.Policy, Request: r}
	}
	lead := g.lead // is of the wide line
	defer func() { g.lead = lead }()
	bookings := throttle.BookMany(ctx, g.f.c.Redis(), wishes)
	now := g.f.now()
	var turns []throttle.Promotion
	for i, b := range bookings {
		p := pieces[i]
		turns = append(turns, b.Promoted...)
		if b.Err == nil && b.Parked { // at a gate it has no place
			g.block(p, b.Rule, later(now.Add(inHand), g.local(b.At)), now, false)
			continue
		}
		took, err := g.answered(p, b, now, false)
		if took {
			p.aside = true
			placed = append(placed, p)
		}
		if err != nil {
			away = err
		}
	}
	g.f.c.Promote(ctx, turns)
	return placed, away
}

// oldest takes up to so many first pieces of lanes that are shut, read before a position,
// the oldest first.
func (l *keyQueues) oldest(most int, before int64) (pieces []*item) {
	for len(pieces) < most {
		var in *keyQueue
		for _, other := range l.line {
			if p := other.pieces[0]; p.task.Policy != nil && p.position < before && (in == nil || p.position < in.pieces[0].position) {
				in = other
			}
		}
		if in == nil {
			break
		}
		p := l.take(in)
		p.told, p.before = in.at, p.before[:0]
		pieces = append(pieces, p)
	}
	return pieces
}
