package judge

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const ms = time.Millisecond

// spent are permits at instants in ms, one each or at costs.
func spent(at []int64, costs ...int) []Spent {
	out := make([]Spent, len(at))
	for i, t := range at {
		out[i] = Spent{At: t * 1000, Cost: 1}
		if costs != nil {
			out[i].Cost = costs[i]
		}
	}
	return out
}

func TestWindows(t *testing.T) {
	t.Parallel()
	type at = []int64
	for _, tt := range []struct {
		name  string
		n     int
		at    at
		costs []int
		want  []int
	}{
		{"nothing", 1, nil, nil, nil},
		{"a gap of the window", 1, at{0, 100, 200}, nil, nil},
		{"a gap of less", 1, at{0, 99, 200}, nil, []int{1}},
		{"a breach counts for the next", 1, at{0, 99, 198}, nil, []int{1, 2}},
		{"as many as are allowed", 3, at{0, 0, 99, 100, 100}, nil, nil},
		{"across the border of two windows", 2, at{50, 90, 110, 140}, nil, []int{2, 3}},
		{"costs", 5, at{0, 50, 100}, []int{3, 2, 3}, nil},
		{"costs, one too many", 5, at{0, 50, 100}, []int{3, 2, 4}, []int{2}},
		{"more than ever", 2, at{0}, []int{3}, []int{0}},
	} {
		if diff := cmp.Diff(tt.want, Windows(spent(tt.at, tt.costs...), tt.n, 100*ms)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.name, diff)
		}
	}
	if got := Windows([]Spent{{0, 1}, {99_999, 1}, {199_999, 1}}, 1, 100*ms); !cmp.Equal(got, []int{1}) {
		t.Errorf("a microsecond too early: %v", got)
	}
}

func TestFixedWindows(t *testing.T) {
	t.Parallel()
	// Windows begin at 30 and at 130; the third one with the first permit after it, at 250.
	at := []int64{30, 129, 130, 130, 229, 250, 349, 350}
	if got := FixedWindows(spent(at), 2, 100*ms); !cmp.Equal(got, []int{4}) {
		t.Errorf("got %v", got)
	}
	if got := FixedWindows(nil, 2, 100*ms); got != nil {
		t.Errorf("nothing: %v", got)
	}
}

func TestNamedWindows(t *testing.T) {
	t.Parallel()
	name := func(us int64) string { return fmt.Sprint(us / 100_000) }
	if got := NamedWindows(spent([]int64{0, 99, 199, 50, 100, 100}), 2, name); !cmp.Equal(got, []int{3, 5}) {
		t.Errorf("got %v", got)
	}
}

func TestRate(t *testing.T) {
	t.Parallel()
	two := Rate{N: 2, Window: time.Second, Burst: 3}
	before := Rate{N: 10, Window: time.Second, PaidBefore: true}
	type at = []int64
	for _, tt := range []struct {
		name  string
		rate  Rate
		at    at
		costs []int
		want  []Early
	}{
		{"nothing", two, nil, nil, nil},
		{"the burst", two, at{0, 0, 0}, nil, nil},
		{"more than the burst", two, at{0, 0, 0, 499}, nil, []Early{{3, ms}}},
		{"at the pace", two, at{0, 0, 0, 500, 1000, 1500}, nil, nil},
		{"after a rest", two, at{0, 0, 0, 500, 3000, 3000, 3000, 3500}, nil, nil},
		{"too much after a rest", two, at{0, 0, 0, 500, 1700, 1700, 1700}, nil, []Early{{6, 300 * ms}}},
		{"a window in the middle", two, at{0, 5000, 5000, 5000, 5499, 5999, 9000}, nil, []Early{{4, ms}, {5, ms}}},
		{"costs", two, at{0, 500}, []int{3, 2}, []Early{{1, 500 * ms}}},
		{"paid before", before, at{0, 500, 600}, []int{5, 1, 7}, nil},
		{"not paid before", before, at{0, 499}, []int{5, 1}, []Early{{1, ms}}},
		{"slack", Rate{N: 2, Window: time.Second, Burst: 1, Slack: ms}, at{0, 499}, nil, nil},
		{"more than the slack", Rate{N: 2, Window: time.Second, Burst: 1, Slack: ms}, at{0, 498}, nil, []Early{{1, ms}}},
	} {
		if diff := cmp.Diff(tt.want, tt.rate.Breaches(spent(tt.at, tt.costs...))); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.name, diff)
		}
	}
	// A third of a second is no whole number of microseconds.
	thirds := Rate{N: 3, Window: time.Second, Burst: 1}
	if got := thirds.Breaches([]Spent{{0, 1}, {333_334, 1}, {666_668, 1}, {1_000_002, 1}}); got != nil {
		t.Errorf("thirds: %v", got)
	}
	if got := thirds.Breaches([]Spent{{0, 1}, {333_333, 1}}); len(got) != 1 {
		t.Errorf("a third of a microsecond too early: %v", got)
	}
}

func TestArrivals(t *testing.T) {
	t.Parallel()
	type log = [][2]int64 // granted and arrived, in µs
	for _, tt := range []struct {
		name string
		n    int
		log  log
		want []int
	}{
		{"nothing", 1, nil, nil},
		{"a window apart", 1, log{{0, 0}, {100_000, 100_000}}, nil},
		{"too close", 1, log{{0, 0}, {99_999, 99_999}}, []int{1}},
		{"the first was long on its way", 1, log{{0, 50_000}, {100_000, 100_000}}, nil},
		{"the first was granted late", 1, log{{1, 50_000}, {90_000, 100_000}}, []int{1}},
		{"both were long on their way", 1, log{{0, 150_000}, {100_000, 160_000}}, nil},
		{"two of two permits", 2, log{{1, 1}, {10, 10}, {99_999, 100_000}}, []int{2}},
	} {
		var got []int
		judge := Arrivals{N: tt.n, Window: 100 * ms}
		for i, m := range tt.log {
			if judge.Add(m[0], m[1], 1) {
				got = append(got, i)
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.name, diff)
		}
	}
}

func TestArrivalsCost(t *testing.T) {
	t.Parallel()
	judge := Arrivals{N: 3, Window: 100 * ms}
	if judge.Add(0, 0, 2) || judge.Add(10, 10, 1) || !judge.Add(20, 20, 1) || judge.Add(100_010, 100_010, 2) {
		t.Error("costs do not count as they must")
	}
}

func TestMost(t *testing.T) {
	t.Parallel()
	if got := Most(spent([]int64{0, 50, 100, 149, 300}), 100*ms); got != 3 {
		t.Errorf("got %d, want 3", got)
	}
	if got := Most(spent([]int64{0, 100}, 4, 2), 100*ms); got != 4 {
		t.Errorf("costs: %d, want 4", got)
	}
	if got := Most(nil, 100*ms); got != 0 {
		t.Errorf("nothing: %d", got)
	}
}
