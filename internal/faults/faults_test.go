package faults

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/e2e"
)

// short is a run of few seconds.
func short(t *testing.T, name string) Spec {
	t.Helper()
	f, ok := Find(name)
	if !ok {
		t.Fatalf("there is no fault %q", name)
	}
	f.every = min(f.every, time.Second)
	switch name {
	case "workers": // what a killed process had comes back after a minute or two: e2e has that
		f.strike = stopOrHoldWorker
	case "silence":
		f.strike = silence(2 * time.Second)
	case "worker-clock", "cluster-worker-clock":
		f.strike = jumpWorkerClock(func(*run) time.Duration { return 2 * time.Second })
	case "sentinel-partition":
		f.strike = divide(4 * time.Second)
	}
	turns, lasts := 1, 4*time.Second
	switch name {
	case "network":
		turns, lasts = networkKinds, 8*time.Second
	case "server":
		turns, lasts = serverKinds, 6*time.Second
	case "worker-clock", "cluster-worker-clock":
		turns, lasts = workerClockKinds, 8*time.Second
	}
	return Spec{Fault: f, For: lasts, turns: turns, Drain: 3 * time.Minute, Seed: 1, Workers: 2, Rate: 20, Dir: t.ArtifactDir(), Log: t.Logf, leaveOrphans: f.Forgets}
}

func stopOrHoldWorker(_ context.Context, r *run) (string, error) {
	p, err := r.crew.pick(r.random)
	if err != nil {
		return "", err
	}
	if r.random.IntN(2) == 0 {
		p.standStill(time.Second)
		return "a worker stood still", nil
	}
	return "a worker stopped", errors.Join(p.stop(), r.crew.start())
}

// Each fault in its short form: what the guarantees say holds. `headway prove` runs them at length,
// and docs/reliability.md has the figures.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, f := range All() {
		switch f.Name {
		case "workers-kill": // in its short form it would be that of "workers"
			continue
		case "none", "cluster-none": // the others do the same, and more
			continue
		case "sentinel-partition-min-replicas", "sentinel-partition-replicas": // in their short form they would be that of sentinel-partition
			continue
		case "sentinel-clock-hour": // in its short form it would be that of sentinel-clock
			continue
		case "soak": // TestShortSoak
			continue
		}
		t.Run(f.Name, func(t *testing.T) {
			t.Parallel()
			r, err := Run(t.Context(), short(t, f.Name))
			if err != nil {
				t.Fatal(err)
			}
			if r.struck() == 0 && f.strike != nil || r.Sent == 0 {
				t.Errorf("%d strikes, %d sent", r.struck(), r.Sent)
			}
			if want := map[string]int{
				"network": networkKinds, "server": serverKinds, "worker-clock": workerClockKinds, "cluster-worker-clock": workerClockKinds,
			}[f.Name]; len(r.Strikes) < want {
				t.Errorf("it was struck in these ways: %v, want %d", r.Strikes, want)
			}
			if strings.HasSuffix(f.Name, "deploy") {
				checkReleases(t, r)
			}
			if err := r.Failed(); err != nil {
				var text strings.Builder
				_ = r.Print(&text)
				t.Errorf("%v\n%s", err, &text)
			}
		})
	}
}

// Workers that let more through than they are judged by are found out, by both judges.
func TestBreachesAreFound(t *testing.T) {
	t.Parallel()
	spec := short(t, "none")
	spec.phone = "5/2s"
	r, err := Run(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if r.Breaches["phone"] == 0 || r.AtGateway == 0 || r.Breaches["provider"] != 0 {
		t.Errorf("%v over a limit by the grants, %d by the gateway's clock, want some of the phone's by both", r.Breaches, r.AtGateway)
	}
	if err := r.Failed(); err == nil || !strings.Contains(err.Error(), "over a limit") {
		t.Errorf("Failed = %v, want that limits were broken", err)
	}
}

func TestMessagesAreCounted(t *testing.T) {
	t.Parallel()
	began := time.Unix(1e9, 0)
	at := func(s float64) time.Time { return began.Add(time.Duration(s * float64(time.Second))) }
	arrival := func(id string, s float64, sender int) e2e.Arrival {
		return e2e.Arrival{ID: id, ArrivedUs: at(s).UnixMicro(), GrantedUs: at(s).UnixMicro(), Sender: sender}
	}
	r := &run{
		spec: Spec{Fault: Fault{Name: "restart-always"}, Rate: 1, For: 30 * time.Second}, began: began,
		crew:    &crew{processes: []*process{{treatment: treatment{Killed: at(1.5)}}, {treatment: treatment{Stood: [][2]time.Time{{at(2), at(3)}}}}}},
		strikes: []Strike{{What: "Redis killed", From: at(15), To: at(16), Forgot: true}, {What: bgSave, From: at(25), To: at(26)}},
		accepted: map[string]time.Time{
			"c1": at(0), "c2": at(0), "c3": at(0), "c4": at(0), "c5": at(0), "c6": at(14), "c7": at(1), "b1": {}, "b2": {},
		},
		unfed: 1, // b2, or b1
	}
	arrivals := []e2e.Arrival{
		arrival("c1", 1, 1), arrival("c1", 90, 2), // its sender was killed
		arrival("c2", 1.9, 2), arrival("c2", 95, 2), // its sender stood still
		arrival("c3", 14.9, 2), arrival("c3", 99, 2), // Redis was killed
		arrival("c4", 9, 1), arrival("c4", 100, 2), // long after its sender was killed, long before Redis was
		arrival("c5", 25, 2), arrival("c5", 101, 2), // BGSAVE loses no answer
		arrival("b1", 102, 2),
	}
	for s := 2; s < 30; s++ {
		if s != 5 && s != 17 { // those ticks are lost
			arrivals = append(arrivals, arrival(fmt.Sprint(tickPrefix, at(float64(s)).Unix()), float64(s), 2))
		}
	}
	slices.SortFunc(arrivals, func(a, b e2e.Arrival) int { return cmp.Compare(a.ArrivedUs, b.ArrivedUs) })
	rep := Report{Forgets: true}
	r.messages(&rep, arrivals, map[string]bool{})
	want := Report{Forgets: true, Clear: Clear{Sendings: 30.0 / 37, Messages: 32.0 / 37}, Accepted: 9 + 28, Sent: 6 + 26, Lost: 4, LostClear: 2, Again: 5, Unexplained: 2}
	if fmt.Sprint(rep) != fmt.Sprint(want) {
		t.Errorf("%+v, want\n%+v: c6 and c7 and two ticks lost, of which c7 and one tick with no strike near", rep, want)
	}
}

// What Redis has in memory alone is forgotten by a kill: its file may lag behind for longer than a note takes.
func TestRepeatAfterASnapshot(t *testing.T) {
	t.Parallel()
	struck := time.Unix(1e9, 0)
	r := &run{crew: &crew{processes: []*process{{}}}, strikes: []Strike{{What: "Redis killed", From: struck, To: struck.Add(time.Second), Forgot: true}}}
	for lag, want := range map[time.Duration]time.Duration{0: notesWithin, 4 * time.Second: 4 * time.Second} {
		r.spec.Fault.lag = lag
		before := func(d time.Duration) e2e.Arrival {
			return e2e.Arrival{ArrivedUs: struck.Add(-d).UnixMicro(), Sender: 1}
		}
		if !r.mayRepeat(before(want-time.Millisecond)) || r.mayRepeat(before(want)) {
			t.Errorf("with a lag of %v a message may not come again up to %v after it was sent", lag, want)
		}
	}
}

// Where Redis forgets nothing, a message may come again only when its sender was killed or stood still before Redis can have heard
// that it was sent.
func TestRepeatWhereRedisForgetsNothing(t *testing.T) {
	t.Parallel()
	at := func(s float64) time.Time { return time.Unix(1e9, 0).Add(time.Duration(s * float64(time.Second))) }
	lives, killed := &process{}, &process{treatment: treatment{Killed: at(19)}}
	r := &run{crew: &crew{processes: []*process{lives, killed}}, strikes: []Strike{{What: "silence", From: at(10), To: at(18)}}}
	for _, c := range []struct {
		sender int
		sent   float64
		want   bool
	}{
		{1, 9.5, false}, {1, 12, false}, // its sender tells Redis when it answers
		{2, 9.5, true}, {2, 12, true}, // it was killed before that
		{2, 7.5, false}, // Redis had heard of it
		{2, 18, true}, {2, 20.5, false},
	} {
		if got := r.mayRepeat(e2e.Arrival{ArrivedUs: at(c.sent).UnixMicro(), Sender: c.sender}); got != c.want {
			t.Errorf("a message of process %d at %v s may come again: %v, want %v", c.sender, c.sent, got, c.want)
		}
	}
}

// The hours by which the clock of Redis has jumped say nothing about how near a strike was.
func TestNearAStrikeBesideJumpsOfAnHour(t *testing.T) {
	t.Parallel()
	began := time.Unix(1e9, 0)
	r := &run{
		spec: Spec{Fault: Fault{jumpsForGood: true}}, began: began,
		strikes: []Strike{{From: began.Add(10 * time.Second), To: began.Add(11 * time.Second), Forgot: true}},
	}
	for after, want := range map[time.Duration]bool{10 * time.Second: true, 3*time.Hour + 10*time.Second: true, 30 * time.Second: false, 3*time.Hour + 30*time.Second: false, -time.Second: false} {
		if got := r.nearStrike(began.Add(after), 0); got != want {
			t.Errorf("%v after the begin a strike is near: %v, want %v", after, got, want)
		}
	}
}

// A server names keys when a strike fails. A phone number among them is not shown, and the error can still be told from others.
func TestAStrikeThatFailedShowsNoPhone(t *testing.T) {
	t.Parallel()
	cause := errors.New("BUSYKEY hw:{+491510000012}:phone is there")
	err := fmt.Errorf("a strike: %w", maskedError{cause})
	if want := "a strike: BUSYKEY hw:{+49…0012}:phone is there"; err.Error() != want || !errors.Is(err, cause) {
		t.Errorf("%v, want %s", err, want)
	}
}

// A grant that was acted on too late is seen by when its message came, and so is a breach among what came clear of strikes.
func TestOldGrantsAreFound(t *testing.T) {
	t.Parallel()
	at := func(s float64) int64 { return 1e15 + int64(s*1e6) }
	judged, err := readPolicies(usualPolicies("1/2s", 100))
	if err != nil {
		t.Fatal(err)
	}
	stood := [][2]time.Time{{time.UnixMicro(at(20.1)), time.UnixMicro(at(21.4))}}
	r := &run{
		judged: judged, crew: &crew{processes: []*process{{}, {treatment: treatment{Stood: stood}}}},
		strikes: []Strike{{From: time.UnixMicro(at(40)), To: time.UnixMicro(at(41)), Forgot: true}},
	}
	arrival := func(granted, came float64, sender int) e2e.Arrival {
		return e2e.Arrival{ID: "c", Key: "k", GrantedUs: at(granted), ArrivedUs: at(came), Sender: sender, Charges: []e2e.Charge{{Rule: "phone", Key: "k", Cost: 1}}}
	}
	arrivals := []e2e.Arrival{
		arrival(0, 1.1, 1), arrival(10, 11.3, 1), // the slack is 200 ms, and a message is on its way for a second at most
		arrival(20, 21.5, 2),                   // it stood still
		arrival(30, 30, 1), arrival(31, 31, 1), // too near to each other
		arrival(40, 40, 1), arrival(41, 41, 1), // near the strike
	}
	if old, p99 := r.ages(arrivals, judged[0].Rules); old != 1 || p99 != 1500*time.Millisecond {
		t.Errorf("%d grants were too old, p99 %v, want the one at 10 s, and 1.5 s", old, p99)
	}
	if over := breachesAtGateway(r.arrivalsClearOfStrikes(arrivals, 2*time.Second), judged[0].Rules); over != 1 {
		t.Errorf("%d over a limit clear of the strike, want the one at 31 s", over)
	}
}

// A stall is put down to each strike that is near, and only the load counts.
func TestStalls(t *testing.T) {
	t.Parallel()
	began := time.Unix(1e9, 0)
	at := func(s float64) time.Time { return began.Add(time.Duration(s * float64(time.Second))) }
	r := &run{spec: Spec{Rate: 1, For: 20 * time.Second}, began: began, strikes: []Strike{{What: "a", From: at(5), To: at(6)}, {What: "b", From: at(15), To: at(16)}}}
	var arrivals []e2e.Arrival
	for _, s := range []float64{1, 2, 3, 4, 7.5, 8, 9, 10, 12, 14, 16, 17, 19, 60} {
		arrivals = append(arrivals, e2e.Arrival{ArrivedUs: at(s).UnixMicro()})
	}
	var rep Report
	r.pace(&rep, arrivals)
	if want := []time.Duration{2 * time.Second, 3500 * time.Millisecond}; !slices.Equal(rep.Stalls, want) || rep.Stall != want[1] || rep.Used != 0.65 {
		t.Errorf("stalls at strikes %v, longest %v, used %v, want %v, the last of them and 0.65", rep.Stalls, rep.Stall, rep.Used, want)
	}
}

// The full pace is back with the first second in which nine of ten permits are used.
func TestFullPaceIsBack(t *testing.T) {
	t.Parallel()
	began := time.Unix(1e9, 0)
	at := func(s float64) time.Time { return began.Add(time.Duration(s * float64(time.Second))) }
	r := &run{spec: Spec{Rate: 10, For: 20 * time.Second}, began: began, strikes: []Strike{{From: at(5), To: at(6)}, {From: at(12), To: at(13)}}}
	var arrivals []e2e.Arrival
	send := func(from, to, every float64) {
		for s := from; s < to; s += every {
			arrivals = append(arrivals, e2e.Arrival{ArrivedUs: at(s).UnixMicro()})
		}
	}
	send(6.5, 8, 0.5)
	send(8, 11, 0.1)
	send(13, 19.5, 0.5)
	send(19.5, 22, 0.1) // too late: the load ends at 20
	if got, want := r.back(arrivals), []time.Duration{2 * time.Second}; !slices.Equal(got, want) {
		t.Errorf("the full pace was back %v after the strikes, want %v", got, want)
	}
}

// What Redis forgot once may cost a limit as much again, and no more.
func TestOverTwice(t *testing.T) {
	t.Parallel()
	at := func(s float64) time.Time { return time.UnixMicro(1e15 + int64(s*1e6)) }
	all, err := readPolicies(usualPolicies("1/2s", 100))
	if err != nil {
		t.Fatal(err)
	}
	var grants []e2e.Grant
	for _, s := range []float64{0, 1, 2, 2.5, 3, 9} { // 1, 2 and 2.5 are three in two seconds, and so are 2, 2.5 and 3
		grants = append(grants, e2e.Grant{ID: "c", Key: "k", GrantedUs: at(s).UnixMicro(), Charges: []e2e.Charge{{Rule: "phone", Key: "k", Cost: 1}}})
	}
	phone := all[0].Rules[0]
	for _, c := range []struct {
		strikes []Strike
		want    int
	}{
		{[]Strike{{From: at(0.5), To: at(0.6)}, {From: at(2.7), To: at(2.8)}}, 2},
		{[]Strike{{From: at(0.5), To: at(0.6)}, {From: at(2.5), To: at(2.6)}}, 0}, // too near to tell
	} {
		if got := (&run{strikes: c.strikes}).overTwice(grants, phone); got != c.want {
			t.Errorf("with strikes at %v: %d over twice the limit, want %d", c.strikes, got, c.want)
		}
	}
}

// A run of a minute or more, of which strikes were near all the time, has proven nothing.
func TestNothingJudgedFails(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		report Report
		fails  bool
	}{
		{Report{For: time.Minute, Clear: Clear{Sendings: 0.1, Messages: 0.1, Grants: 0.1}}, false},
		{Report{For: time.Minute, Clear: Clear{Sendings: 0.09, Messages: 1, Grants: 1}}, true},
		{Report{For: time.Minute, Clear: Clear{Sendings: 1, Messages: 0, Grants: 1}}, true},
		{Report{For: time.Minute, Clear: Clear{Sendings: 1, Messages: 1, Grants: 0}}, true},
		{Report{For: time.Minute, ForgetsAll: true, Clear: Clear{Sendings: 1, Messages: 0, Grants: 1}}, false},
		{Report{For: time.Second}, false}, // the short forms
	} {
		if err := c.report.Failed(); (err != nil) != c.fails {
			t.Errorf("of %v, %+v without strikes: Failed = %v, want one: %v", c.report.For, c.report.Clear, err, c.fails)
		}
	}
}

func TestGrantsAreCounted(t *testing.T) {
	t.Parallel()
	grants := []e2e.Grant{{ID: "c1", GrantedUs: 1e15}, {ID: "c1", GrantedUs: 1e15 + 1e5, PromisedUs: 1e15}}
	if n := unused(grants, []e2e.Arrival{{ID: "c1", GrantedUs: 1e15}, {ID: "c2", GrantedUs: 1e15 + 1e5}}); n != 1 {
		t.Errorf("%d grants are unused, want 1", n)
	}
	if _, p99 := lateness(grants); p99 != 100*time.Millisecond {
		t.Errorf("the 99th percentile of lateness is %v, want 100 ms", p99)
	}
	r := &run{strikes: []Strike{{What: "a", From: time.UnixMicro(1e15 + 6e6), To: time.UnixMicro(1e15 + 7e6), Forgot: true}}}
	if far := r.clearOfStrikes([]e2e.Grant{{GrantedUs: 1e15}, {GrantedUs: 1e15 + 5e6}, {GrantedUs: 1e15 + 10e6}, {GrantedUs: 1e15 + 12e6}}, 2*time.Second); len(far) != 2 {
		t.Errorf("%d grants are clear of the strike, want the first and the last", len(far))
	}
}

func TestFailed(t *testing.T) {
	t.Parallel()
	bad := Report{Fault: "f", Lost: 1, LostClear: 7, Unexplained: 2, Early: 8, Left: 3, Archived: 4, Old: 12, AtGateway: 5, AtGatewayClear: 11, Breaches: map[string]int{"phone": 6}, OverClear: 9, OverTwice: 10}
	always := "f: 2 sent again without a cause\nf: 8 sent before they were granted\nf: 12 sent under a grant that was too old\nf: 4 archived\nf: 3 left in the queue\n"
	const over = "\nf: 6 over a limit\nf: 5 over a limit by the gateway's clock"
	for _, c := range []struct {
		forgets, keeps bool
		want           string
	}{
		{false, false, always + "f: 1 lost" + over},
		{true, false, always + "f: 7 lost with no strike near\nf: 9 over a limit with no strike near\nf: 10 over twice a limit\nf: 11 over a limit by the gateway's clock, with no strike near"},
		{true, true, always + "f: 7 lost with no strike near" + over},
	} {
		bad.Forgets, bad.Keeps = c.forgets, c.keeps
		if got := fmt.Sprint(bad.Failed()); got != c.want {
			t.Errorf("a fault that forgets (%v) and keeps limits (%v) failed for\n%s\nwant\n%s", c.forgets, c.keeps, got, c.want)
		}
	}
	if err := (Report{Again: 3, Unused: 1, Moves: true, Early: 1, Old: 1, AtGateway: 1}).Failed(); err != nil {
		t.Errorf("Failed = %v, want nil", err)
	}
}

// A worker process that ends by itself fails the run.
func TestDeadWorkerIsNoticed(t *testing.T) {
	t.Parallel()
	spec := short(t, "none")
	spec.Fault.every = time.Second
	spec.Fault.strike = func(_ context.Context, r *run) (string, error) {
		p, err := r.crew.pick(r.random)
		if err != nil {
			return "", err
		}
		p.Kill() // which the crew knows nothing of
		return "a worker ended", nil
	}
	if _, err := Run(t.Context(), spec); err == nil || !strings.Contains(err.Error(), "ended by itself") {
		t.Errorf("Run = %v, want that a worker process ended by itself", err)
	}
}

// The table goes into its place, or into a file of its own, and into no other file.
func TestWriteTable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	read := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		return string(text)
	}
	all := []Report{{Fault: "workers", For: 4 * time.Minute, Server: "Redis 1", Strikes: map[string]int{"a": 1, "b": 2}, Accepted: 4, Breaches: map[string]int{"phone": 5}, Clear: Clear{0.5, 1, 0.25}, Used: 0.456}, {Fault: "none", Seed: 7}}
	page, empty, other := file("page", "before\n"+tableBegins+"old\n"+tableEnds+"after\n"), file("empty", ""), file("other", "precious\n")
	for range 2 { // the second time it is in the place of the first
		for _, path := range []string{page, empty, filepath.Join(dir, "new")} {
			if err := errors.Join(CheckTable(path), WriteTable(path, all)); err != nil {
				t.Error(err)
			}
			if got := read(path); strings.Count(got, "| `workers` (seed 0) (failed) | 4m | 3 | 4 | 0 | 0 | 0 | 5 | 50 / 100 / 25 % | 46 % | 0s / 0s |\n| `none` (seed 7) | 0s |") != 1 || strings.Contains(got, "old") {
				t.Errorf("%s is\n%s", path, got)
			}
		}
	}
	if got := read(page); !strings.HasPrefix(got, "before\n") || !strings.HasSuffix(got, "after\n") {
		t.Errorf("around the table the page is\n%s", got)
	}
	if CheckTable(other) == nil || WriteTable(other, all) == nil || read(other) != "precious\n" {
		t.Errorf("a file without a place for a table is now\n%s", read(other))
	}
}
