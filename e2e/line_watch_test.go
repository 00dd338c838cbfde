package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
)

// How often a line is looked at: while it grows, and while it is longer than
// one look can tell.
const (
	watchPace     = 20 * time.Millisecond
	watchPaceLong = 500 * time.Millisecond
)

// watchLine looks at the line of a phone from outside until all messages were
// seen in it or are sent, and returns the order in which they joined. A line
// grows at its end alone, so the looks one after the other give the whole;
// messages that joined and left between two looks are missing.
func (s *stage) watchLine(to string, within time.Duration) []string {
	s.Helper()
	var order []string
	seen := make(map[string]bool)
	for end, pace := time.Now().Add(within), watchPace; ; time.Sleep(pace) {
		sent := s.gateway.distinct() // before the look: what leaves the line in between is seen twice, never missed
		state, err := s.limiter.Peek(s.Context(), to, throttle.PeekMax)
		if err != nil {
			s.Fatal(err)
		}
		for _, w := range state.Booked {
			id := w.Job[strings.LastIndex(w.Job, ":")+1:]
			if !seen[id] {
				seen[id] = true
				order = append(order, id)
			}
		}
		if sent+state.Waiting >= s.sent { // nobody joins any more
			if len(state.Booked) == state.Waiting {
				return order
			}
			pace = watchPaceLong
		}
		if time.Now().After(end) {
			s.Fatalf("not all messages were seen in the line after %v: %d of %d; %s", within, len(order), s.sent, s.where())
		}
	}
}

// grace is how long after its last promise the head of a line keeps its place;
// then the next goes first.
const grace = 100 * time.Millisecond

// overtaken compares the order of grants with that of the line. A head that
// came later than grace after its promise loses its place for the moment: those
// are counted in excused. Every other one that was overtaken is a fault.
func overtaken(all []record, order []string, grants []grant) (excused int, faults []string) {
	place := make(map[string]int)
	for i, id := range order {
		place[id] = i
	}
	first := make(map[string]record) // the last grant that counts for a message is its first
	for _, r := range ofKind(all, kindGranted) {
		if _, ok := first[r.Task]; !ok {
			first[r.Task] = r
		}
	}
	var granted []string
	for _, g := range grants {
		if _, ok := place[g.id]; ok && !slices.Contains(granted, g.id) {
			granted = append(granted, g.id)
		}
	}
	for i, id := range granted {
		for _, before := range granted[:i] {
			if place[before] < place[id] {
				continue
			}
			// before stood behind id, and went first
			if promise := lastPromise(all, id, first[before].Wrote); promise != 0 && first[before].Wrote > promise+grace.Microseconds() {
				excused++
				continue
			}
			faults = append(faults, fmt.Sprintf("%s (place %d) went before %s (place %d)", before, place[before], id, place[id]))
		}
	}
	return excused, faults
}

// lastPromise is the instant that a task was told last before t.
func lastPromise(all []record, id string, t int64) int64 {
	var last int64
	for _, r := range all {
		if r.Task == id && r.Wrote < t && r.At != 0 && (r.Kind == kindDeferred || r.Kind == kindMoved) {
			last = r.At
		}
	}
	return last
}

// TestJudgesBite shows the judges what they must find.
func TestJudgesBite(t *testing.T) {
	t.Parallel()
	const W = 100 * time.Millisecond
	phones := map[string]string{"m00000": "a", "m00001": "a", "m00002": "b"}
	granted := func(id string, life int, at int64) record {
		return record{Kind: kindGranted, Task: id, Life: life, At: at, Wrote: at}
	}
	for _, tc := range []struct {
		name string
		got  []string
		want int
	}{
		{"a gap of W", breaches(grantsOf([]record{granted("m00001", 1, 200_000), granted("m00000", 1, 100_000)}, phones), 1, W), 0},
		{"a gap of less", breaches(grantsOf([]record{granted("m00001", 1, 199_999), granted("m00000", 1, 100_000)}, phones), 1, W), 1},
		{"two phones", breaches(grantsOf([]record{granted("m00001", 1, 1), granted("m00002", 1, 1)}, phones), 1, W), 0},
		{"two of two permits", breaches(grantsOf([]record{granted("m00000", 1, 1), granted("m00001", 1, 1)}, phones), 2, W), 0},
		{"arrivals", tooClose([]arrival{{message: message{To: "a", Granted: 0}, At: 50_000}, {message: message{To: "a", Granted: 100_000}, At: 100_000}}, W, nil), 0},
		{"close arrivals", tooClose([]arrival{{message: message{To: "a", Granted: 1}, At: 50_000}, {message: message{To: "a", Granted: 90_000}, At: 100_000}}, W, nil), 1},
		{"close, but held up", tooClose([]arrival{{message: message{ID: "x", To: "a", Granted: 1}, At: 50_000}, {message: message{To: "a", Granted: 90_000}, At: 100_000}}, W,
			heldUp([]record{{Kind: kindGranted, Task: "x", Wrote: 1}}, []arrival{{message: message{ID: "x"}, At: 50_000}}, W)), 0},
		{"early", early([]record{{Kind: kindStart, At: 5, Wrote: 4}, {Kind: kindStart, At: 5, Wrote: 5}}), 1},
		{"in order", second(overtaken([]record{granted("x", 1, 1), granted("y", 1, 2)}, []string{"x", "y"}, []grant{{id: "x", at: 1}, {id: "y", at: 2}})), 0},
		{"out of order", second(overtaken([]record{granted("y", 1, 1), granted("x", 1, 2)}, []string{"x", "y"}, []grant{{id: "y", at: 1}, {id: "x", at: 2}})), 1},
		{"excused", second(overtaken([]record{{Kind: kindDeferred, Task: "x", At: 1}, granted("y", 1, 100_002), granted("x", 1, 200_002)},
			[]string{"x", "y"}, []grant{{id: "y", at: 100_002}, {id: "x", at: 200_002}})), 0},
		{"again after a kill", second(sentAgain([]record{{Kind: kindStart, Task: "x", Life: 1}, {Kind: kindDone, Task: "x", Life: 1}, {Kind: kindStart, Task: "x", Life: 2}},
			func(life int) bool { return life == 1 })), 0},
		{"again after it ended", second(sentAgain([]record{{Kind: kindStart, Task: "x", Life: 1}, {Kind: kindAcked, Task: "x", Life: 1}, {Kind: kindStart, Task: "x", Life: 2}},
			func(life int) bool { return life == 1 })), 1},
		{"again without a kill", second(sentAgain([]record{{Kind: kindStart, Task: "x", Life: 1}, {Kind: kindStart, Task: "x", Life: 2}},
			func(life int) bool { return life == 2 })), 1},
	} {
		if len(tc.got) != tc.want {
			t.Errorf("%s: faults = %q, want %d", tc.name, tc.got, tc.want)
		}
	}
	if most, _ := displacement([]grant{{id: "m00001"}, {id: "m00002"}, {id: "m00000"}}); most != 2 {
		t.Errorf("displacement = %d, want 2", most)
	}
}

func second(_ int, faults []string) []string { return faults }
