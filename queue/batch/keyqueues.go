package batch

import (
	"container/heap"
	"container/list"
	"slices"
	"time"

	"github.com/headwayq/headway/internal/batchscripts"
	"github.com/headwayq/headway/queue/internal/backend"
	"github.com/headwayq/headway/throttle"
)

// item is an element on its way into a queue: it was read, and is not settled. It is settled when it was enqueued or refused for good.
// For its key queue the answer is enough: an item that was put back, to wait on, does not hold up a key queue that waits for it.
type item struct {
	Element
	position int64
	task     *backend.Task // nil when it can be no task, for fault
	bookedAt time.Time     // once it is booked

	queueKey       string             // elements of one key queue keep their order
	narrow         []throttle.KeyCost // of the rules on narrower keys than the widest, in the policy's order
	reservedBefore []int              // of each narrow key, the permits that were reserved before those of this item
	heldUntil      time.Time          // when its key queue was to open, of an item that is asked again before that
	narrowBooked   bool               // it is booked in a narrow line, whose ledger knows of it
}

// keyQueues hold the items that were read and may not go yet. The items of one narrowest key
// form a queue, in order. A key queue is blocked until an instant. It is also blocked while all
// permits of one of its narrow keys are reserved for booked elements whose instant has not come:
// the ledger of a narrow rule knows only what was spent. A reservation ends a
// moment after its instant, when the ledger knows of it (see spentBy). It stops to count before, once its
// permits are regained at the instant that was booked last. All times are those of one local clock.
// Key queues are not safe for concurrent use.
type keyQueues struct {
	width             func(rule int) int                 // the most that one may ask of a narrow rule at once
	regain            func(rule, cost int) time.Duration // how long after it was spent a cost can be asked for again
	last              time.Time                          // the instant that was booked last: the next is not before it
	byKey             map[string]*keyQueue
	heap              keyQueueHeap // all, the one first that opens first
	waitingForSettled []*keyQueue  // those that are blocked because of an unsettled item
	held              int          // how many items are in all of them
	reservations      map[narrowKey]*reservations
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
	regained time.Time // when its permits can be asked for again
}

// over is from when on a reservation does not count for anybody; false while that is not known.
func (e reserved) over() (time.Time, bool) {
	if e.regained.Before(e.until) {
		return e.regained, !e.until.IsZero()
	}
	return e.until, !e.until.IsZero()
}

type keyQueue struct {
	items           []*item // not empty
	key             string
	blockedUntil    time.Time      // it is blocked until then
	waitsForSettled bool           // it is blocked until every item on its way is settled, if that comes first
	busy            bool           // reservations of its narrow keys block it
	most            int            // how many items are taken before it is known how the first went; 0 for any number
	left            int            // how many of `most` were not taken yet
	index           int            // its place in the heap
	by              *blockedByRule // the rule that blocked it by an answer, if that rule can be asked again
	place           *list.Element  // its place among those that this rule blocked
}

func newKeyQueues(width func(rule int) int, regain func(rule, cost int) time.Duration) *keyQueues {
	return &keyQueues{
		width: width, regain: regain, byKey: make(map[string]*keyQueue), reservations: make(map[narrowKey]*reservations),
		blockedKeys: blockedKeys{least: againRate, longest: againRate, rules: make(map[string]*blockedByRule)},
	}
}

// add puts an item behind those of its key queue.
func (qs *keyQueues) add(p *item) {
	qs.held++
	if q := qs.byKey[p.queueKey]; q != nil {
		q.items = append(q.items, p)
		return
	}
	q := &keyQueue{key: p.queueKey, items: []*item{p}}
	qs.byKey[p.queueKey] = q
	heap.Push(&qs.heap, q)
}

// back puts an item that was taken before those of its key queue, which is blocked until at.
func (qs *keyQueues) back(p *item, at time.Time) {
	qs.forget(p)
	qs.held++
	q := qs.byKey[p.queueKey]
	if q == nil {
		q = &keyQueue{key: p.queueKey, items: []*item{p}, blockedUntil: at}
		qs.byKey[p.queueKey] = q
		heap.Push(&qs.heap, q)
		return
	}
	i, _ := slices.BinarySearchFunc(q.items, p, func(a, b *item) int { return int(a.position - b.position) })
	if q.waitsForSettled {
		q.blockedUntil, q.waitsForSettled = at, false
	}
	busy := q.busy && q.blockedUntil.After(at)
	if p.heldUntil.IsZero() { // otherwise this is the newer answer
		at = later(q.blockedUntil, at)
	}
	q.items = slices.Insert(q.items, i, p)
	qs.setBlocked(q, at)
	q.busy = busy
}

// setBlocked blocks a key queue until another instant than before.
func (qs *keyQueues) setBlocked(q *keyQueue, at time.Time) {
	q.blockedUntil, q.busy = at, false
	heap.Fix(&qs.heap, q.index)
}

// next takes the first item that may go: the one whose key queue has been open for longest.
// Until it is said how it went ([keyQueues.fed], [keyQueues.forget], [keyQueues.back]) its permits
// are reserved. nil when none may go.
func (qs *keyQueues) next(now time.Time) *item {
	for len(qs.heap) > 0 && !qs.heap[0].blockedUntil.After(now) {
		q := qs.heap[0]
		qs.dropRetry(q)
		allTried := q.most > 0 && q.left == 0
		again, room := qs.roomFor(q.items[0], now)
		switch {
		case allTried || !room && again.IsZero():
			qs.waitForSettled(q, now)
			continue
		case !room:
			qs.blockForReservations(q, again)
			continue
		case q.most > 0:
			q.left--
		}
		p := qs.take(q)
		p.heldUntil = time.Time{}
		qs.reserve(p, now)
		return p
	}
	return nil
}

// waitForSettled blocks a key queue until every item that is on its way is settled.
func (qs *keyQueues) waitForSettled(q *keyQueue, now time.Time) {
	qs.setBlocked(q, now.Add(unsettledPoll))
	q.waitsForSettled, qs.waitingForSettled = true, append(qs.waitingForSettled, q)
}

// blockForReservations blocks a key queue until reservations of its narrow keys are over.
func (qs *keyQueues) blockForReservations(q *keyQueue, until time.Time) {
	qs.setBlocked(q, until)
	q.busy = true
}

// take takes the first item of a key queue.
func (qs *keyQueues) take(q *keyQueue) *item {
	p := q.items[0]
	p.narrowBooked = false
	qs.held--
	if q.items[0] = nil; len(q.items) > 1 {
		q.items = q.items[1:]
		heap.Fix(&qs.heap, q.index)
		return p
	}
	qs.dropRetry(q)
	heap.Remove(&qs.heap, q.index)
	delete(qs.byKey, q.key)
	return p
}

// nextOpening is when the first key queue opens, or is asked again; false when there is no key queue.
func (qs *keyQueues) nextOpening() (time.Time, bool) {
	if len(qs.heap) == 0 {
		return time.Time{}, false
	}
	at := qs.heap[0].blockedUntil
	for _, by := range qs.rules {
		if by.keyQueues.Len() > 0 && by.next.Before(at) {
			at = by.next
		}
	}
	return at, true
}

// settled says that every item is settled now: key queues that waited for one are looked at
// again.
func (qs *keyQueues) settled(now time.Time) {
	for _, q := range qs.waitingForSettled {
		if qs.byKey[q.key] == q && q.waitsForSettled {
			q.waitsForSettled = false
			q.most *= 2
			q.left = q.most
			qs.setBlocked(q, now)
		}
	}
	qs.waitingForSettled = qs.waitingForSettled[:0]
	qs.retriesAnswered(now)
}

// unsettledPoll is how soon a key queue that waits for an unsettled item is looked at again, if
// nobody says before that all items are settled.
const unsettledPoll = 20 * time.Millisecond

// roomFor says whether the narrow keys of an item have permits left, and otherwise when to
// look again: zero for when the unsettled items are settled.
func (qs *keyQueues) roomFor(p *item, now time.Time) (again time.Time, room bool) {
	room = true
	for i, w := range p.narrow {
		res := qs.reservations[narrowKey{i, w.Key}]
		if res == nil {
			continue
		}
		res.expire(now)
		if over := res.sum(later(now, qs.last)) + w.Cost - max(qs.width(i), w.Cost); over > 0 {
			free, known := res.free(over, now)
			if !known {
				return time.Time{}, false
			}
			again, room = later(again, free), false
		}
	}
	return again, room
}

// expire drops what the ledger knows by now.
func (res *reservations) expire(now time.Time) {
	res.each = slices.DeleteFunc(res.each, func(e reserved) bool { return !e.until.IsZero() && !e.until.After(now) })
}

// sum is what counts for one who is booked for an instant.
func (res *reservations) sum(at time.Time) (sum int) {
	for _, e := range res.each {
		if e.until.IsZero() || e.regained.After(at) {
			sum += e.cost
		}
	}
	return sum
}

// free is when so many permits more will count no more; false while that is not known.
func (res *reservations) free(need int, now time.Time) (time.Time, bool) {
	var times []reserved
	for _, e := range res.each {
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

func (qs *keyQueues) reserve(p *item, now time.Time) {
	p.reservedBefore = p.reservedBefore[:0]
	for i, w := range p.narrow {
		k := narrowKey{i, w.Key}
		res := qs.reservations[k]
		if res == nil {
			res = &reservations{}
			qs.reservations[k] = res
		}
		p.reservedBefore = append(p.reservedBefore, res.sum(later(now, qs.last)))
		res.each = append(res.each, reserved{position: p.position, cost: w.Cost})
	}
}

// fed notes that an item was enqueued for an instant, and until when the ledgers may not
// know of it.
func (qs *keyQueues) fed(p *item, at, until time.Time) {
	if p.narrowBooked {
		return
	}
	if !at.IsZero() {
		qs.last = at // earlier than the one before when the wide line was opened early
	}
	for i, w := range p.narrow {
		res := qs.reservations[narrowKey{i, w.Key}]
		if res == nil {
			continue
		}
		for n := range res.each {
			if e := &res.each[n]; e.position == p.position {
				e.until, e.regained = until, at.Add(qs.regain(i, w.Cost))
			}
		}
	}
}

// forget drops the reservations of an item that was not enqueued.
func (qs *keyQueues) forget(p *item) {
	for i, w := range p.narrow {
		k := narrowKey{i, w.Key}
		res := qs.reservations[k]
		if res == nil {
			continue
		}
		res.each = slices.DeleteFunc(res.each, func(e reserved) bool { return e.position == p.position })
		if len(res.each) == 0 {
			delete(qs.reservations, k)
		}
	}
}

// expire drops the reservations that are over; without it keys that do not come again would
// stay in memory.
func (qs *keyQueues) expire(now time.Time) {
	for k, res := range qs.reservations {
		if res.expire(now); len(res.each) == 0 {
			delete(qs.reservations, k)
		}
	}
}

// keyQueueHeap has the key queue that opens first in front; of two, the one whose first item
// was read earlier.
type keyQueueHeap []*keyQueue

func (h keyQueueHeap) Len() int { return len(h) }
func (h keyQueueHeap) Less(i, j int) bool {
	if !h[i].blockedUntil.Equal(h[j].blockedUntil) {
		return h[i].blockedUntil.Before(h[j].blockedUntil)
	}
	return h[i].items[0].position < h[j].items[0].position
}
func (h keyQueueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push and Pop are for container/heap.
func (h *keyQueueHeap) Push(x any) {
	q := x.(*keyQueue)
	q.index = len(*h)
	*h = append(*h, q)
}

// Pop is said at [keyQueueHeap.Push].
func (h *keyQueueHeap) Pop() any {
	old := *h
	q := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return q
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// unknownAt are the positions of what was fed and is not known to the ledgers before an instant.
func (qs *keyQueues) unknownAt(at time.Time) (positions []int64) {
	for _, res := range qs.reservations {
		for _, e := range res.each {
			if e.until.After(at) {
				positions = append(positions, e.position)
			}
		}
	}
	slices.Sort(positions)
	return slices.Compact(positions)
}

// dropAll is drop for all that was fed: nothing is unfinished. Who is booked next may come at once.
func (qs *keyQueues) dropAll(now time.Time) {
	if len(qs.reservations) > 0 {
		qs.drop(now, func(reserved) bool { return true })
	}
	qs.last = time.Time{}
}

// drop drops reservations of what was fed, and has key queues looked at again that wait for them.
func (qs *keyQueues) drop(now time.Time, over func(reserved) bool) {
	some := false
	for k, res := range qs.reservations {
		n := len(res.each)
		res.each = slices.DeleteFunc(res.each, func(e reserved) bool { return !e.until.IsZero() && over(e) })
		some = some || len(res.each) < n
		if len(res.each) == 0 {
			delete(qs.reservations, k)
		}
	}
	if !some {
		return
	}
	for _, q := range qs.byKey {
		if q.busy && q.blockedUntil.After(now) {
			qs.setBlocked(q, now)
		}
	}
}

// oldestBlocked takes up to so many first items of key queues that are blocked, read before a position,
// the oldest first.
func (qs *keyQueues) oldestBlocked(most int, before int64) (items []*item) {
	for len(items) < most {
		var q *keyQueue
		for _, other := range qs.heap {
			if p := other.items[0]; p.task.Policy != nil && p.position < before && (q == nil || p.position < q.items[0].position) {
				q = other
			}
		}
		if q == nil {
			break
		}
		p := qs.take(q)
		p.heldUntil, p.reservedBefore = q.blockedUntil, p.reservedBefore[:0]
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
	keyQueues list.List     // of *keyQueue; the one in front was asked before the others
	next      time.Time     // when to ask again
	wait      time.Duration // between two times
	most      int           // how many are asked again at once
	left      int           // how many of these have not been asked yet
}

// asked is an item that was asked for before its instant.
type asked struct {
	item *item
	by   *blockedByRule
}

// blockUntil puts an item back whose key queue a rule blocked.
func (qs *keyQueues) blockUntil(p *item, rule string, at, now time.Time) {
	qs.back(p, at)
	q := qs.byKey[p.queueKey]
	q.most = 0
	if q.by != nil || at.Sub(now) <= qs.least {
		return
	}
	by := qs.rules[rule]
	if by == nil {
		by = &blockedByRule{most: againMost, wait: qs.least}
		qs.rules[rule] = by
	}
	if by.keyQueues.Len() == 0 {
		by.next = later(by.next, now.Add(by.wait))
	}
	q.by, q.place = by, by.keyQueues.PushBack(q)
}

// dropRetry says that a key queue is not asked again.
func (qs *keyQueues) dropRetry(q *keyQueue) {
	if q.by != nil {
		q.by.keyQueues.Remove(q.place)
		q.by, q.place = nil, nil
	}
}

// nextRetry takes an item of a key queue that is blocked and is to be asked again, as
// [keyQueues.next] does; nil when there is no such item.
func (qs *keyQueues) nextRetry(now time.Time) *item {
	for _, by := range qs.rules {
		if by.next.After(now) {
			continue
		}
		if by.left == 0 {
			by.left = by.most
		}
		for by.left > 0 && by.keyQueues.Len() > 0 {
			q := by.keyQueues.Front().Value.(*keyQueue)
			if by.left--; by.left == 0 {
				by.rest(now)
			}
			if _, open := qs.roomFor(q.items[0], now); !open {
				by.keyQueues.MoveToBack(q.place)
				continue
			}
			qs.dropRetry(q)
			p := qs.take(q)
			p.heldUntil = q.blockedUntil
			qs.reserve(p, now)
			qs.again = append(qs.again, asked{p, by})
			return p
		}
	}
	return nil
}

// rest is until it is asked again.
func (by *blockedByRule) rest(now time.Time) { by.left, by.next = 0, now.Add(by.wait) }

// retriesAnswered notes what became of the items that were asked for again.
func (qs *keyQueues) retriesAnswered(now time.Time) {
	gained := make(map[*blockedByRule]int)
	for _, a := range qs.again {
		q, before := qs.byKey[a.item.queueKey], a.item.heldUntil.Sub(now)
		still := q != nil && q.items[0] == a.item
		gained[a.by] += 0
		if !still || q.blockedUntil.Sub(now) < before/2 {
			gained[a.by]++
		}
		if q != nil && !still {
			q.most, q.left = 2, 2
			qs.setBlocked(q, now)
		}
	}
	for by, n := range gained {
		by.most = min(max(2*n, againMost), batchscripts.ElementsMax)
		if n == 0 {
			by.wait = min(2*by.wait, qs.longest)
			by.rest(now)
			continue
		}
		by.wait, by.left, by.next = qs.least, 0, now
	}
	clear(qs.again)
	qs.again = qs.again[:0]
}
