package batch

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/headwayq/headway/throttle"
)

const (
	// tooLateAgain is the shortest wait before one is booked again whose line was too long.
	tooLateAgain = 100 * time.Millisecond
	// unreadableAgain is the wait while a limit in force can't be read.
	unreadableAgain = time.Second
)

// book takes places for pieces, and answers those that have one and can be enqueued. The
// others are back in their lanes, or refused. The error is that of a Redis that does not
// answer.
func (g *feeding) book(ctx context.Context, pieces []*item) (placed []*item, away error) {
	var wishes []throttle.BookRequest
	for _, p := range pieces {
		if p.task.Policy != nil {
			wishes = append(wishes, throttle.BookRequest{Policy: p.task.Policy, Request: g.request(p), LastRuleOnly: true})
		}
	}
	bookings := throttle.BookMany(ctx, g.f.c.Redis(), wishes)
	now := g.f.now()
	shut := make(map[string]bool)
	var leave []*item
	var turns []throttle.Promotion
	for _, p := range pieces {
		if p.task.Policy == nil {
			placed = append(placed, p)
			continue
		}
		b := bookings[0]
		bookings = bookings[1:]
		turns = append(turns, b.Promoted...)
		took, err := g.answered(p, b, now, shut[p.lane])
		switch {
		case took && shut[p.lane]: // one before it has to wait
			leave = append(leave, p)
		case took:
			placed = append(placed, p)
			continue
		}
		shut[p.lane] = true
		if err != nil {
			away = err
		}
	}
	g.leave(ctx, leave)
	g.f.c.Promote(ctx, turns)
	return placed, away
}

// request is what a piece asks: of narrow rules also what others were promised.
func (g *feeding) request(p *item) throttle.Request {
	r := p.task.Request
	r.More = slices.Clone(r.More)
	for i, n := range p.before {
		if i == 0 {
			r.Cost += n
		} else {
			r.More[i-1].Cost += n
		}
	}
	r.MaxWait = g.f.cfg.Ahead
	if own := p.task.Longest(); own != 0 {
		r.MaxWait = min(r.MaxWait, own)
	}
	return r
}

// answered takes the answer about one piece: whether it has a place, and otherwise puts
// it back or refuses it. behind says that one of its lane that comes before it waits.
func (g *feeding) answered(p *item, b throttle.Booking, now time.Time, behind bool) (took bool, away error) {
	var late *throttle.TooLateError
	switch {
	case b.Err == nil && b.Refused:
		// The wide line is so long that who joins it now comes at its end.
		g.block(p, b.Rule, later(now.Add(inHand), g.local(b.At).Add(-g.lead)), now, behind)
		return false, nil
	case b.Err == nil:
		p.task.Own = b.Promised.IsZero()
		g.place(p, b.Decision, now)
		if behind {
			g.lanes.back(p, now)
		}
		return true, nil
	case errors.As(b.Err, &late):
		if own := p.task.Longest(); own < 0 || own > 0 && late.Wait > own {
			break
		}
		g.block(p, late.Rule, now.Add(max(late.Wait-g.f.cfg.Ahead, tooLateAgain)), now, behind)
		return false, nil
	case errors.Is(b.Err, throttle.ErrExceedsLimit) && slices.ContainsFunc(p.before, func(n int) bool { return n > 0 }):
		g.lanes.back(p, now.Add(inHand)) // alone it may fit
		return false, nil
	case errors.Is(b.Err, throttle.ErrStoredLimit), errors.Is(b.Err, throttle.ErrSchema):
		g.lanes.back(p, now.Add(unreadableAgain))
		return false, nil
	case errors.Is(b.Err, throttle.ErrUnavailable):
		g.lanes.back(p, now)
		return false, b.Err
	}
	g.lanes.forget(p)
	p.fault = b.Err
	g.refused = append(g.refused, p)
	return false, nil
}

// shut puts a piece back until the instant that it was told, or as one of its lane that
// waits was told: then that is the first to be asked.
func (g *feeding) block(p *item, rule string, at, now time.Time, behind bool) {
	if behind {
		g.lanes.back(p, now)
		return
	}
	g.lanes.blockUntil(p, rule, at, now)
}

// place notes where a piece stands, and when it is to be woken.
func (g *feeding) place(p *item, d throttle.Decision, now time.Time) {
	d.Request = p.task.Request
	p.task.Booked(d)
	g.lead = max(0, d.At.Sub(d.Now))
	p.bookedAt = now.Add(g.lead)
}

// formatPosition writes a position in decimal.
func formatPosition(n int64) string { return strconv.FormatInt(n, 10) }
