package batch

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
)

// keyQueuesRig is key queues with two narrow rules: one permit each second to a phone, three each
// second to a tenant.
type keyQueuesRig struct {
	*testing.T
	*keyQueues
	start time.Time
	n     int64
}

func newLaneRig(t *testing.T) *keyQueuesRig {
	t.Helper()
	return &keyQueuesRig{T: t, start: time.Unix(1_800_000_000, 0), keyQueues: newKeyQueues(
		func(rule int) int { return []int{1, 3}[rule] }, func(int, int) time.Duration { return time.Second },
	)}
}

func (r *keyQueuesRig) at(in time.Duration) time.Time { return r.start.Add(in) }

// put adds a item to a phone of a tenant.
func (r *keyQueuesRig) put(phone, tenant string) {
	p := &item{Element: Element{ID: fmt.Sprint(r.n)}, position: r.n, queueKey: phone, narrow: []throttle.KeyCost{{Key: phone, Cost: 1}}}
	if tenant != "" {
		p.narrow = append(p.narrow, throttle.KeyCost{Key: tenant, Cost: 1})
	}
	r.n++
	r.add(p)
}

// want takes the next item at an instant, "" for none.
func (r *keyQueuesRig) want(in time.Duration, id string) *item {
	r.Helper()
	p := r.next(r.at(in))
	got := ""
	if p != nil {
		got = p.ID
	}
	if got != id {
		r.Fatalf("next(%v) = %q, want %q", in, got, id)
	}
	return p
}

func TestKeyQueuesKeepTheOrderOfAKey(t *testing.T) {
	t.Parallel()
	r := newLaneRig(t)
	for range 2 {
		r.put("a", "")
		r.put("b", "")
	}
	a, b := r.want(0, "0"), r.want(0, "1")
	r.want(0, "")                                                   // both have one unsettled
	r.fed(a, r.at(50*time.Millisecond), r.at(150*time.Millisecond)) // in the wide line
	r.back(b, r.at(300*time.Millisecond))                           // its ledger said so
	r.settled(r.at(0))
	r.want(149*time.Millisecond, "")
	r.want(150*time.Millisecond, "2") // the ledger knows of 0 by now
	r.want(299*time.Millisecond, "")
	r.want(300*time.Millisecond, "1") // before 3, which came later
	if r.held != 1 {
		t.Errorf("%d items are held, want 1", r.held)
	}
}

// What was booked is not reserved any more before one who is booked so much later that it
// has been regained.
func TestKeyQueuesWithALongLine(t *testing.T) {
	t.Parallel()
	r := newLaneRig(t)
	for range 3 {
		r.put("a", "")
	}
	r.put("b", "")
	r.fed(r.want(0, "0"), r.at(5*time.Second), r.at(5100*time.Millisecond))
	b := r.want(0, "3")
	r.want(0, "")
	r.fed(b, r.at(6*time.Second), r.at(6100*time.Millisecond)) // the line is as long as that
	r.settled(r.at(0))
	r.want(0, "") // it was looked at before, and waits until 0 has been spent
	r.want(5100*time.Millisecond, "1")
	r = newLaneRig(t)
	r.put("a", "")
	r.fed(r.want(0, "0"), r.at(5*time.Second), r.at(5100*time.Millisecond))
	r.put("b", "")
	r.fed(r.want(0, "1"), r.at(6*time.Second), r.at(6100*time.Millisecond))
	r.put("a", "")
	if p := r.want(0, "2"); p.reservedBefore[0] != 0 {
		t.Errorf("%d permits are reserved before it, want none: it comes at 6 s at least", p.reservedBefore[0])
	}
}

// A key with three permits has three items booked at once; each is asked for with those
// before it.
func TestKeyQueuesOfAWiderKey(t *testing.T) {
	t.Parallel()
	r := newLaneRig(t)
	for i := range 5 {
		r.put(fmt.Sprint("phone", i), "acme")
	}
	var items []*item
	for i := range 3 {
		p := r.want(0, fmt.Sprint(i))
		if p.reservedBefore[0] != 0 || p.reservedBefore[1] != i {
			t.Errorf("piece %d is asked for with %v before it, want [0 %d]", i, p.reservedBefore, i)
		}
		items = append(items, p)
	}
	r.want(0, "")
	r.forget(items[1]) // it was refused
	r.settled(r.at(0))
	r.want(0, "3")
	r.want(0, "")
	for i, p := range []*item{items[0], items[2]} {
		r.fed(p, r.at(0), r.at(time.Duration(i+1)*100*time.Millisecond))
	}
	r.settled(r.at(0))
	r.want(99*time.Millisecond, "")
	r.want(100*time.Millisecond, "4")
	r.expire(r.at(time.Hour))
	if n := len(r.reservations); n != 3 { // of 3 and 4, which are unsettled, and of their tenant
		t.Errorf("%d keys have reservations, want 3", n)
	}
}

// Any order of calls: nothing is lost, no key is given out twice, and each keeps its order.
func TestKeyQueuesAtRandom(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 3)) // #nosec G404
		r := newLaneRig(t)
		unsettled := map[string]*item{}
		last := map[string]int64{}
		now, out := time.Duration(0), 0
		for r.n < 300 || r.held > 0 || len(unsettled) > 0 {
			now += time.Duration(rng.IntN(40)) * time.Millisecond
			switch rng.IntN(4) {
			case 0, 1:
				if r.n < 300 {
					r.put(fmt.Sprint("phone", rng.IntN(20)), "")
				}
			case 2:
				p := r.next(r.at(now))
				if p == nil {
					continue
				}
				if unsettled[p.queueKey] != nil {
					t.Fatalf("seed %d: two items of %s are unsettled", seed, p.queueKey)
				}
				if before, ok := last[p.queueKey]; ok && p.position < before {
					t.Fatalf("seed %d: piece %d comes after %d", seed, p.position, before)
				}
				unsettled[p.queueKey] = p
			case 3:
				for queue, p := range unsettled {
					delete(unsettled, queue)
					if rng.IntN(2) == 0 {
						r.back(p, r.at(now+time.Duration(rng.IntN(300))*time.Millisecond))
						continue
					}
					last[queue] = p.position
					out++
					r.fed(p, r.at(now), r.at(now+100*time.Millisecond))
				}
				r.settled(r.at(now))
			}
		}
		if out != 300 || len(r.byKey) != 0 || len(r.heap) != 0 {
			t.Fatalf("seed %d: %d items came out, %d key queues are left, want 300 and none", seed, out, len(r.byKey))
		}
	}
}

func TestTrack(t *testing.T) {
	t.Parallel()
	tr := cursor{next: 7, mark: "m6"}
	for i := range 5 {
		if got := tr.read(fmt.Sprint("m", 7+i)); got != int64(7+i) {
			t.Fatalf("read = %d, want %d", got, 7+i)
		}
	}
	tr.settle([]int64{8, 10, 3, 99}) // some are none of its own
	if tr.next != 7 || tr.mark != "m6" {
		t.Errorf("the cursor is %d %s, want 7 m6", tr.next, tr.mark)
	}
	if cursor, mark := tr.with([]int64{7}); cursor != 9 || mark != "m8" {
		t.Errorf("with 7 it is %d %s, want 9 m8", cursor, mark)
	}
	if tr.all([]int64{7, 9}) || !tr.all([]int64{7, 9, 11}) {
		t.Error("all is settled with 7, 9 and 11, and not before")
	}
	tr.settle([]int64{7})
	if tr.next != 9 || tr.mark != "m8" || tr.at() != (Position{Read: 12, Mark: "m11"}) {
		t.Errorf("the cursor is %d %s, the source at %v, want 9 m8, 12 m11", tr.next, tr.mark, tr.at())
	}
	tr.settle([]int64{9, 11})
	if tr.next != 12 || tr.at() != (Position{Read: 12, Mark: "m11"}) {
		t.Errorf("the cursor is %d, the source at %v, want 12", tr.next, tr.at())
	}
}
