package e2e

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/headwayq/headway/internal/judge"
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
func tooClose(arrivals []arrival, W time.Duration, heldUp map[string]bool) []string {
	var faults []string
	last := make(map[string]arrival)
	for _, a := range arrivals {
		if heldUp[a.ID] {
			continue
		}
		before, ok := last[a.To]
		last[a.To] = a
		if gap := time.Duration(a.At-before.Granted) * time.Microsecond; ok && gap < W {
			faults = append(faults, fmt.Sprintf("%s: %s arrived %v after the grant of %s", a.To, a.ID, gap, before.ID))
		}
	}
	return faults
}

// heldUp are the messages that arrived long after the pool had looked at the
// age of their grant last: the process stood still in between. The pool tells
// that age with what it calls late.
func heldUp(all []record, arrivals []arrival, W time.Duration) map[string]bool {
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
		if at, ok := looked[try{a.ID, a.Life}]; ok && time.Duration(a.At-at)*time.Microsecond > W/10 {
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
		s.Finished += r.Stats.Finished
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
