package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/internal/redisserver"
	"github.com/headwayq/headway/queue"
)

// Keys that should be gone are found and named without a phone number, and those that last are not.
func TestLeakedKeysAreFound(t *testing.T) {
	t.Parallel()
	server, err := redisserver.Launch(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	for key, life := range map[string]time.Duration{
		"hw:{default}:batch:load-0":            24 * time.Hour,
		"hw:{default}:batches:ended":           24 * time.Hour,
		"hw:{default}:tick:each-second":        31 * 24 * time.Hour,
		"hw:history:{phone}:minutes:495000":    time.Hour,
		"hw:limit:phone":                       time.Hour,
		"hw:{all}:smooth":                      time.Hour,
		"hw:{all}:provider:opening":            time.Hour,
		"asynq:{default}:t:c1":                 0,
		"asynq:{default}:unique:sms:0123":      time.Minute, // the lock of a task that has ended
		"hw:{default}:batch:load-1":            0,           // a batch that has not ended
		"hw:{default}:batch:load-0:open":       time.Hour,
		"hw:limit:provider":                    time.Hour, // nobody changed it
		"hw:rules":                             time.Hour, // it lives for minutes
		"hw:{+491510000012}:phone:line":        2 * time.Hour,
		"hw:{+491510000013}:phone:line":        time.Hour,
		"hw:{t}:bucket:turns:1e80e0f1de6ee7f3": time.Hour,
		"hw:{all}:slots":                       time.Hour,
		"hw:{default}:due":                     time.Hour,
		"other:hw:{default}:batch:load-0":      time.Hour,
		"hw:history:{phone}:waiting":           time.Hour,
		"hw:history:{+491510000012}:minutes:1": time.Hour,
	} {
		if err := rdb.Set(t.Context(), key, "1", life).Err(); err != nil {
			t.Fatal(err)
		}
	}
	var leaks Leaks
	if err := leaks.lookForKeys(t.Context(), rdb); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, key := range leaks.Keys {
		name, _, _ := strings.Cut(key, " for ")
		names = append(names, name)
	}
	want := []string{
		"asynq:{default}:unique:sms:0123", "hw:history:{+49…0012}:minutes:1", "hw:history:{phone}:waiting", "hw:limit:provider", "hw:rules", "hw:{+49…0012}:phone:line", "hw:{all}:slots",
		"hw:{default}:batch:load-0:open", "hw:{default}:batch:load-1", "hw:{default}:due", "other:hw:{default}:batch:load-0",
	}
	if leaks.Lasting != 9 || leaks.Places != 2 || !slices.Equal(names, want) {
		t.Errorf("%d keys last, %d of them places, want 9 and 2, and these should be gone:\n%q, want\n%q", leaks.Lasting, leaks.Places, names, want)
	}
}

// Leaks fail a run, each by its figure.
func TestLeaksFail(t *testing.T) {
	t.Parallel()
	quarter := Vitals{Goroutines: 50, Heap: 5 << 20, Redis: 1 << 20}
	for _, tt := range []struct {
		leaks Leaks
		want  string
	}{
		{Leaks{Quarter: quarter, End: Vitals{Goroutines: 50 + moreGoroutines, Heap: 5<<20 + moreHeap, Redis: 9 << 20}, Lasting: 9}, "<nil>"},
		{Leaks{Quarter: quarter, End: Vitals{Goroutines: 51 + moreGoroutines, Heap: 5 << 20}}, "soak: 6 goroutines more at the end than at a quarter of the time"},
		{Leaks{Quarter: quarter, End: Vitals{Goroutines: 50, Heap: 6<<20 + moreHeap}}, "soak: 3072 kB of heap more at the end than at a quarter of the time"},
		{Leaks{Quarter: quarter, End: quarter, Keys: []string{"a for 1s"}}, "soak: left in Redis: a for 1s"},
		{Leaks{Quarter: quarter}, "soak: the process that is never struck did not say what it needs"},
	} {
		if got := fmt.Sprint((Report{Fault: "soak", Leaks: &tt.leaks}).Failed()); got != tt.want {
			t.Errorf("%+v: Failed = %s, want %s", tt.leaks, got, tt.want)
		}
	}
}

// The figures are the least of the eighth behind the quarter of a run, and of its last eighth.
func TestVitalsOfARun(t *testing.T) {
	t.Parallel()
	began := time.Unix(1e9, 0)
	r := &run{spec: Spec{For: 80 * time.Second, Dir: t.TempDir(), Log: t.Logf}, began: began}
	file, err := e2e.OpenLines(vitalsFile(r.spec.Dir))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, v := range []struct {
		s, goroutines int
		heap, redis   int64
	}{{19, 1, 1, 1}, {21, 9, 5, 0}, {25, 8, 6, 7}, {29, 9, 9, 8}, {31, 1, 1, 1}, {69, 1, 1, 1}, {71, 7, 9, 9}, {79, 9, 8, 9}, {81, 1, 1, 1}} {
		at := began.Add(time.Duration(v.s) * time.Second)
		if err := file.Write(Vitals{At: at, Goroutines: v.goroutines, Heap: v.heap, Redis: v.redis}); err != nil {
			t.Fatal(err)
		}
	}
	quarter, end, err := vitalsOf(r)
	if err != nil {
		t.Fatal(err)
	}
	quarter.At, end.At = time.Time{}, time.Time{}
	if want := [2]Vitals{{Goroutines: 8, Heap: 5, Redis: 7}, {Goroutines: 7, Heap: 8, Redis: 9}}; [2]Vitals{quarter, end} != want {
		t.Errorf("a quarter %+v, the end %+v, want %+v", quarter, end, want)
	}
}

// No limit of the policies that a deploy brings is above the one by which a soak is judged, and the
// rules are the same but for one that is not judged.
func TestSoakPolicies(t *testing.T) {
	t.Parallel()
	for _, rate := range []int{1, 7, 20, 50, 1000} {
		judged, err := readPolicies(soakPolicies(phoneLimit, rate, 57))
		if err != nil {
			t.Fatal(err)
		}
		others, err := readPolicies(otherSoakPolicies(rate, 57))
		if err != nil {
			t.Fatal(err)
		}
		rules := (&run{judged: judged}).rules()
		other := map[string]queue.Rule{}
		for _, rule := range (&run{judged: others}).rules() {
			other[rule.Name] = rule
		}
		if len(judged) != 5 || len(others) != 5 || len(rules) != 11 || len(other) != 12 {
			t.Fatalf("%d and %d types, %d and %d rules", len(judged), len(others), len(rules), len(other))
		}
		for _, rule := range rules {
			l, lower := rule.Limit, other[rule.Name].Limit
			if e2e.IsGate(rule) {
				if e2e.RuleText(rule) != e2e.RuleText(other[rule.Name]) {
					t.Errorf("the other policy has the gate %s, want %s", e2e.RuleText(other[rule.Name]), e2e.RuleText(rule))
				}
				continue
			}
			if lower.Kind() != l.Kind() || lower.Permits() > l.Permits() || lower.Window() < l.Window() || lower.Burst() > l.Burst() {
				t.Errorf("at a rate of %d the other policy has %s for %s, which is %s", rate, lower, rule.Name, l)
			}
		}
	}
}

// A soak in its short form: the messages of all types are sent, under all limits. Kills are left out, and
// so is the wait for keys.
func TestShortSoak(t *testing.T) {
	t.Parallel()
	spec := short(t, "soak")
	spec.Fault.mixes = []string{"server"}
	spec.keysGoWithin = time.Nanosecond
	r, err := Run(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	leaks := r.Leaks
	r.Leaks = nil // the time is too short to say more of them than that they were looked for
	if err := r.Failed(); err != nil || r.struck() == 0 || r.Sent == 0 || leaks == nil || leaks.Lasting == 0 {
		var text strings.Builder
		_ = r.Print(&text)
		t.Errorf("%v\n%s", err, &text)
	}
	var arrivals []e2e.Arrival
	file, err := os.Open(filepath.Join(spec.Dir, "arrivals.jsonl"))
	if err == nil {
		defer file.Close()
		arrivals, err = e2e.ReadLines(file, func(a e2e.Arrival) bool { return a.ID != "" && a.Key != "" })
	}
	rules := map[string]bool{}
	for _, a := range arrivals {
		for _, c := range a.Charges {
			rules[c.Rule] = true
		}
	}
	if err != nil || len(rules) != 11 {
		t.Errorf("messages were sent under the rules %v, %v, want all 11", rules, err)
	}
	for _, p := range heapProfiles(workerSpec{Vitals: vitalsFile(spec.Dir)}) {
		if _, err := os.Stat(p.file); err != nil {
			t.Error(err)
		}
	}
}
