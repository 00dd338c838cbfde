package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// result is what a run left.
type result struct {
	code           int
	stdout, stderr string
	report         Report // with -report
	raw            map[string]any
	files          string // report, grants and arrivals as they are
}

// program is a run that is to come.
type program struct {
	t    *testing.T
	args []string
	env  env
	dir  string
}

// newProgram makes a program with -report and, where the role has one, -grants.
func newProgram(t *testing.T, args ...string) *program {
	t.Helper()
	p := &program{t: t, dir: t.TempDir()}
	p.args = append(args, "-report", p.path("report"))
	return p
}

func (p *program) path(name string) string { return filepath.Join(p.dir, name) }

// run runs the program until it ends, and checks that nothing that it wrote
// shows a phone number or a text.
func (p *program) run(ctx context.Context) result {
	p.t.Helper()
	var stdout, stderr bytes.Buffer
	e := p.env
	e.stdout, e.stderr = &stdout, &stderr
	if e.stdin == nil {
		e.stdin = strings.NewReader("")
	}
	r := result{code: run(ctx, p.args, e), stdout: stdout.String(), stderr: stderr.String()}
	if b, err := os.ReadFile(p.path("report")); err == nil && len(b) > 0 {
		if err := json.Unmarshal(b, &r.report); err != nil {
			p.t.Error(err)
		}
		if err := json.Unmarshal(b, &r.raw); err != nil {
			p.t.Error(err)
		}
	}
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		p.t.Error(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(p.path(e.Name()))
		if err != nil {
			p.t.Error(err)
		}
		r.files += string(b)
	}
	checkPersonal(p.t, "stdout, stderr or a file", r.stdout+r.stderr+r.files)
	return r
}

// personal matches what nobody may see: a phone of the sample or of csvOf in
// clear, or a text.
var personal = regexp.MustCompile(`1202555\d|4477009\d|6149157\d|3319900\d|4670174\d|(?i)your (code|parcel)|hello`)

func checkPersonal(t *testing.T, where, s string) {
	t.Helper()
	if found := personal.FindString(s); found != "" {
		t.Errorf("%s shows %q:\n%s", where, found, s)
	}
}

// want checks the exit code and prints what there was to see if it is wrong.
func (r result) want(t *testing.T, code int) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, want %d; stdout:\n%sstderr:\n%s", r.code, code, r.stdout, r.stderr)
	}
}

// csvOf returns an input with n messages, shared out over phones.
func csvOf(n, phones int) string {
	var b strings.Builder
	b.WriteString("to,text\n")
	for i := range n {
		fmt.Fprintf(&b, "+1202555%04d,hello %d\n", i%phones, i)
	}
	return b.String()
}

// gatewayOf answers with what f says, by the number of the message's try.
func gatewayOf(t *testing.T, f func(m Message, try int) int) string {
	t.Helper()
	var mu sync.Mutex
	tries := map[string]int{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m Message
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		tries[m.ID]++
		w.WriteHeader(f(m, tries[m.ID]))
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// TestDefaultRun is `go run ./examples/sms-sender`, its two minutes in virtual time.
func TestDefaultRun(t *testing.T) {
	t.Parallel()
	p := newProgram(t, "-grants", filepath.Join(t.TempDir(), "grants"))
	p.env.openRedis, p.env.openOutlet = redisInMemory, gatewayInMemory
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		r := p.run(t.Context())
		r.want(t, exitOK)
		if took := time.Since(start); took < 120*time.Second || took > 122*time.Second {
			t.Errorf("took %v, want two minutes", took)
		}
		got := r.report
		if got.Sent != 24 || got.Phones != 12 || got.Failed != 0 || got.Deferred != 12 || got.Breaches != 0 {
			t.Errorf("report = %+v, want 24 messages to 12 phones, 12 deferred, no failure, no breach", got)
		}
		if got.Admissions > 2*24 {
			t.Errorf("%d admissions for 24 messages, want two each at most", got.Admissions)
		}
		if gap := *got.MinGapMs; gap < 60_000 || gap > 60_100 {
			t.Errorf("smallest gap %v ms, want 60 s", gap)
		}
		if gap := *got.GatewayGapMs; gap < 60_000 || gap > 60_100 {
			t.Errorf("smallest gap at the gateway %v ms, want 60 s", gap)
		}
		for _, want := range []string{
			"24 messages to 12 phones: 2m0s at least\n",
			"sent 12 of 24, waiting 12, failed 0, next in 5[56]s\n",
			"sent 24 of 24, waiting 0, failed 0\n",
		} {
			if !regexp.MustCompile(want).MatchString(r.stderr) {
				t.Errorf("stderr has no %q:\n%s", want, r.stderr)
			}
		}
		for _, want := range []string{"+12…0117  3     60.000 s\n", "breaches        0 by the grants, 0 by the gateway's clock\n"} {
			if !strings.Contains(r.stdout, want) {
				t.Errorf("stdout has no %q:\n%s", want, r.stdout)
			}
		}
	})
}

// faultyRun is a run in virtual time against an embedded gateway that fails by
// spec, with its grants, and what the draws of its messages come to: each draws
// until it is taken, or until no try is left.
func faultyRun(t *testing.T, n, phones int, spec string) (r result, grants []Grant, want FaultStats) {
	t.Helper()
	p := newProgram(t, "-input", "-", "-once", "-limit", "1/4s", "-gateway-faults", spec)
	p.args = append(p.args, "-grants", p.path("grants"))
	p.env.stdin = strings.NewReader(csvOf(n, phones))
	p.env.retryDelay = func(int, error, *asynq.Task) time.Duration { return time.Second }
	p.env.openRedis, p.env.openOutlet = redisInMemory, gatewayInMemory
	synctest.Test(t, func(t *testing.T) { r = p.run(t.Context()) })

	grants, err := ReadGrants(p.path("grants"))
	if err != nil {
		t.Fatal(err)
	}
	msgs, err := ReadInputFile("-", strings.NewReader(csvOf(n, phones)))
	if err != nil {
		t.Fatal(err)
	}
	SetOnceIDs(msgs) // the ids of the run
	faults := mustFaults(t, spec)
	for _, m := range msgs {
		f := faultMaker{faults: faults, draws: map[string]uint64{}, closed: map[string]closing{}}
		for range 26 { // asynq's retries, and the first try
			kind, _ := f.next(Arrival{ID: m.ID, Key: m.To}, time.Time{})
			if clear(f.closed); kind == faultNone {
				break
			}
		}
		want.TooMany += f.stats.TooMany
		want.Unavailable += f.stats.Unavailable
		want.TimedOut += f.stats.TimedOut
	}
	return r, grants, want
}

// TestGatewayFaults loses no message and breaks no limit at a gateway of which one
// answer in three is a fault, the kind included that takes the message and does not say so.
func TestGatewayFaults(t *testing.T) {
	t.Parallel()
	const n, spec = 20, "429=12%,after=15s,5xx=12%,timeout=10%,seed=7"
	r, grants, want := faultyRun(t, n, 5, spec)
	r.want(t, exitOK)
	got := r.report
	if got.Sent != n || got.Failed != 0 || got.Phones != 5 || got.Breaches != 0 {
		t.Errorf("report = %+v, want %d sent to 5 phones, no failure, no breach", got, n)
	}
	if gap := *got.MinGapMs; gap < 4000 {
		t.Errorf("smallest gap %v ms, want 4 s", gap)
	}
	f := got.GatewayFaults
	if f == nil {
		t.Fatal("no gateway_faults in the report")
	}
	if want.TooMany == 0 || want.Unavailable == 0 || want.TimedOut == 0 {
		t.Errorf("the seed draws %+v, want some of each", want)
	}
	// What closed a phone was heeded: none of its messages came early.
	if have := (FaultStats{f.TooMany, f.EarlyAfter429, f.UnderWay429, f.Unavailable, f.TimedOut}); have != want || f.Spec != spec {
		t.Errorf("faults %q = %+v, want %q, %+v", f.Spec, have, spec, want)
	}
	if f.MostAtOnce < 1 || f.MostAtOnce > 10 {
		t.Errorf("%d at once, want 10 at most, the default of -concurrency", f.MostAtOnce)
	}
	if failed := want.TooMany + want.Unavailable + want.TimedOut; len(grants) != n+failed {
		t.Errorf("%d grants for %d messages and %d faults, want one for each try", len(grants), n, failed)
	}
	for _, want := range []string{
		// What timed out was taken, and came again.
		fmt.Sprintf("at the gateway   %d, %d of them again\n", n+want.TimedOut, want.TimedOut),
		fmt.Sprintf("faults           %d × 429, %d × 503, %d without an answer\n", want.TooMany, want.Unavailable, want.TimedOut),
		"breaches         0 by the grants, 0 by the gateway's clock\n",
	} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("stdout has no %q:\n%s", want, r.stdout)
		}
	}
	if want := "faults   " + spec + "\n"; !strings.Contains(r.stderr, want) {
		t.Errorf("stderr has no %q:\n%s", want, r.stderr)
	}
}

// TestGatewayAlwaysFails reports what is never taken.
func TestGatewayAlwaysFails(t *testing.T) {
	t.Parallel()
	r, grants, want := faultyRun(t, 2, 2, "5xx=100%")
	r.want(t, exitOK)
	if got := r.report; got.Sent != 0 || got.Failed != 2 {
		t.Errorf("sent %d and failed %d, want 0 and 2", got.Sent, got.Failed)
	}
	if f := r.report.GatewayFaults; f == nil || f.Unavailable != 2*26 || f.Unavailable != want.Unavailable {
		t.Errorf("faults = %+v, want 26 answers 503 per message", f)
	}
	if len(grants) != 2*26 {
		t.Errorf("%d grants, want one for each try", len(grants))
	}
	if n := strings.Count(r.stderr, "ERROR message failed for good"); n != 2 {
		t.Errorf("%d failures reported, want 2:\n%s", n, r.stderr)
	}
}

func TestReportFields(t *testing.T) {
	t.Parallel()
	p := newProgram(t, "-limit", "1000/1s")
	r := p.run(t.Context())
	r.want(t, exitOK)
	var got []string
	for _, f := range []string{
		"sent", "phones", "failed", "deferred", "admissions", "wake_checks", "late_p50_ms", "late_p99_ms",
		"min_gap_ms", "gateway_gap_ms", "breaches", "elapsed_s",
	} {
		if _, ok := r.raw[f]; !ok {
			got = append(got, f)
		}
	}
	if len(got) > 0 || len(r.raw) != 12 {
		t.Errorf("report has %d fields and lacks %v", len(r.raw), got)
	}
}

// TestInputFaults wants them all with their lines, and nothing in Redis.
func TestInputFaults(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := newProgram(t, "-redis", urlOf(srv), "-input", "-")
	p.env.stdin = strings.NewReader("to,text\n+12025550117,hello\n12025550118,hello\n+12025550119,\n+12025550117,\"hello\n")
	r := p.run(t.Context())
	r.want(t, exitUsage)
	want := `input: 3 faults
  line 3: to 120…0118 does not start with +
  line 4: text is empty
  line 5: broken quoting: a " too many or too few in a quoted field
`
	if diff := cmp.Diff(want, r.stderr); diff != "" {
		t.Errorf("stderr (-want +got):\n%s", diff)
	}
	if r.stdout != "" {
		t.Errorf("stdout = %q, want none", r.stdout)
	}
	checkEmpty(t, srv)

	p.env.stdin = strings.NewReader("phone,text\n+12025550117,hello\n")
	p.args = append(p.args, "-skip-invalid")
	r = p.run(t.Context())
	r.want(t, exitUsage) // nothing is left to send
	checkEmpty(t, srv)
}

func TestAllInputFaultsArePrinted(t *testing.T) {
	t.Parallel()
	p := newProgram(t, "-input", "-")
	p.env.stdin = strings.NewReader("to,text\n" + strings.Repeat("+1,hello\n", 200))
	r := p.run(t.Context())
	r.want(t, exitUsage)
	if n := strings.Count(r.stderr, "\n"); n != 201 || !strings.Contains(r.stderr, "  line 201: ") {
		t.Errorf("%d lines, want 201, the last of line 201", n)
	}
}

func TestSkipInvalid(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := newProgram(t, "-redis", urlOf(srv), "-input", "-", "-skip-invalid", "-limit", "1/200ms")
	p.env.stdin = strings.NewReader("to,text\n+12025550117,hello\n12025550118,hello\n+12025550117,hello\n")
	r := p.run(t.Context())
	r.want(t, exitOK)
	if r.report.Sent != 2 || !strings.Contains(r.stderr, "input: 1 fault, skipped\n  line 3: to 120…0118 does not start with +") {
		t.Errorf("sent %d, want 2 and a report of line 3:\n%s", r.report.Sent, r.stderr)
	}
	if gap := *r.report.MinGapMs; gap < 200 {
		t.Errorf("smallest gap %v ms, want 200", gap)
	}
	checkKeys(t, srv)
}

func TestOnce(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	for i, want := range []struct {
		sent int
		says string
	}{
		{6, "6 messages enqueued, 0 already there\n"},
		{0, "0 messages enqueued, 6 already there\n"},
	} {
		p := newProgram(t, "-redis", urlOf(srv), "-input", "-", "-once", "-limit", "1/200ms")
		p.env.stdin = strings.NewReader(csvOf(5, 2) + "+12025550000,hello 0\n") // two of a kind are two
		r := p.run(t.Context())
		r.want(t, exitOK)
		if r.report.Sent != want.sent || !strings.Contains(r.stderr, want.says) {
			t.Errorf("run %d: sent %d, want %d, and %q in:\n%s", i+1, r.report.Sent, want.sent, want.says, r.stderr)
		}
	}
}

// TestWorkersShare starts two workers before there is a queue, and enqueues.
func TestWorkersShare(t *testing.T) {
	t.Parallel()
	const n = 60
	srv := redistest.Start(t)
	limit := throttle.Sliding(1, 200*time.Millisecond)
	gateway, err := StartGateway(t.Context(), smsPolicy(limit), Faults{}, []byte("the test's own"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = gateway.Shutdown(context.Background()) })
	grants := filepath.Join(t.TempDir(), "grants")

	results := make([]result, 2)
	var wg sync.WaitGroup
	for i := range results {
		p := newProgram(t, "-redis", urlOf(srv), "-role", "work", "-drain", "-gateway", gateway.URL(),
			"-limit", "1/200ms", "-grants", grants, "-concurrency", "4")
		wg.Go(func() { results[i] = p.run(t.Context()) })
	}
	p := newProgram(t, "-redis", urlOf(srv), "-role", "enqueue", "-input", "-", "-limit", "1/200ms")
	p.env.stdin = strings.NewReader(csvOf(n, 6))
	r := p.run(t.Context())
	r.want(t, exitOK)
	if !strings.Contains(r.stderr, "60 messages enqueued\n") {
		t.Errorf("stderr = %q, want how many were enqueued", r.stderr)
	}
	wg.Wait()

	sent := 0
	for _, r := range results {
		r.want(t, exitOK)
		sent += r.report.Sent
		if r.report.GatewayGapMs != nil {
			t.Error("gateway_gap_ms of a gateway that is not ours")
		}
	}
	stats := gateway.Stats()
	if sent != n || stats.Messages != n || stats.Duplicates != 0 || stats.Breaches != 0 {
		t.Errorf("sent %d, at the gateway %+v, want %d each, none twice, no breach", sent, stats, n)
	}
	all, err := ReadGrants(grants)
	if err != nil {
		t.Fatal(err)
	}
	if breaches := Breaches(all, smsPolicy(limit).Rules[0]); len(all) != n || breaches != 0 {
		t.Errorf("%d grants with %d breaches, want %d without", len(all), breaches, n)
	}
	phones := map[string]bool{}
	for _, g := range all {
		phones[g.Key] = true
	}
	if len(phones) != 6 {
		t.Errorf("grants of two processes group by %d keys, want 6", len(phones))
	}
	checkKeys(t, srv)
}

// TestBreachFails hands the run a grants file in which the limit is broken.
func TestBreachFails(t *testing.T) {
	t.Parallel()
	p := newProgram(t, "-limit", "1/1s")
	path := p.path("grants")
	w, err := OpenGrants(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, us := range []int64{1_000_000, 1_999_999} {
		if err := w.Write(Grant{ID: "1", Key: "k", Attempt: fmt.Sprint(us), GrantedUs: us}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	p.args = append(p.args, "-grants", path)
	r := p.run(t.Context())
	r.want(t, exitRun)
	if r.report.Breaches != 1 || !strings.Contains(r.stderr, "the limit was broken: 1 time by the granted instants") {
		t.Errorf("breaches = %d, want 1 and a word about it:\n%s", r.report.Breaches, r.stderr)
	}
}

func TestGatewayRefuses(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	url := gatewayOf(t, func(m Message, _ int) int {
		if m.Text == "hello 1" {
			return http.StatusBadRequest
		}
		return http.StatusOK
	})
	p := newProgram(t, "-redis", urlOf(srv), "-input", "-", "-gateway", url, "-limit", "1/200ms")
	p.env.stdin = strings.NewReader(csvOf(4, 2))
	r := p.run(t.Context())
	r.want(t, exitOK)
	if r.report.Sent != 3 || r.report.Failed != 1 {
		t.Errorf("sent %d and failed %d, want 3 and 1", r.report.Sent, r.report.Failed)
	}
	for _, want := range []string{"ERROR message failed for good", `"phone": "+12…0001"`, "gateway: refused with status 400"} {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("stderr has no %q:\n%s", want, r.stderr)
		}
	}
	q, err := asynq.NewInspectorFromRedisClient(srv.Client(t)).GetQueueInfo(queueName)
	if err != nil {
		t.Fatal(err)
	}
	if q.Archived != 1 {
		t.Errorf("%d in the archive, want 1", q.Archived)
	}
}

func TestGatewayFailsOnce(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	url := gatewayOf(t, func(m Message, try int) int {
		if m.Text == "hello 0" && try == 1 {
			return http.StatusBadGateway
		}
		return http.StatusNoContent
	})
	p := newProgram(t, "-redis", urlOf(srv), "-input", "-", "-gateway", url, "-limit", "1/200ms", "-grants", filepath.Join(t.TempDir(), "grants"))
	p.env.stdin = strings.NewReader(csvOf(2, 1))
	p.env.retryDelay = func(int, error, *asynq.Task) time.Duration { return 10 * time.Millisecond }
	r := p.run(t.Context())
	r.want(t, exitOK)
	if r.report.Sent != 2 || r.report.Failed != 0 {
		t.Errorf("sent %d and failed %d, want 2 and 0", r.report.Sent, r.report.Failed)
	}
	if !strings.Contains(r.stderr, "WARN message not sent, asynq tries again") || !strings.Contains(r.stderr, "status 502") {
		t.Errorf("stderr does not say that a message was not sent:\n%s", r.stderr)
	}
}

// TestFailsForGood has a task on its last attempt, and one without a phone.
func TestFailsForGood(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	client := asynq.NewClientFromRedisClient(srv.Client(t))
	for _, payload := range []string{`{"id":"1","to":"+12025550117","text":"hello"}`, `{"id":"2","text":"hello"}`} {
		if _, err := client.Enqueue(asynq.NewTask(taskType, []byte(payload)), asynq.Queue(queueName), asynq.MaxRetry(0)); err != nil {
			t.Fatal(err)
		}
	}
	url := gatewayOf(t, func(Message, int) int { return http.StatusServiceUnavailable })
	p := newProgram(t, "-redis", urlOf(srv), "-role", "work", "-drain", "-gateway", url)
	r := p.run(t.Context())
	r.want(t, exitOK)
	if r.report.Sent != 0 || r.report.Failed != 2 {
		t.Errorf("sent %d and failed %d, want 0 and 2", r.report.Sent, r.report.Failed)
	}
	if n := strings.Count(r.stderr, "ERROR message failed for good"); n != 2 {
		t.Errorf("%d failures reported, want 2:\n%s", n, r.stderr)
	}
}

// TestInterrupted ends a run by Ctrl-C; -role work and a second run with -once go on.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	for _, again := range [][]string{
		{"-role", "work", "-drain"},
		{"-input", "-", "-once"},
	} {
		t.Run(again[1], func(t *testing.T) {
			t.Parallel()
			srv := redistest.Start(t)
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			var arrived atomic.Int64
			url := gatewayOf(t, func(Message, int) int {
				if arrived.Add(1) == 3 {
					interrupt() // in the middle of a POST, which still counts
				}
				return http.StatusOK
			})
			const n = 6
			first := newProgram(t, "-redis", urlOf(srv), "-input", "-", "-gateway", url, "-limit", "1/500ms", "-once")
			first.env.stdin = strings.NewReader(csvOf(n, 1))
			r := first.run(ctx)
			r.want(t, exitOK)
			sent := r.report.Sent
			if sent != 3 {
				t.Errorf("sent %d before the interrupt, want 3", sent)
			}
			if want := fmt.Sprintf("interrupted: %s left in Redis, -role work goes on\n", count(n-sent, "message")); !strings.Contains(r.stderr, want) {
				t.Errorf("stderr has no %q:\n%s", want, r.stderr)
			}
			if !strings.Contains(r.stdout, "breaches") {
				t.Errorf("no summary:\n%s", r.stdout)
			}

			second := newProgram(t, append(again, "-redis", urlOf(srv), "-gateway", url, "-limit", "1/500ms")...)
			second.env.stdin = strings.NewReader(csvOf(n, 1))
			r = second.run(t.Context())
			r.want(t, exitOK)
			if r.report.Sent != n-sent {
				t.Errorf("sent %d and then %d, want %d in all", sent, r.report.Sent, n)
			}
		})
	}
}

// TestInterruptedWhileEnqueueing is a failure: the input is not in Redis.
func TestInterruptedWhileEnqueueing(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	p := newProgram(t, "-redis", urlOf(srv), "-role", "enqueue")
	r := p.run(ctx)
	r.want(t, exitRun)
}

// TestWithoutDrain works until it is told to end, on a queue that stays empty.
func TestWithoutDrain(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-role", "all", "-drain=false"}, {"-role", "work"}} {
		srv := redistest.Start(t)
		p := newProgram(t, append(args, "-redis", urlOf(srv), "-limit", "100/1s")...)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		start := time.Now()
		r := p.run(ctx)
		cancel()
		r.want(t, exitOK)
		if took := time.Since(start); took < 2*time.Second {
			t.Errorf("%v: ended by itself after %v", args, took)
		}
	}
}

func TestInterruptedEmbedded(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	r := newProgram(t).run(ctx)
	r.want(t, exitOK)
	if want := "interrupted: 12 messages not sent, and lost with the embedded Redis\n"; !strings.Contains(r.stderr, want) {
		t.Errorf("stderr has no %q:\n%s", want, r.stderr)
	}
}

func TestRedisAway(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	addr := urlOf(srv)
	srv.Stop()
	for _, role := range []string{"all", "enqueue", "work"} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			r := newProgram(t, "-redis", addr, "-role", role).run(t.Context())
			r.want(t, exitRun)
			if !strings.HasPrefix(r.stderr, "sms-sender: redis: ") {
				t.Errorf("stderr = %q, want that Redis is away", r.stderr)
			}
		})
	}
}

// urlOf leads to the database of a test.
func urlOf(srv *redistest.Server) string {
	return fmt.Sprintf("redis://%s/%d", srv.Addr(), srv.ClientOptions().DB)
}

func checkEmpty(t *testing.T, srv *redistest.Server) {
	t.Helper()
	if n := srv.Client(t).DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys in Redis, want none", n)
	}
}

// checkKeys looks for phone numbers in the names of keys, and for keys that stay
// for ever beside asynq's.
func checkKeys(t *testing.T, srv *redistest.Server) {
	t.Helper()
	var rdb redis.UniversalClient = srv.Client(t)
	keys, err := rdb.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		checkPersonal(t, "a key", key)
		if !strings.HasPrefix(key, "asynq:") && rdb.TTL(t.Context(), key).Val() < 0 {
			t.Errorf("key %s stays for ever", key)
		}
	}
}
