package e2e

import (
	"testing"
	"time"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
)

func mustLimit(t *testing.T, text string) throttle.Limit {
	t.Helper()
	l, err := throttle.ParseLimit(text)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestBreachesOfKinds(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	type s = []time.Duration
	for _, tt := range []struct {
		limit string
		at    s // granted, after 2026-10-25 00:00:00 UTC; a negative one was given back at its instant
		costs []int
		want  int
	}{
		{"3/1m", s{0, 1 * sec, 60 * sec}, []int{2, 1, 2}, 0},
		{"3/1m", s{0, 1 * sec, 59 * sec}, []int{2, 1, 1}, 1},
		{"1/1m", s{1 * sec, -2 * sec, 61 * sec}, nil, 0},
		{"1/1m", s{1 * sec, 2 * sec, 61 * sec}, nil, 2},
		{"fixed 2/1m", s{0, 59 * sec, 60 * sec, 61 * sec}, nil, 0},
		{"fixed 2/1m", s{0, 59 * sec, 59*sec + 1*ms}, nil, 1},
		// The one given back began a window, which ended at 60 s.
		{"fixed 2/1m", s{-1 * ms, 58 * sec, 59 * sec, 61 * sec, 62 * sec}, nil, 0},
		{"fixed 2/1m", s{-1 * ms, 58 * sec, 59 * sec, 61 * sec, 62 * sec, 63 * sec}, nil, 1},
		{"calendar 2/minute", s{58 * sec, 59 * sec, 60 * sec, 61 * sec}, nil, 0},
		{"calendar 2/minute", s{58 * sec, 59 * sec, 59*sec + 999*ms}, nil, 1},
		// The hour from two to three comes twice in Berlin on that day: at 0:00 and at 1:00 UTC.
		{"calendar 1/hour Europe/Berlin", s{30 * time.Minute, 90 * time.Minute}, nil, 0},
		{"calendar 1/hour Europe/Berlin", s{30 * time.Minute, 50 * time.Minute}, nil, 1},
		// Its day has 25 hours, to 23:00 UTC; the week began on the Monday before.
		{"calendar 1/day Europe/Berlin", s{0, 23 * time.Hour}, nil, 0},
		{"calendar 1/day Europe/Berlin", s{0, 23*time.Hour - 1*ms}, nil, 1},
		{"calendar 1/week Europe/Berlin", s{0, 23 * time.Hour}, nil, 0},
		{"calendar 1/week Europe/Berlin", s{0, 22 * time.Hour}, nil, 1},
		{"calendar 1/month Europe/Berlin", s{0, 7*24*time.Hour - 1*time.Hour}, nil, 0},
		{"calendar 1/month Europe/Berlin", s{0, 6 * 24 * time.Hour}, nil, 1},
		{"gcra 10/1s burst 1", s{0, 100 * ms, 200 * ms}, nil, 0},
		{"gcra 10/1s burst 1", s{0, 99 * ms, 200 * ms}, nil, 1},
		{"gcra 3/1s burst 1", s{0, 333334 * time.Microsecond, 666667 * time.Microsecond, 1 * sec}, nil, 0},
		{"bucket 10/1s burst 3", s{0, 0, 0, 100 * ms, 1100 * ms, 1100 * ms}, nil, 0},
		{"bucket 10/1s burst 3", s{0, 0, 0, 99 * ms}, nil, 1},
		{"bucket 10/1s burst 5", s{0, 300 * ms}, []int{5, 3}, 0},
		{"bucket 10/1s burst 5", s{0, 300 * ms}, []int{5, 4}, 1},
		{"bucket 2/1s burst 2 step", s{0, 0, 1 * sec, 1 * sec}, nil, 0},
		{"bucket 2/1s burst 2 step", s{0, 0, 0, 0, 0}, nil, 1},
		{"leaky 10/1s", s{0, 500 * ms, 600 * ms}, []int{5, 1, 7}, 0},
		{"leaky 10/1s", s{0, 499 * ms}, []int{5, 1}, 1},
		{"smooth 10/1s burst 2", s{0, 0, 0, 100 * ms}, nil, 0},
		{"smooth 10/1s burst 2", s{0, 0, 0, 99 * ms}, nil, 1},
		{"warmup 10/1s over 1s cold 3", s{0, 100 * ms}, nil, 0},
		{"warmup 10/1s over 1s cold 3", s{0, 99 * ms}, nil, 1},
	} {
		start := time.Date(2026, 10, 25, 0, 0, 0, 0, time.UTC)
		var grants []Grant
		for i, at := range tt.at {
			g := Grant{Unused: at < 0, GrantedUs: start.Add(at.Abs()).UnixMicro(), Charges: []Charge{{Rule: "r", Key: "k", Cost: 1}}}
			if tt.costs != nil {
				g.Charges[0].Cost = tt.costs[i]
			}
			grants = append([]Grant{g}, grants...) // in any order
		}
		r := queue.Rule{Name: "r", Limit: mustLimit(t, tt.limit)}
		if got := Breaches(grants, r); got != tt.want {
			t.Errorf("%s at %v costs %v: Breaches = %d, want %d", tt.limit, tt.at, tt.costs, got, tt.want)
		}
		if got := Breaches(grants, queue.Rule{Name: "other", Limit: r.Limit}); got != 0 {
			t.Errorf("%s: %d breaches of a rule that charged nothing", tt.limit, got)
		}
	}
}

func TestBreachesOfGates(t *testing.T) {
	t.Parallel()
	gate := func(text string) queue.Rule {
		g, err := gate.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return queue.Rule{Name: "g", Gate: g}
	}
	at := func(zone string, hour int) Grant {
		return Grant{GrantedUs: time.Date(2026, 7, 1, hour, 0, 0, 0, time.UTC).UnixMicro(), Charges: []Charge{{Rule: "g", Zone: zone}}}
	}
	const berlin, york = "Europe/Berlin", "America/New_York" // 2 h before UTC, 4 h behind
	for _, tt := range []struct {
		gate  string
		grant Grant
		want  int
	}{
		{"08:00-21:00 recipient", at(berlin, 6), 0},
		{"08:00-21:00 recipient", at(york, 6), 1},
		{"08:00-21:00 recipient", at(berlin, 19), 1},
		{"08:00-21:00 recipient", at(york, 19), 0},
		{"08:00-21:00 recipient", at("No/Where", 12), 1}, // not proved
		{"08:00-21:00 recipient", at("", 12), 1},
		{"08:00-21:00 Europe/Berlin", at("", 18), 0},
		{"08:00-21:00 Europe/Berlin", at("", 5), 1},
	} {
		if got := Breaches([]Grant{tt.grant}, gate(tt.gate)); got != tt.want {
			t.Errorf("%s, %+v: Breaches = %d, want %d", tt.gate, tt.grant, got, tt.want)
		}
	}
}
