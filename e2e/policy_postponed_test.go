package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/e2e"
)

// postponedRun is what came out when one of many phones was postponed.
type postponedRun struct {
	early  []string      // what went to the phone while it was closed, or in another order
	waited time.Duration // from the 429 to the next message to the phone
	pace   float64       // of the other phones, of what their limit permits
	perJob float64
}

// playPostponed sends so many messages to each phone, at 1 per window. When the closed
// phone has had two, its next is answered with 429.
func playPostponed(t *testing.T, phones, messages int, window, after time.Duration, processes int) postponedRun {
	t.Helper()
	s := newPolicyTestbed(t, []string{
		fmt.Sprintf("phone: {limit: 1/%v, key: $.to}", window),
		"provider: {limit: gcra 5000/1s burst 1000, key: =acme}",
	}, workerSpec{Concurrency: 10})
	closed := phone(phones / 2)
	s.crew.start(processes)
	s.enqueueSpread(phones, messages, window)
	order := s.lineOf("phone", closed)
	s.eventually(3*window+20*time.Second, "the phone had two messages", func() bool { return s.gateway.sentTo(closed) == 2 })
	s.gateway.Postpone(closed, after)
	s.allSent(time.Duration(messages)*window + after + 60*time.Second)

	all := s.crew.records()
	grants := grantsOf(all, s.phones)
	for rule, faults := range s.breachesOf(grants) {
		if len(faults) > 0 {
			t.Errorf("breaches of %s: %s", rule, few(faults))
		}
	}
	refused := s.gateway.Refused()
	if len(refused) != 1 || sum(all).Postponed != 1 {
		t.Fatalf("%d messages were answered with 429, want 1", len(refused))
	}
	stats := sum(all)
	t.Logf("%+v", stats)
	r := postponedRun{
		perJob: float64(stats.Admissions) / float64(s.sent),
		pace:   paceOf(grants, window, func(to string) bool { return to != closed }),
	}
	r.early, r.waited = afterRefusal(s.gateway.Arrivals(), refused[0], after, order)
	return r
}

// enqueueSpread enqueues the messages of one phone after the other, over so long: the
// phones then take turns within their window, and no burst of all of them at once
// measures how fast the machine is.
func (s *testbed) enqueueSpread(phones, messages int, over time.Duration) {
	s.Helper()
	begin := time.Now()
	for i := range phones {
		<-time.After(time.Until(begin.Add(over * time.Duration(i) / time.Duration(phones))))
		of := make([]message, messages)
		for j := range of {
			of[j] = s.message(phone(i))
		}
		if err := s.send(of); err != nil {
			s.Fatal(err)
		}
	}
}

// lineOf is the order in which the messages to a phone wait, once all but those that
// were sent do.
func (s *testbed) lineOf(rule, to string) []string {
	s.Helper()
	total := 0
	for _, p := range s.phones {
		if p == to {
			total++
		}
	}
	var order []string
	s.eventually(30*time.Second, "all to the phone wait for it", func() bool {
		ran := s.gateway.sentTo(to) // before the look
		state, err := s.rules[rule].Peek(s.Context(), to, total)
		if err != nil {
			s.Fatal(err)
		}
		order = order[:0]
		for _, w := range state.Booked {
			order = append(order, w.Job[len(w.Job)-len("m00000"):])
		}
		return ran+len(order) == total
	})
	return order
}

// paceOf is how much of what 1/W permits the phones used, each from its first grant
// to its last.
func paceOf(grants []grant, W time.Duration, counts func(to string) bool) float64 {
	first, last, n := make(map[string]int64), make(map[string]int64), 0
	for _, g := range grants {
		if !counts(g.to) {
			continue
		}
		if _, ok := first[g.to]; !ok {
			first[g.to] = g.at
		} else {
			n++
		}
		last[g.to] = g.at
	}
	var took int64
	for to := range first {
		took += last[to] - first[to]
	}
	return float64(n) * float64(W.Microseconds()) / float64(took)
}

// afterRefusal are the arrivals at the phone that was postponed until it opened, and
// those that came in another order than that of its line; and how long it was quiet.
func afterRefusal(arrivals []e2e.Arrival, refused e2e.Arrival, after time.Duration, order []string) (faults []string, quiet time.Duration) {
	var came []string
	for _, a := range arrivals {
		if a.Key != refused.Key {
			continue
		}
		if a.ArrivedUs > refused.ArrivedUs {
			gap := time.Duration(a.ArrivedUs-refused.ArrivedUs) * time.Microsecond
			if quiet == 0 {
				quiet = gap
			}
			if gap < after {
				faults = append(faults, fmt.Sprintf("%s came %v after the 429", a.ID, gap))
			}
		}
		came = append(came, a.ID)
	}
	came = came[max(0, len(came)-len(order)):]
	for i, id := range came {
		if id != order[i] {
			faults = append(faults, fmt.Sprintf("%s came where %s stood in the line", id, order[i]))
		}
	}
	return faults, quiet
}

// TestPostponed: one phone of many is answered with a Retry-After.
func TestPostponed(t *testing.T) {
	t.Parallel()
	const after = 3 * time.Second
	r := playPostponed(t, 50, 4, 2*time.Second, after, 2)
	if len(r.early) > 0 {
		t.Errorf("while the phone was closed, or out of order: %s", few(r.early))
	}
	if r.waited > after+500*time.Millisecond {
		t.Errorf("the phone was quiet for %v, want little more than %v", r.waited, after)
	}
	if r.pace < 0.99 {
		t.Errorf("the other phones kept %.4f of their pace, want 0.99", r.pace)
	}
	t.Logf("quiet for %v, pace of the others %.4f, %.3f admissions per message", r.waited, r.pace, r.perJob)
}
