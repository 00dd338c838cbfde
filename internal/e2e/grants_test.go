package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
)

func TestBreaches(t *testing.T) {
	t.Parallel()
	at := func(key string, instants ...time.Duration) []Grant {
		var all []Grant
		for _, d := range instants {
			all = append(all, Grant{Key: key, GrantedUs: d.Microseconds()})
		}
		return all
	}
	for _, tt := range []struct {
		name   string
		grants []Grant
		n      int
		want   int
	}{
		{"none", nil, 1, 0},
		{"one", at("a", 0), 1, 0},
		{"windows are half open", at("a", 0, 60*sec, 120*sec), 1, 0},
		{"a microsecond too early", at("a", 0, 60*sec-1000), 1, 1},
		{"in any order", at("a", 120*sec, 0, 59*sec), 1, 1},
		{"at once", at("a", 0, 0, 0), 1, 2},
		{"two keys", append(at("a", 0, 60*sec), at("b", 1*sec, 61*sec)...), 1, 0},
		{"two a minute", at("a", 0, 0, 60*sec, 60*sec, 120*sec), 2, 0},
		{"three a minute", at("a", 0, 30*sec, 59*sec, 89*sec), 2, 2},
		{"fewer than n", at("a", 0, 0), 5, 0},
	} {
		if got := Breaches(tt.grants, queue.Rule{Name: RuleName, Limit: throttle.Sliding(tt.n, time.Minute)}); got != tt.want {
			t.Errorf("%s: Breaches = %d, want %d", tt.name, got, tt.want)
		}
	}
}

func TestGrantsOfSeveralProcesses(t *testing.T) {
	t.Parallel()
	shared, own := filepath.Join(t.TempDir(), "shared"), filepath.Join(t.TempDir(), "own")
	var wg sync.WaitGroup
	for process := range 3 {
		path := shared
		if process == 2 {
			path = own
		}
		w, err := OpenGrants(path)
		if err != nil {
			t.Fatal(err)
		}
		var writers sync.WaitGroup
		for i := range 4 {
			writers.Go(func() {
				for j := range 100 {
					g := Grant{ID: fmt.Sprint(process, i, j), Phone: "+12…0117", Key: "k", Attempt: "t", GrantedUs: int64(1 + 1000*process + 100*i + j)}
					if err := w.Write(g); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Go(func() {
			writers.Wait()
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	grants, err := ReadGrants(shared, own, shared) // named twice counts once
	if err != nil {
		t.Fatal(err)
	}
	if len(grants) != 1200 {
		t.Errorf("%d grants, want 1200", len(grants))
	}
	for i := 1; i < len(grants); i++ {
		if grants[i].GrantedUs < grants[i-1].GrantedUs {
			t.Fatalf("grant %d is before the one before it", i)
		}
	}
	if info, err := os.Stat(own); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode = %v, %v, want 0600", info.Mode(), err)
	}
}

func TestGrantLine(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "grants")
	w, err := OpenGrants(path)
	if err != nil {
		t.Fatal(err)
	}
	g := Grant{ID: "1", Phone: "+12…0117", Key: "k", Attempt: "t", PromisedUs: 2, GrantedUs: 3}
	if err := w.Write(g); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	want := `{"id":"1","phone":"+12…0117","key":"k","attempt":"t","promised_us":2,"granted_us":3}` + "\n"
	if err != nil || string(got) != want {
		t.Errorf("file = %s, %v, want %s", got, err, want)
	}
	back, err := ReadGrants(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Grant{g}, back); diff != "" {
		t.Errorf("read (-want +got):\n%s", diff)
	}
	if err := w.Write(g); err == nil {
		t.Error("Write after Close = nil, want an error")
	}
}

func TestReadGrantsRefuses(t *testing.T) {
	t.Parallel()
	const good = `{"id":"1","key":"k","granted_us":3}` + "\n"
	for _, bad := range []string{"x", `{"id":"1","granted_us":3}`, `{"key":"k"}`, `{"id":"1","key":"k","granted_us":3`, "{}{}"} {
		path := filepath.Join(t.TempDir(), "grants")
		if err := os.WriteFile(path, []byte(good+bad+"\n"+good), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadGrants(path); err == nil || !strings.HasSuffix(err.Error(), ": line 2 is not one of ours") {
			t.Errorf("ReadGrants of %s = %v, want a fault on line 2", bad, err)
		}
	}
	if _, err := ReadGrants(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("ReadGrants of no file = nil, want an error")
	}
}

func TestReadLines(t *testing.T) {
	t.Parallel()
	positive := func(n int) bool { return n > 0 }
	for _, tt := range []struct {
		in   string
		want []int
		err  string
	}{
		{in: ""},
		{in: "1\n\n 2 \r\n3", want: []int{1, 2, 3}},
		{in: "1\n-2\n3\n", err: "line 2 is not one of ours"},
		{in: "1\n\nx", err: "line 3 is not one of ours"},
		{in: strings.Repeat(" ", 1<<20) + "1", want: []int{1}}, // no limit on a line
	} {
		got, err := ReadLines(strings.NewReader(tt.in), positive)
		if diff := cmp.Diff(tt.want, got); diff != "" || (err == nil) != (tt.err == "") || err != nil && err.Error() != tt.err {
			t.Errorf("ReadLines(%.20q) = %v, %v, want %v, %q", tt.in, got, err, tt.want, tt.err)
		}
	}
	if _, err := ReadLines(iotest.ErrReader(iotest.ErrTimeout), positive); !errors.Is(err, iotest.ErrTimeout) {
		t.Errorf("error = %v, want that of the reader", err)
	}
}

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
