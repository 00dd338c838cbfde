package e2e

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/judge"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
)

// keyed are grants with the key of a rule in the place of the phone.
func (s *stage) keyed(grants []grant, r queue.Rule) []grant {
	s.Helper()
	out := make([]grant, len(grants))
	for i, g := range grants {
		body, err := json.Marshal(s.messages[g.id])
		if err == nil {
			g.to, err = r.Key(asynq.NewTask(typeSMS, body))
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
func (s *stage) breachesOf(grants []grant) map[string][]string {
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
		arrivals []arrival
		want     int
	}{
		{"one after the other", []arrival{{At: 1, Left: 2}, {At: 2, Left: 3}}, 1},
		{"one that is still there", []arrival{{At: 1}, {At: 2, Left: 3}, {At: 3, Left: 4}}, 2},
		{"three", []arrival{{At: 1, Left: 9}, {At: 2, Left: 5}, {At: 4, Left: 6}}, 3},
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
