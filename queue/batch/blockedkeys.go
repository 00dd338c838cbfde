package batch

import (
	"container/list"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
)

const (
	// againRate is how soon a lane is asked again that a rate, a gate or somebody who
	// closed one has shut.
	againRate = time.Second
	// Where a rule limits how many run at once, an instant is that at which leases end
	// if nobody gives one back: lanes are asked again after againLease to againLeaseMax,
	// ever less often while they are still shut.
	againLease    = 20 * time.Millisecond
	againLeaseMax = 250 * time.Millisecond
	// againMost is how many lanes of a rule are asked again at once.
	againMost = 4
)

// shut are the lanes that are shut until an instant that Redis answered. That may come
// nearer: somebody opens what was closed, raises a limit, or gives a lease back. Of the
// lanes of one binding rule the againMost that have not been asked for longest are asked
// again after a time; one that is still shut stays where it was. For each that gained,
// which may go or has to wait for less than half as long now, two others are asked at
// once, againMost at least. So Redis is asked againMost times in a second and rule (of a
// policy with leases in 20 ms to 250 ms), and againMost times for each that gained: with
// 1000 phones shut by 1/1h and one of them opened, 4 times a second, and that one goes
// within 250 s.
type blockedKeys struct {
	least, longest time.Duration // between two times
	rules          map[string]*blockedByRule
	again          []asked // not heard of yet
}

// shutBy are the lanes that one rule shut.
type blockedByRule struct {
	lanes list.List // of *lane; the one in front was asked before the others
	next  time.Time // when to ask again
	wait  time.Duration
	most  int // so many at once
	left  int // of these
}

// asked is a piece that was asked for before its instant.
type asked struct {
	piece *item
	by    *blockedByRule
}

// shutUntil puts a piece back whose lane a rule shut.
func (l *keyQueues) blockUntil(p *item, rule string, at, now time.Time) {
	l.back(p, at)
	in := l.byKey[p.lane]
	in.most = 0
	if in.by != nil || at.Sub(now) <= l.least {
		return
	}
	by := l.rules[rule]
	if by == nil {
		by = &blockedByRule{most: againMost, wait: l.least}
		l.rules[rule] = by
	}
	if by.lanes.Len() == 0 {
		by.next = later(by.next, now.Add(by.wait))
	}
	in.by, in.place = by, by.lanes.PushBack(in)
}

// asked says that a lane is not asked again.
func (l *keyQueues) asked(in *keyQueue) {
	if in.by != nil {
		in.by.lanes.Remove(in.place)
		in.by, in.place = nil, nil
	}
}

// nextAgain takes a piece of a lane that is shut and is to be asked again, as
// [lanes.next] does; nil when there is none.
func (l *keyQueues) nextRetry(now time.Time) *item {
	for _, by := range l.rules {
		if by.next.After(now) {
			continue
		}
		if by.left == 0 {
			by.left = by.most
		}
		for by.left > 0 && by.lanes.Len() > 0 {
			in := by.lanes.Front().Value.(*keyQueue)
			if by.left--; by.left == 0 {
				by.rest(now)
			}
			if _, open := l.open(in.pieces[0], now); !open {
				by.lanes.MoveToBack(in.place)
				continue
			}
			l.asked(in)
			p := l.take(in)
			p.told = in.at
			l.promise(p, now)
			l.again = append(l.again, asked{p, by})
			return p
		}
	}
	return nil
}

// rest is until it is asked again.
func (by *blockedByRule) rest(now time.Time) { by.left, by.next = 0, now.Add(by.wait) }

// heard notes what became of the pieces that were asked for again.
func (l *keyQueues) heard(now time.Time) {
	gained := make(map[*blockedByRule]int)
	for _, a := range l.again {
		in, before := l.byKey[a.piece.lane], a.piece.told.Sub(now)
		still := in != nil && in.pieces[0] == a.piece
		gained[a.by] += 0
		if !still || in.at.Sub(now) < before/2 {
			gained[a.by]++
		}
		if in != nil && !still {
			in.most, in.left = 2, 2
			l.opensAt(in, now)
		}
	}
	for by, n := range gained {
		by.most = min(max(2*n, againMost), luascripts.BatchMax)
		if n == 0 {
			by.wait = min(2*by.wait, l.longest)
			by.rest(now)
			continue
		}
		by.wait, by.left, by.next = l.least, 0, now
	}
	clear(l.again)
	l.again = l.again[:0]
}
