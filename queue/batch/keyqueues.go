package batch

import (
	"container/heap"
	"container/list"
	"slices"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/queue/internal/backend"
	"github.com/headwayq/headway/throttle"
)

// item is an element on its way into a queue: it was read, and is not settled.
type item struct {
	Element
	position int64
	task     *backend.Task // nil when it can be no task, for fault
	bookedAt time.Time     // once it is booked

	queueKey     string             // elements of one key queue keep their order
	narrow       []throttle.KeyCost // of the rules on narrower keys than the widest, in the policy's order
	before       []int              // permits of each that others were booked with and have not spent
	opensAt      time.Time          // when its key queue was to open, of an item that is asked again before that
	narrowBooked bool               // it is booked in a narrow line, whose ledger knows of it
}

// keyQueues hold the items that were read and may not go yet. The items of one narrowest key
// form a queue, in order. A key queue is blocked until an instant. It is also blocked while all
// permits of one of its narrow keys are reserved for booked elements whose instant has not come:
// the ledger of a narrow rule knows only what was spent. A reservation ends a
// moment after its instant, when the ledger knows of it (see spentBy). It stops to count before, once its
// permits are regained at the instant that was booked last. All times are those of one local clock.
// Key queues are not safe for concurrent use.
type keyQueues struct {
	width        func(rule int) int                 // the most that one may ask of a narrow rule at once
	regain       func(rule, cost int) time.Duration // so long after it was spent a cost can be asked for again
	last         time.Time                          // the instant that was booked last: the next is not before it
	byKey        map[string]*keyQueue
	line         keyQueueHeap
	behind       []*keyQueue // blocked because of an unsettled item
	held         int
	reservations map[narrowKey]*reservations
	blockedKeys
}

type narrowKey struct {
	rule int
	key  string
}

// reservations are the permits of a narrow key that are booked and that nobody has spent yet, in the
// order in which they were booked.
type reservations struct{ each []reserved }

type reserved struct {
	position int64
	cost     int
	until    time.Time // by then the ledger knows of it; zero while it is unsettled
	regained time.Time
}

// over is from when on a reservation does not count for anybody; false while that is not known.
func (e reserved) over() (time.Time, bool) {
	if e.regained.Before(e.until) {
		return e.regained, !e.until.IsZero()
	}
	return e.until, !e.until.IsZero()
}

type keyQueue struct {
	items          []*item // not empty
	key            string
	at             time.Time      // it is blocked until then
	waitsForSettle bool           // or until every item is settled
	busy           bool           // because of reservations
	most           int            // so many are taken before it is known how the first went; 0 for any
	left           int            // of these
	index          int            // in the heap
	by             *blockedByRule // what an answer blocked it by, if that can be asked again
	place          *list.Element
}

func newKeyQueues(width func(rule int) int, regain func(rule, cost int) time.Duration) *keyQueues {
	return &keyQueues{
		width: width, regain: regain, byKey: make(map[string]*keyQueue), reservations: make(map[narrowKey]*reservations),
		blockedKeys: blockedKeys{least: againRate, longest: againRate, rules: make(map[string]*blockedByRule)},
	}
}

// add puts an item behind those of its key queue.
func (l *keyQueues) add(p *item) {
	l.held++
	if in := l.byKey[p.queueKey]; in != nil {
		in.items = append(in.items, p)
		return
	}
	in := &keyQueue{key: p.queueKey, items: []*item{p}}
	l.byKey[p.queueKey] = in
	heap.Push(&l.line, in)
}

// back puts an item that was taken before those of its key queue, which is blocked until at.
func (l *keyQueues) back(p *item, at time.Time) {
	l.forget(p)
	l.held++
	in := l.byKey[p.queueKey]
	if in == nil {
		in = &keyQueue{key: p.queueKey, items: []*item{p}, at: at}
		l.byKey[p.queueKey] = in
		heap.Push(&l.line, in)
		return
	}
	i, _ := slices.BinarySearchFunc(in.items, p, func(a, b *item) int { return int(a.position - b.position) })
	if in.waitsForSettle {
		in.at, in.waitsForSettle = at, false
	}
	busy := in.busy && in.at.After(at)
	if p.opensAt.IsZero() { // otherwise this is the newer answer
		at = later(in.at, at)
	}
	in.items = slices.Insert(in.items, i, p)
	l.opensAt(in, at)
	in.busy = busy
}

// opensAt has a key queue open at another instant.
func (l *keyQueues) opensAt(in *keyQueue, at time.Time) {
	in.at, in.busy = at, false
	heap.Fix(&l.line, in.index)
}

// next takes the first item that may go: the one whose key queue has been open for longest.
// Until it is said how it went ([keyQueues.fed], [keyQueues.forget], [keyQueues.back]) its permits
// are reserved. nil when none may go.
func (l *keyQueues) next(now time.Time) *item {
	for len(l.line) > 0 && !l.line[0].at.After(now) {
		in := l.line[0]
		l.dropRetry(in)
		at, open := l.open(in.items[0], now)
		if in.most > 0 && in.left == 0 {
			at, open = time.Time{}, false
		}
		if !open {
			l.opensAt(in, at)
			if in.busy = true; at.IsZero() {
				l.opensAt(in, now.Add(unsettledPoll))
				in.waitsForSettle, l.behind = true, append(l.behind, in)
			}
			continue
		}
		in.left--
		p := l.take(in)
		p.opensAt = time.Time{}
		l.reserve(p, now)
		return p
	}
	return nil
}

// take takes the first item of a key queue.
func (l *keyQueues) take(in *keyQueue) *item {
	p := in.items[0]
	p.narrowBooked = false
	l.held--
	if in.items[0] = nil; len(in.items) > 1 {
		in.items = in.items[1:]
		heap.Fix(&l.line, in.index)
		return p
	}
	l.dropRetry(in)
	heap.Remove(&l.line, in.index)
	delete(l.byKey, in.key)
	return p
}

// opens is when the first key queue opens, or is asked again; false when there is no key queue.
func (l *keyQueues) opens() (time.Time, bool) {
	if len(l.line) == 0 {
		return time.Time{}, false
	}
	at := l.line[0].at
	for _, by := range l.rules {
		if by.keyQueues.Len() > 0 && by.next.Before(at) {
			at = by.next
		}
	}
	return at, true
}

// settled says that every item is settled now: key queues that waited for one are looked at
// again.
func (l *keyQueues) settled(now time.Time) {
	for _, in := range l.behind {
		if l.byKey[in.key] == in && in.waitsForSettle {
			in.waitsForSettle = false
			in.most *= 2
			in.left = in.most
			l.opensAt(in, now)
		}
	}
	l.behind = l.behind[:0]
	l.retriesAnswered(now)
}

// unsettledPoll is how soon a key queue that waits for an unsettled item is looked at again, if
// nobody says before that all items are settled.
const unsettledPoll = 20 * time.Millisecond

// open says whether the narrow keys of an item have permits left, and otherwise when to
// look again: zero for when the unsettled items are settled.
func (l *keyQueues) open(p *item, now time.Time) (again time.Time, open bool) {
	open = true
	for i, w := range p.narrow {
		pr := l.reservations[narrowKey{i, w.Key}]
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
func (pr *reservations) expire(now time.Time) {
	pr.each = slices.DeleteFunc(pr.each, func(e reserved) bool { return !e.until.IsZero() && !e.until.After(now) })
}

// sum is what counts for one who is booked for an instant.
func (pr *reservations) sum(at time.Time) (sum int) {
	for _, e := range pr.each {
		if e.until.IsZero() || e.regained.After(at) {
			sum += e.cost
		}
	}
	return sum
}

// free is when so many permits more will count no more; false while that is not known.
func (pr *reservations) free(need int, now time.Time) (time.Time, bool) {
	var times []reserved
	for _, e := range pr.each {
		if over, known := e.over(); known && over.After(now) {
			times = append(times, reserved{until: over, cost: e.cost})
		}
	}
	slices.SortFunc(times, func(a, b reserved) int { return a.until.Compare(b.until) })
	for _, e := range times {
		if need -= e.cost; need <= 0 {
			return e.until, true
		}
	}
	return time.Time{}, false
}

func (l *keyQueues) reserve(p *item, now time.Time) {
	p.before = p.before[:0]
	for i, w := range p.narrow {
		k := narrowKey{i, w.Key}
		pr := l.reservations[k]
		if pr == nil {
			pr = &reservations{}
			l.reservations[k] = pr
		}
		p.before = append(p.before, pr.sum(later(now, l.last)))
		pr.each = append(pr.each, reserved{position: p.position, cost: w.Cost})
	}
}

// fed notes that an item was enqueued for an instant, and until when the ledgers may not
// know of it.
func (l *keyQueues) fed(p *item, at, until time.Time) {
	if p.narrowBooked {
		return
	}
	if !at.IsZero() {
		l.last = at // earlier than the one before when the wide line was opened early
	}
	for i, w := range p.narrow {
		pr := l.reservations[narrowKey{i, w.Key}]
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

// forget drops the reservations of an item that was not enqueued.
func (l *keyQueues) forget(p *item) {
	for i, w := range p.narrow {
		k := narrowKey{i, w.Key}
		pr := l.reservations[k]
		if pr == nil {
			continue
		}
		pr.each = slices.DeleteFunc(pr.each, func(e reserved) bool { return e.position == p.position })
		if len(pr.each) == 0 {
			delete(l.reservations, k)
		}
	}
}

// expire drops the reservations that are over; without it keys that do not come again would
// stay in memory.
func (l *keyQueues) expire(now time.Time) {
	for k, pr := range l.reservations {
		if pr.expire(now); len(pr.each) == 0 {
			delete(l.reservations, k)
		}
	}
}

// keyQueueHeap has the key queue that opens first in front; of two, the one whose first item
// was read earlier.
type keyQueueHeap []*keyQueue

func (h keyQueueHeap) Len() int { return len(h) }
func (h keyQueueHeap) Less(i, j int) bool {
	if !h[i].at.Equal(h[j].at) {
		return h[i].at.Before(h[j].at)
	}
	return h[i].items[0].position < h[j].items[0].position
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

// Pop is said at [keyQueueHeap.Push].
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

// far are the positions of what was fed and is not known to the ledgers before an instant.
func (l *keyQueues) far(at time.Time) (positions []int64) {
	for _, pr := range l.reservations {
		for _, e := range pr.each {
			if e.until.After(at) {
				positions = append(positions, e.position)
			}
		}
	}
	slices.Sort(positions)
	return slices.Compact(positions)
}

// dropAll is drop for all that was fed: nothing is unfinished. Who is booked next may come at once.
func (l *keyQueues) dropAll(now time.Time) {
	if len(l.reservations) > 0 {
		l.drop(now, func(reserved) bool { return true })
	}
	l.last = time.Time{}
}

// drop drops reservations of what was fed, and has key queues looked at again that wait for them.
func (l *keyQueues) drop(now time.Time, over func(reserved) bool) {
	some := false
	for k, pr := range l.reservations {
		n := len(pr.each)
		pr.each = slices.DeleteFunc(pr.each, func(e reserved) bool { return !e.until.IsZero() && over(e) })
		some = some || len(pr.each) < n
		if len(pr.each) == 0 {
			delete(l.reservations, k)
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

// oldestBlocked takes up to so many first items of key queues that are blocked, read before a position,
// the oldest first.
func (l *keyQueues) oldestBlocked(most int, before int64) (items []*item) {
	for len(items) < most {
		var in *keyQueue
		for _, other := range l.line {
			if p := other.items[0]; p.task.Policy != nil && p.position < before && (in == nil || p.position < in.items[0].position) {
				in = other
			}
		}
		if in == nil {
			break
		}
		p := l.take(in)
		p.opensAt, p.before = in.at, p.before[:0]
		items = append(items, p)
	}
	return items
}

const (
	// againRate is how soon a key queue is asked again that a rate, a gate or somebody who
	// closed one has blocked.
	againRate = time.Second
	// Where a rule limits how many run at once, an instant is that at which leases end
	// if nobody gives one back: key queues are asked again after againLease to againLeaseMax,
	// ever less often while they are still blocked.
	againLease    = 20 * time.Millisecond
	againLeaseMax = 250 * time.Millisecond
	// againMost is how many key queues of a rule are asked again at once.
	againMost = 4
)

// blockedKeys are the key queues that are blocked until an instant that Redis answered. That may come
// nearer: somebody opens what was closed, raises a limit, or gives a lease back. Of the
// key queues of one binding rule the againMost that have not been asked for longest are asked
// again after a time; one that is still blocked stays where it was. For each that gained,
// which may go or has to wait for less than half as long now, two others are asked at
// once, againMost at least. So Redis is asked againMost times in a second and rule (of a
// policy with leases in 20 ms to 250 ms), and againMost times for each that gained: with
// 1000 phones blocked by 1/1h and one of them opened, 4 times a second, and that one goes
// within 250 s.
type blockedKeys struct {
	least, longest time.Duration // between two times
	rules          map[string]*blockedByRule
	again          []asked // not heard of yet
}

// blockedByRule are the key queues that one rule blocked.
type blockedByRule struct {
	keyQueues list.List // of *keyQueue; the one in front was asked before the others
	next      time.Time // when to ask again
	wait      time.Duration
	most      int // so many at once
	left      int // of these
}

// asked is an item that was asked for before its instant.
type asked struct {
	item *item
	by   *blockedByRule
}

// blockUntil puts an item back whose key queue a rule blocked.
func (l *keyQueues) blockUntil(p *item, rule string, at, now time.Time) {
	l.back(p, at)
	in := l.byKey[p.queueKey]
	in.most = 0
	if in.by != nil || at.Sub(now) <= l.least {
		return
	}
	by := l.rules[rule]
	if by == nil {
		by = &blockedByRule{most: againMost, wait: l.least}
		l.rules[rule] = by
	}
	if by.keyQueues.Len() == 0 {
		by.next = later(by.next, now.Add(by.wait))
	}
	in.by, in.place = by, by.keyQueues.PushBack(in)
}

// dropRetry says that a key queue is not asked again.
func (l *keyQueues) dropRetry(in *keyQueue) {
	if in.by != nil {
		in.by.keyQueues.Remove(in.place)
		in.by, in.place = nil, nil
	}
}

// nextRetry takes an item of a key queue that is blocked and is to be asked again, as
// [keyQueues.next] does; nil when there is no such item.
func (l *keyQueues) nextRetry(now time.Time) *item {
	for _, by := range l.rules {
		if by.next.After(now) {
			continue
		}
		if by.left == 0 {
			by.left = by.most
		}
		for by.left > 0 && by.keyQueues.Len() > 0 {
			in := by.keyQueues.Front().Value.(*keyQueue)
			if by.left--; by.left == 0 {
				by.rest(now)
			}
			if _, open := l.open(in.items[0], now); !open {
				by.keyQueues.MoveToBack(in.place)
				continue
			}
			l.dropRetry(in)
			p := l.take(in)
			p.opensAt = in.at
			l.reserve(p, now)
			l.again = append(l.again, asked{p, by})
			return p
		}
	}
	return nil
}

// rest is until it is asked again.
func (by *blockedByRule) rest(now time.Time) { by.left, by.next = 0, now.Add(by.wait) }

// retriesAnswered notes what became of the items that were asked for again.
func (l *keyQueues) retriesAnswered(now time.Time) {
	gained := make(map[*blockedByRule]int)
	for _, a := range l.again {
		in, before := l.byKey[a.item.queueKey], a.item.opensAt.Sub(now)
		still := in != nil && in.items[0] == a.item
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
