package batch

import (
	"fmt"
	"testing"
	"time"
)

// askAgain takes what is to be asked again at an instant, and has each shut until then.
func (r *keyQueuesRig) askAgain(in time.Duration, until func(p *item) time.Duration) (ids []string) {
	r.Helper()
	for {
		p := r.nextRetry(r.at(in))
		if p == nil {
			break
		}
		ids = append(ids, p.ID)
		r.blockUntil(p, "phone", r.at(until(p)), r.at(in))
	}
	r.settled(r.at(in))
	return ids
}

// rigOfBusyPhones has so many key queues that are shut for an hour.
func rigOfBusyPhones(t *testing.T, n int) *keyQueuesRig {
	t.Helper()
	r := newLaneRig(t)
	for i := range n {
		r.put(fmt.Sprint("phone", i), "")
		r.put(fmt.Sprint("phone", i), "")
	}
	for i := range n {
		r.blockUntil(r.want(0, fmt.Sprint(2*i)), "phone", r.at(time.Hour), r.at(0))
	}
	r.settled(r.at(0))
	return r
}

// Of a thousand phones that are shut, four are asked each second, each in its turn, and
// stay where they were.
func TestKeyQueuesAskFewAgain(t *testing.T) {
	t.Parallel()
	const n, seconds = 1000, 500
	r := rigOfBusyPhones(t, n)
	times := make(map[string]int)
	asked := 0
	for ms := range time.Duration(seconds * 10) {
		ids := r.askAgain(100*ms*time.Millisecond, func(*item) time.Duration { return time.Hour })
		asked += len(ids)
		for _, id := range ids {
			times[id]++
		}
	}
	if asked > againMost*seconds || asked < againMost*(seconds-2) {
		t.Errorf("%d were asked in %d s, want %d a second", asked, seconds, againMost)
	}
	for i := range n {
		if id := fmt.Sprint(2 * i); times[id] < 1 || times[id] > 2 {
			t.Errorf("%s was asked %d times, want each in turn", id, times[id])
		}
	}
	r.want(time.Hour-time.Millisecond, "")
	r.want(time.Hour, "0")
	r.want(time.Hour, "2")
}

// For each that was asked again and gained two others follow at once.
func TestKeyQueuesFollowThoseThatGained(t *testing.T) {
	t.Parallel()
	at := 2 * time.Second
	for _, tc := range []struct {
		gains int // one of so many
		want  []int
	}{{1, []int{4, 8, 16, 32, 64, 100, 100}}, {4, []int{4, 4, 4, 4}}, {1000, []int{4, 4, 0}}} {
		r := rigOfBusyPhones(t, 1000)
		for round, want := range tc.want {
			ids := r.askAgain(at, func(p *item) time.Duration {
				if p.position/2%int64(tc.gains) == 0 {
					return 20 * time.Minute
				}
				return time.Hour
			})
			if len(ids) != want {
				t.Errorf("one of %d gains: round %d asks %d, want %d", tc.gains, round, len(ids), want)
			}
		}
	}
}

// The next of a key queue goes when the one before did that was asked again.
func TestKeyQueuesGoOnBehindOneAskedAgain(t *testing.T) {
	t.Parallel()
	const at = 2 * time.Second
	r := rigOfBusyPhones(t, 10)
	before := r.held
	p := r.nextRetry(r.at(at))
	if p == nil || r.held != before-1 {
		t.Fatal("none is asked again")
	}
	r.fed(p, r.at(at), r.at(at+100*time.Millisecond))
	r.settled(r.at(at))
	if q := r.next(r.at(at + 100*time.Millisecond)); q == nil || q.position != p.position+1 {
		t.Errorf("behind %d comes %v, want the next of its key queue", p.position, q)
	}
}

// Where leases are given back key queues are asked again soon, and ever less often.
func TestKeyQueuesAskAgainForLeases(t *testing.T) {
	t.Parallel()
	r := newLaneRig(t)
	r.least, r.longest = againLease, againLeaseMax
	r.put("a", "")
	r.blockUntil(r.want(0, "0"), "phone", r.at(time.Minute), r.at(0))
	r.settled(r.at(0))
	var got []time.Duration
	for ms := range time.Duration(1000) {
		if len(r.askAgain(ms*time.Millisecond, func(*item) time.Duration { return time.Minute })) > 0 {
			got = append(got, ms)
		}
	}
	if want := "[20 60 140 300 550 800]"; fmt.Sprintf("%d", got) != want {
		t.Errorf("asked again at %d ms, want %s", got, want)
	}
}

// A key queue that was shut and opened early gives 2, 4, 8 and so on, until one has to wait.
func TestKeyQueuesOpenALittle(t *testing.T) {
	t.Parallel()
	r := newLaneRig(t)
	for range 20 {
		r.put("a", "")
		in := r.byKey["a"]
		in.items[len(in.items)-1].narrow = nil
	}
	r.blockUntil(r.want(0, "0"), "phone", r.at(time.Hour), r.at(0))
	r.settled(r.at(0))
	if p := r.nextRetry(r.at(time.Second)); p == nil {
		t.Fatal("it is not asked again")
	}
	r.settled(r.at(time.Second))
	for _, want := range []int{2, 4, 8} {
		n := 0
		for r.next(r.at(time.Second)) != nil {
			n++
		}
		if n != want {
			t.Errorf("%d are taken at once, want %d", n, want)
		}
		r.settled(r.at(time.Second))
	}
}

// Nothing is reserved any more for what has ended, whenever it was to run; the key queues behind it open.
func TestKeyQueuesForgetWhatHasEnded(t *testing.T) {
	t.Parallel()
	const later = 50 * time.Second
	r := newLaneRig(t)
	for range 2 {
		r.put("a", "")
		r.put("b", "")
	}
	for _, id := range []string{"0", "1"} {
		r.fed(r.want(0, id), r.at(later), r.at(later+spentBy))
	}
	r.settled(r.at(0))
	r.want(0, "")
	if unknown := r.unknownAt(r.at(overBefore)); fmt.Sprint(unknown) != "[0 1]" {
		t.Errorf("%v are unknown, want both", unknown)
	}
	r.drop(r.at(0), func(e reserved) bool { return e.position == 0 })
	r.want(0, "2") // and not 3, whose phone has one unfinished
	r.dropAll(r.at(0))
	r.want(0, "3")
	if len(r.reservations) != 2 || !r.last.IsZero() {
		t.Errorf("%d keys have reservations, and %v was booked last; want two unsettled, and none", len(r.reservations), r.last)
	}
}

// The wide line was opened early: who is booked next comes before who was booked last.
func TestKeyQueuesWhoseLineGotShorter(t *testing.T) {
	t.Parallel()
	r := newLaneRig(t)
	r.put("a", "")
	r.fed(r.want(0, "0"), r.at(50*time.Second), r.at(50*time.Second+spentBy))
	r.put("b", "")
	r.fed(r.want(0, "1"), r.at(time.Second), r.at(time.Second+spentBy))
	r.put("b", "")
	r.settled(r.at(0))
	r.want(0, "") // it would be booked for 1 s, and not for 50 s
	if p := r.want(time.Second+spentBy, "2"); p.reservedBefore[0] != 0 {
		t.Errorf("%d permits are reserved before it, want none", p.reservedBefore[0])
	}
}
