package batch

import (
	"container/heap"
	"container/list"
	"slices"
	"time"

	"github.com/headwayq/headway/queue/internal/backend"
	"github.com/headwayq/headway/throttle"
)

// item is an element on its way into a queue: it was read, and is not settled.
type item struct {
	Element
	position int64
	task     *backend.Task // nil when it can be no task, for fault
	bookedAt time.Time     // once it is booked

	lane   string             // elements of one lane keep their order
	narrow []throttle.KeyCost // of the rules on narrower keys than the widest, in the policy's order
	before []int              // permits of each that others were booked with and have not spent
	told   time.Time          // when its lane was to open, of one that is asked again before
	aside  bool               // it is booked in a narrow line, whose ledger knows of it
}

// lanes hold what was read and may not go yet, in order by its narrowest key. A lane is
// shut until an instant, and while the permits of one of its narrow keys are all
// promised to elements that are booked for an instant that has not come: the ledger of
// a narrow rule knows only what was spent. Permits that will have been regained when the
// next is booked are promised no more. All times are those of one local clock; lanes are
// not safe for concurrent use.
type keyQueues struct {
	width    func(rule int) int                 // the most that one may ask of a narrow rule at once
	regain   func(rule, cost int) time.Duration // so long after it was spent a cost can be asked for again
	last     time.Time                          // the instant that was booked last: the next is not before it
	byKey    map[string]*keyQueue
	line     keyQueueHeap
	behind   []*keyQueue // shut because of a piece in hand
	held     int
	promised map[narrowKey]*promises
	blockedKeys
}

type narrowKey struct {
	rule int
	key  string
}

// promises are the permits of a narrow key that nobody has spent yet, in the order in
// which they were booked.
type promises struct{ each []promise }

type promise struct {
	position int64
	cost     int
	until    time.Time // by then the ledger knows of it; zero while it is in hand
	regained time.Time
}

// over is from when on a promise does not count for anybody; false while that is not known.
func (e promise) over() (time.Time, bool) {
	if e.regained.Before(e.until) {
		return e.regained, !e.until.IsZero()
	}
	return e.until, !e.until.IsZero()
}

type keyQueue struct {
	pieces []*item // not empty
	key    string
	at     time.Time      // it is shut until then
	stuck  bool           // or until none is in hand
	busy   bool           // because of promises
	most   int            // so many are taken before it is known how the first went; 0 for any
	left   int            // of these
	index  int            // in the heap
	by     *blockedByRule // what an answer shut it by, if that can be asked again
	place  *list.Element
}

func newLanes(width func(rule int) int, regain func(rule, cost int) time.Duration) *keyQueues {
	return &keyQueues{
		width: width, regain: regain, byKey: make(map[string]*keyQueue), promised: make(map[narrowKey]*promises),
		blockedKeys: blockedKeys{least: againRate, longest: againRate, rules: make(map[string]*blockedByRule)},
	}
}

// add puts a piece behind those of its lane.
func (l *keyQueues) add(p *item) {
	l.held++
	if in := l.byKey[p.lane]; in != nil {
		in.pieces = append(in.pieces, p)
		return
	}
	in := &keyQueue{key: p.lane, pieces: []*item{p}}
	l.byKey[p.lane] = in
	heap.Push(&l.line, in)
}

// back puts a piece that was taken before those of its lane, which is shut until at.
func (l *keyQueues) back(p *item, at time.Time) {
	l.forget(p)
	l.held++
	in := l.byKey[p.lane]
	if in == nil {
		in = &keyQueue{key: p.lane, pieces: []*item{p}, at: at}
		l.byKey[p.lane] = in
		heap.Push(&l.line, in)
		return
	}
	i, _ := slices.BinarySearchFunc(in.pieces, p, func(a, b *item) int { return int(a.position - b.position) })
	if in.stuck {
		in.at, in.stuck = at, false
	}
	busy := in.busy && in.at.After(at)
	if p.told.IsZero() { // otherwise this is the newer answer
		at = later(in.at, at)
	}
	in.pieces = slices.Insert(in.pieces, i, p)
	l.opensAt(in, at)
	in.busy = busy
}

// opensAt has a lane open at another instant.
func (l *keyQueues) opensAt(in *keyQueue, at time.Time) {
	in.at, in.busy = at, false
	heap.Fix(&l.line, in.index)
}

// next takes the first piece that may go: the one whose lane has been open for longest.
// Until it is said how it went ([lanes.fed], [lanes.forget], [lanes.back]) its permits
// are promised. nil when none may go.
func (l *keyQueues) next(now time.Time) *item {
	for len(l.line) > 0 && !l.line[0].at.After(now) {
		in := l.line[0]
		l.asked(in)
		at, open := l.open(in.pieces[0], now)
		if in.most > 0 && in.left == 0 {
			at, open = time.Time{}, false
		}
		if !open {
			l.opensAt(in, at)
			if in.busy = true; at.IsZero() {
				l.opensAt(in, now.Add(inHand))
				in.stuck, l.behind = true, append(l.behind, in)
			}
			continue
		}
		in.left--
		p := l.take(in)
		p.told = time.Time{}
		l.promise(p, now)
		return p
	}
	return nil
}

// take takes the first piece of a lane.
func (l *keyQueues) take(in *keyQueue) *item {
	p := in.pieces[0]
	p.aside = false
	l.held--
	if in.pieces[0] = nil; len(in.pieces) > 1 {
		in.pieces = in.pieces[1:]
		heap.Fix(&l.line, in.index)
		return p
	}
	l.asked(in)
	heap.Remove(&l.line, in.index)
	delete(l.byKey, in.key)
	return p
}

// opens is when the first lane opens, or is asked again; false when there is none.
func (l *keyQueues) opens() (time.Time, bool) {
	if len(l.line) == 0 {
		return time.Time{}, false
	}
	at := l.line[0].at
	for _, by := range l.rules {
		if by.lanes.Len() > 0 && by.next.Before(at) {
			at = by.next
		}
	}
	return at, true
}

// settled says that no piece is in hand any more: lanes that waited for one are looked at
// again.
func (l *keyQueues) settled(now time.Time) {
	for _, in := range l.behind {
		if l.byKey[in.key] == in && in.stuck {
			in.stuck = false
			in.most *= 2
			in.left = in.most
			l.opensAt(in, now)
		}
	}
	l.behind = l.behind[:0]
	l.heard(now)
}

// inHand is how soon a lane is looked at again that waits for a piece in hand, unless it
// is said that there is none.
const inHand = 20 * time.Millisecond

// open says whether the narrow keys of a piece have permits left, and otherwise when to
// look again: zero for when those in hand are settled.
func (l *keyQueues) open(p *item, now time.Time) (again time.Time, open bool) {
	open = true
	for i, w := range p.narrow {
		pr := l.promised[narrowKey{i, w.Key}]
		if pr == nil {
			continue
		}
		pr.expire(now)
		if over := pr.sum(later(now, l.last)) + w.Cost - max(l.width(i), w.Cost); over > 0 {
			free, known := pr.free(over, now)
			if !known {
				return time.Time{}, false
			}
			again, open = later(again, free), false
		}
	}
	return again, open
}

// expire drops what the ledger knows by now.
func (pr *promises) expire(now time.Time) {
	pr.each = slices.DeleteFunc(pr.each, func(e promise) bool { return !e.until.IsZero() && !e.until.After(now) })
}

// sum is what counts for one who is booked for an instant.
func (pr *promises) sum(at time.Time) (sum int) {
	for _, e := range pr.each {
		if e.until.IsZero() || e.regained.After(at) {
			sum += e.cost
		}
	}
	return sum
}

// free is when so many permits more will count no more; false while that is not known.
func (pr *promises) free(need int, now time.Time) (time.Time, bool) {
	var times []promise
	for _, e := range pr.each {
		if over, known := e.over(); known && over.After(now) {
			times = append(times, promise{until: over, cost: e.cost})
		}
	}
	slices.SortFunc(times, func(a, b promise) int { return a.until.Compare(b.until) })
	for _, e := range times {
		if need -= e.cost; need <= 0 {
			return e.until, true
		}
	}
	return time.Time{}, false
}

func (l *keyQueues) promise(p *item, now time.Time) {
	p.before = p.before[:0]
	for i, w := range p.narrow {
		k := narrowKey{i, w.Key}
		pr := l.promised[k]
		if pr == nil {
			pr = &promises{}
			l.promised[k] = pr
		}
		p.before = append(p.before, pr.sum(later(now, l.last)))
		pr.each = append(pr.each, promise{position: p.position, cost: w.Cost})
	}
}

// fed notes that a piece was enqueued for an instant, and until when the ledgers may not
// know of it.
func (l *keyQueues) fed(p *item, at, until time.Time) {
	if p.aside {
		return
	}
	if !at.IsZero() {
		l.last = at // earlier than the one before when the wide line was opened early
	}
	for i, w := range p.narrow {
		pr := l.promised[narrowKey{i, w.Key}]
		if pr == nil {
			continue
		}
		for n := range pr.each {
			if e := &pr.each[n]; e.position == p.position {
				e.until, e.regained = until, at.Add(l.regain(i, w.Cost))
			}
		}
	}
}

// forget drops the promises of a piece that was not enqueued.
func (l *keyQueues) forget(p *item) {
	for i, w := range p.narrow {
		k := narrowKey{i, w.Key}
		pr := l.promised[k]
		if pr == nil {
			continue
		}
		pr.each = slices.DeleteFunc(pr.each, func(e promise) bool { return e.position == p.position })
		if len(pr.each) == 0 {
			delete(l.promised, k)
		}
	}
}

// expire drops the promises that are over; without it keys that do not come again would
// stay in memory.
func (l *keyQueues) expire(now time.Time) {
	for k, pr := range l.promised {
		if pr.expire(now); len(pr.each) == 0 {
			delete(l.promised, k)
		}
	}
}

// laneHeap has the lane that opens first in front; of two, the one whose first piece
// was read earlier.
type keyQueueHeap []*keyQueue

func (h keyQueueHeap) Len() int { return len(h) }
func (h keyQueueHeap) Less(i, j int) bool {
	if !h[i].at.Equal(h[j].at) {
		return h[i].at.Before(h[j].at)
	}
	return h[i].pieces[0].position < h[j].pieces[0].position
}
func (h keyQueueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push and Pop are for container/heap.
func (h *keyQueueHeap) Push(x any) {
	in := x.(*keyQueue)
	in.index = len(*h)
	*h = append(*h, in)
}

// Pop is said at [laneHeap.Push].
func (h *keyQueueHeap) Pop() any {
	old := *h
	in := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return in
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
