package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/internal/judge"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
	"github.com/headwayq/headway/worker"
)

// The judges look at records and arrivals and at nothing of the code under
// test. Windows are half open: a grant exactly W after another is allowed.

// maxFaults bounds how many faults of a kind are told one by one.
const maxFaults = 10

// grant is a message that was let in.
type grant struct {
	id, to string
	life   int
	at     int64
}

// grantsOf are all grants, in the order of their instants. Tasks that were
// granted and never reached their handler count: they were charged.
func grantsOf(all []record, phones map[string]string) []grant {
	var out []grant
	for _, r := range ofKind(all, kindGranted) {
		out = append(out, grant{id: r.Task, to: phones[r.Task], life: r.Life, at: r.At})
	}
	slices.SortStableFunc(out, func(a, b grant) int { return cmp.Compare(a.at, b.at) })
	return out
}

// breaches are the windows in which a phone had more than n grants: each grant
// comes W after the n-th before it, or later.
func breaches(grants []grant, n int, W time.Duration) []string {
	var faults []string
	for to, granted := range byKey(grants) {
		for _, i := range judge.Windows(spentBy(granted), n, W) {
			first, last := granted[i-n], granted[i] // so many grants too close: each costs one permit
			gap := time.Duration(last.at-first.at) * time.Microsecond
			faults = append(faults, fmt.Sprintf("%s: %s and %s were granted within %v", to, first.id, last.id, gap))
		}
	}
	return faults
}

// byKey sorts grants by phone, or by what stands in its place, and keeps their order.
func byKey(grants []grant) map[string][]grant {
	out := make(map[string][]grant)
	for _, g := range grants {
		out[g.to] = append(out[g.to], g)
	}
	return out
}

func spentBy(grants []grant) []judge.Spent {
	out := make([]judge.Spent, len(grants))
	for i, g := range grants {
		out[i] = judge.Spent{At: g.at, Cost: 1}
	}
	return out
}

// tooClose replays the gateway's log for a limit of one message: of two
// messages to a phone, the second arrived earlier than W after the grant of
// the first. A message that was held up on its way says nothing: when its
// handler had begun, no limiter could call it back.
func tooClose(arrivals []e2e.Arrival, W time.Duration, heldUp map[string]bool) []string {
	var faults []string
	last, byPhone := make(map[string]e2e.Arrival), make(map[string]*judge.Arrivals)
	for _, a := range arrivals {
		if heldUp[a.ID] {
			continue
		}
		if byPhone[a.Key] == nil {
			byPhone[a.Key] = &judge.Arrivals{N: 1, Window: W}
		}
		before := last[a.Key]
		last[a.Key] = a
		if byPhone[a.Key].Add(a.GrantedUs, a.ArrivedUs, 1) {
			gap := time.Duration(a.ArrivedUs-before.GrantedUs) * time.Microsecond
			faults = append(faults, fmt.Sprintf("%s: %s arrived %v after the grant of %s", a.Phone, a.ID, gap, before.ID))
		}
	}
	return faults
}

// heldUp are the messages that arrived long after the pool had looked at the
// age of their grant last: the process stood still in between. The pool tells
// that age with what it calls late.
func heldUp(all []record, arrivals []e2e.Arrival, W time.Duration) map[string]bool {
	type try struct {
		id   string
		life int
	}
	looked := make(map[try]int64)
	for _, r := range ofKind(all, kindGranted) {
		at := r.Wrote
		if r.Promised != 0 {
			at = max(r.Promised, r.From) + r.Late.Microseconds()
		}
		looked[try{r.Task, r.Life}] = at
	}
	out := make(map[string]bool)
	for _, a := range arrivals {
		if at, ok := looked[try{a.ID, a.Sender}]; ok && time.Duration(a.ArrivedUs-at)*time.Microsecond > W/10 {
			out[a.ID] = true
		}
	}
	return out
}

// early are the handlers that began before the instant of their grant.
func early(all []record) []string {
	var faults []string
	for _, r := range ofKind(all, kindStart) {
		if r.Wrote < r.At {
			faults = append(faults, fmt.Sprintf("%s: its handler began %d µs before its instant", r.Task, r.At-r.Wrote))
		}
	}
	return faults
}

// lateness is how long after the later of its last promise and the instant
// from which the ledger admits it each message that waited began, sorted.
func lateness(all []record) []time.Duration {
	var out []time.Duration
	for _, r := range ofKind(all, kindStart) {
		if r.Promised != 0 {
			out = append(out, time.Duration(r.Wrote-max(r.Promised, r.From))*time.Microsecond)
		}
	}
	slices.Sort(out)
	return out
}

// latenessFirst is the same against the first promise.
func latenessFirst(all []record) []time.Duration {
	first := make(map[string]int64)
	var out []time.Duration
	for _, r := range all {
		switch {
		case r.Kind == kindDeferred && r.At != 0 && first[r.Task] == 0:
			first[r.Task] = r.At
		case r.Kind == kindStart && first[r.Task] != 0:
			out = append(out, time.Duration(r.Wrote-first[r.Task])*time.Microsecond)
		}
	}
	slices.Sort(out)
	return out
}

// quantile of sorted durations, the upper one of two; zero of none.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// displacement is how far a message was let in from its place in the order of
// enqueueing, at most. Ids count up in that order.
func displacement(grants []grant) (most int, id string) {
	for rank, g := range grants {
		var n int
		if _, err := fmt.Sscanf(g.id, "m%d", &n); err != nil {
			continue
		}
		if d := max(rank-n, n-rank); d > most {
			most, id = d, g.id
		}
	}
	return most, id
}

// share is how much of what 1/W permits was used between the first grant and
// the last.
func share(grants []grant, W time.Duration) float64 {
	if len(grants) < 2 {
		return 0
	}
	took := time.Duration(grants[len(grants)-1].at-grants[0].at) * time.Microsecond
	return float64(len(grants)-1) * float64(W) / float64(took)
}

// sum adds up the counters of processes that ended gracefully.
func sum(all []record) worker.Stats {
	var s worker.Stats
	for _, r := range ofKind(all, kindStats) {
		s.Admissions += r.Stats.Admissions
		s.Granted += r.Stats.Granted
		s.Redeemed += r.Stats.Redeemed
		s.Booked += r.Stats.Booked
		s.Deferred += r.Stats.Deferred
		s.Refused += r.Stats.Refused
		s.Stale += r.Stats.Stale
		s.WakeChecks += r.Stats.WakeChecks
		s.Moved += r.Stats.Moved
		s.Wakes += r.Stats.Wakes
		s.NotRunAgain += r.Stats.NotRunAgain
		s.Postponed += r.Stats.Postponed
		s.LeasesLost += r.Stats.LeasesLost
		s.Lead = max(s.Lead, r.Stats.Lead)
	}
	return s
}

// sentAgain looks at messages that began more than once. Each time but the
// last must have been in a process that was killed before Redis had taken the
// task from it; what was not is a fault.
func sentAgain(all []record, killed func(life int) bool) (again int, faults []string) {
	type try struct {
		task string
		life int
	}
	acked := make(map[try]bool)
	lives := make(map[string][]int)
	for _, r := range all {
		switch r.Kind {
		case kindAcked:
			acked[try{r.Task, r.Life}] = true
		case kindStart:
			lives[r.Task] = append(lives[r.Task], r.Life)
		}
	}
	for _, task := range slices.Sorted(maps.Keys(lives)) {
		tries := lives[task]
		if len(tries) < 2 {
			continue
		}
		again++
		for _, life := range tries[:len(tries)-1] {
			if !killed(life) || acked[try{task, life}] {
				faults = append(faults, fmt.Sprintf("%s began in processes %v, and was not running in a killed one (%d)", task, tries, life))
			}
		}
	}
	return again, faults
}

// few are the first faults, and how many more there are.
func few(faults []string) string {
	if len(faults) <= maxFaults {
		return fmt.Sprintf("%d: %q", len(faults), faults)
	}
	return fmt.Sprintf("%d, the first: %q", len(faults), faults[:maxFaults])
}

// keyed are grants with the key of a rule in the place of the phone.
func (s *testbed) keyed(grants []grant, r queue.Rule) []grant {
	s.Helper()
	out := make([]grant, len(grants))
	for i, g := range grants {
		body, err := json.Marshal(s.messages[g.id])
		if err == nil {
			g.to, err = r.KeyOf(asynq.NewTask(typeSMS, body))
		}
		if err != nil {
			s.Fatal(err)
		}
		out[i] = g
	}
	return out
}

// breachesOf are the breaches of each rate among the rules, by the instants of the
// grants. How many run at once the gateway counts.
func (s *testbed) breachesOf(grants []grant) map[string][]string {
	s.Helper()
	faults := make(map[string][]string)
	for _, r := range s.policy.Rules {
		switch l := r.Limit; {
		case r.Gate != (gate.Gate{}) || l.IsConcurrent():
		case l.Kind() == "sliding":
			faults[r.Name] = breaches(s.keyed(grants, r), l.Permits(), l.Window())
		case l.Kind() == "gcra":
			faults[r.Name] = gcraBreaches(s.keyed(grants, r), l)
		default:
			s.Fatalf("nobody can judge rule %q, the limit %v", r.Name, l)
		}
	}
	return faults
}

// gcraBreaches are the grants that end a window of any length w in which a key had
// more than burst + n·w/W of them.
func gcraBreaches(grants []grant, l throttle.Limit) []string {
	rate := judge.Rate{N: l.Permits(), Window: l.Window(), Burst: l.Burst()}
	var faults []string
	for _, granted := range byKey(grants) {
		for _, early := range rate.Breaches(spentBy(granted)) {
			faults = append(faults, fmt.Sprintf("%s came %v early", granted[early.Index].id, early.By))
		}
	}
	return faults
}

// TestPolicyJudgesBite shows the judges of policies what they must find.
func TestPolicyJudgesBite(t *testing.T) {
	t.Parallel()
	limit, err := throttle.ParseLimit("gcra 2/1s burst 3")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		at   []int64 // ms
		want int
	}{
		{"the burst", []int64{0, 0, 0}, 0},
		{"more than the burst", []int64{0, 0, 0, 499}, 1},
		{"at the pace", []int64{0, 0, 0, 500, 1000, 1500}, 0},
		{"after a rest", []int64{0, 0, 0, 500, 3000, 3000, 3000, 3500}, 0},
		{"too much after a rest", []int64{0, 0, 0, 500, 1700, 1700, 1700}, 1},
		{"a window in the middle", []int64{0, 5000, 5000, 5000, 5499, 5999, 9000}, 2},
	} {
		var grants []grant
		for i, at := range tc.at {
			grants = append(grants, grant{id: fmt.Sprint(i), to: "acme", at: at * 1000})
		}
		if got := gcraBreaches(grants, limit); len(got) != tc.want {
			t.Errorf("%s: faults = %q, want %d", tc.name, got, tc.want)
		}
	}
	for _, tc := range []struct {
		name     string
		arrivals []e2e.Arrival
		want     int
	}{
		{"one after the other", []e2e.Arrival{{ArrivedUs: 1, LeftUs: 2}, {ArrivedUs: 2, LeftUs: 3}}, 1},
		{"one that is still there", []e2e.Arrival{{ArrivedUs: 1}, {ArrivedUs: 2, LeftUs: 3}, {ArrivedUs: 3, LeftUs: 4}}, 2},
		{"three", []e2e.Arrival{{ArrivedUs: 1, LeftUs: 9}, {ArrivedUs: 2, LeftUs: 5}, {ArrivedUs: 4, LeftUs: 6}}, 3},
	} {
		if got := mostAtOnce(crowds(tc.arrivals)); got != tc.want {
			t.Errorf("%s: at most %d at once, want %d", tc.name, got, tc.want)
		}
	}
}

// mostAtOnce is the largest of crowds.
func mostAtOnce(crowds []crowd) int {
	most := 0
	for _, c := range crowds {
		most = max(most, c.n)
	}
	return most
}

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
func (s *testbed) watchLine(to string, within time.Duration) []string {
	s.Helper()
	var order []string
	seen := make(map[string]bool)
	for end, pace := time.Now().Add(within), watchPace; ; time.Sleep(pace) {
		sent := s.gateway.Answered() // before the look: what leaves the line in between is seen twice, never missed
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
		{"arrivals", tooClose([]e2e.Arrival{{Key: "a", GrantedUs: 0, ArrivedUs: 50_000}, {Key: "a", GrantedUs: 100_000, ArrivedUs: 100_000}}, W, nil), 0},
		{"close arrivals", tooClose([]e2e.Arrival{{Key: "a", GrantedUs: 1, ArrivedUs: 50_000}, {Key: "a", GrantedUs: 90_000, ArrivedUs: 100_000}}, W, nil), 1},
		{"close, but held up", tooClose([]e2e.Arrival{{ID: "x", Key: "a", GrantedUs: 1, ArrivedUs: 50_000}, {Key: "a", GrantedUs: 90_000, ArrivedUs: 100_000}}, W,
			heldUp([]record{{Kind: kindGranted, Task: "x", Wrote: 1}}, []e2e.Arrival{{ID: "x", ArrivedUs: 50_000}}, W)), 0},
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

// crowd is how many arrivals the gateway works on from an instant on.
type crowd struct {
	at int64
	n  int
}

// crowds is how the number of those that the gateway works on went up and down.
// Who leaves goes before who comes at the same instant.
func crowds(arrivals []e2e.Arrival) []crowd {
	var steps []crowd
	for _, a := range arrivals {
		steps = append(steps, crowd{a.ArrivedUs, 1})
		if a.LeftUs != 0 {
			steps = append(steps, crowd{a.LeftUs, -1})
		}
	}
	slices.SortFunc(steps, func(a, b crowd) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.n, b.n)) })
	n := 0
	for i := range steps {
		n += steps[i].n
		steps[i].n = n
	}
	return steps
}
