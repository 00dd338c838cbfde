package mailtest

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/throttle"
)

// TestJudge: what breaks a rule is found, and a mail that was long on its way breaks
// none. One each 2 s in all, one each 5 s for a recipient.
func TestJudge(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	rules := Rules{Provider: throttle.Sliding(1, 2*time.Second), PerRecipient: 5 * time.Second, Gate: gateOf(t, "09:00-21:00"), Zone: time.UTC}
	type step struct {
		id, to           string
		granted, arrived time.Duration // from noon, seconds
	}
	at := func(d time.Duration) time.Time { return noon.Add(d) }
	for _, test := range []struct {
		name  string
		steps []step
		want  Judgement
	}{
		{"nothing", nil, Judgement{}},
		{"right to the microsecond", []step{
			{"1", "a", 0, 0}, {"2", "b", 2 * time.Second, 2 * time.Second}, {"3", "A", 5 * time.Second, 5 * time.Second},
		}, Judgement{Accepted: 3, Recipients: 2, MostInWindow: 1, LeastGap: 5 * time.Second, FirstAt: at(0), LastAt: at(5 * time.Second)}},
		{"the first was long on its way", []step{
			{"1", "a", 0, 1900 * time.Millisecond}, {"2", "b", 2 * time.Second, 2 * time.Second},
		}, Judgement{Accepted: 2, Recipients: 2, MostInWindow: 2, FirstAt: at(1900 * time.Millisecond), LastAt: at(2 * time.Second)}},
		{"a microsecond too soon", []step{
			{"1", "a", 0, 0}, {"2", "b", 2*time.Second - time.Microsecond, 2*time.Second - time.Microsecond},
		}, Judgement{Accepted: 2, Recipients: 2, MostInWindow: 2, OverProvider: 1, FirstAt: at(0), LastAt: at(2*time.Second - time.Microsecond)}},
		{"a recipient too soon", []step{
			{"1", "a", 0, 0}, {"2", "a", 4 * time.Second, 4 * time.Second},
		}, Judgement{Accepted: 2, Recipients: 1, MostInWindow: 1, LeastGap: 4 * time.Second, OverRecipient: 1, FirstAt: at(0), LastAt: at(4 * time.Second)}},
		{"twice, at night and before its time", []step{
			{"1", "a", 0, 0}, {"1", "a", 10 * time.Hour, 10*time.Hour - time.Second},
		}, Judgement{Accepted: 2, Twice: 1, Recipients: 1, MostInWindow: 1, LeastGap: 10*time.Hour - time.Second, WhileShut: 1, Early: 1,
			FirstAt: at(0), LastAt: at(10*time.Hour - time.Second)}},
	} {
		var log []Arrival
		for _, s := range test.steps {
			log = append(log, Arrival{ID: s.id, To: s.to, Granted: at(s.granted), At: at(s.arrived)})
		}
		if diff := cmp.Diff(test.want, Judge(log, rules)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

// TestWrong: each thing that went wrong fails the run.
func TestWrong(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		last batch.Progress
		j    Judgement
		want string
	}{
		{"nothing", ended, Judgement{Accepted: 3}, "[]"},
		{"missing", ended, Judgement{Accepted: 2}, "[1 mail did not reach the server]"},
		{"twice and missing", ended, Judgement{Accepted: 3, Twice: 1}, "[1 mail did not reach the server 1 mail came twice]"},
		{"failed", failed, Judgement{Accepted: 2}, "[1 mail failed for good]"},
		{"cancelled", cancelled, Judgement{Accepted: 1}, "[]"},
		{"too fast", ended, Judgement{Accepted: 3, OverProvider: 2, OverRecipient: 1}, "[2 mails came faster than the provider allows 1 mail came faster than a recipient is to get them]"},
		{"shut", ended, Judgement{Accepted: 3, WhileShut: 1, Early: 1}, "[1 mail went out while the gate was shut 1 mail came before Redis let it through: the clocks differ, and the judgement is void]"},
	} {
		if got := fmt.Sprint(test.j.Wrong(test.last, 3)); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}

var (
	ended     = batch.Progress{State: batch.Ended}
	failed    = batch.Progress{State: batch.Ended, Failed: 1}
	cancelled = batch.Progress{State: batch.Cancelled}
)
