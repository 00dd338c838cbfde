package mailtest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
