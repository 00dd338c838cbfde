package prove

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/redistest"

	"github.com/headwayq/headway/internal/e2e"
)

// faultyRun is a run in virtual time against an embedded gateway that fails by
// spec, with its grants.
func faultyRun(t *testing.T, n, phones int, spec string) (r result, grants []e2e.Grant) {
	t.Helper()
	p := newProgram(t, "-input", "-", "-once", "-limit", "1/4s", "-gateway-faults", spec)
	p.args = append(p.args, "-grants", p.path("grants"))
	p.env.stdin = strings.NewReader(csvOf(n, phones))
	p.env.retryDelay = func(int, error, *asynq.Task) time.Duration { return time.Second }
	p.env.openRedis, p.env.openOutlet = redisInMemory, gatewayInMemory
	synctest.Test(t, func(t *testing.T) { r = p.run(t.Context()) })

	grants, err := e2e.ReadGrants(p.path("grants"))
	if err != nil {
		t.Fatal(err)
	}
	return r, grants
}

// TestGatewayFaults loses no message and breaks no limit at a gateway of which one
// answer in three is a fault, the kind included that takes the message and does not say so.
func TestGatewayFaults(t *testing.T) {
	t.Parallel()
	const n, spec = 20, "429=12%,after=15s,5xx=12%,timeout=10%,seed=7"
	r, grants := faultyRun(t, n, 5, spec)
	want := e2e.FaultStats{TooMany: 5, Unavailable: 3, TimedOut: 3} // the draws of this seed for these messages
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
	// What closed a phone was heeded: none of its messages came early.
	if have := (e2e.FaultStats{TooMany: f.TooMany, EarlyAfter429: f.EarlyAfter429, UnderWay429: f.UnderWay429, Unavailable: f.Unavailable, TimedOut: f.TimedOut}); have != want || f.Spec != spec {
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
	r, grants := faultyRun(t, 2, 2, "5xx=100%")
	r.want(t, exitOK)
	if got := r.report; got.Sent != 0 || got.Failed != 2 {
		t.Errorf("sent %d and failed %d, want 0 and 2", got.Sent, got.Failed)
	}
	if f := r.report.GatewayFaults; f == nil || f.Unavailable != 2*26 {
		t.Errorf("faults = %+v, want 26 answers 503 per message", f)
	}
	if len(grants) != 2*26 {
		t.Errorf("%d grants, want one for each try", len(grants))
	}
	if n := strings.Count(r.stderr, "ERROR message failed for good"); n != 2 {
		t.Errorf("%d failures reported, want 2:\n%s", n, r.stderr)
	}
}

func TestGatewayRefuses(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	url := gatewayOf(t, func(m e2e.Message, _ int) int {
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
	url := gatewayOf(t, func(m e2e.Message, try int) int {
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
		if _, err := client.Enqueue(asynq.NewTask(e2e.TaskType, []byte(payload)), asynq.Queue(queueName), asynq.MaxRetry(0)); err != nil {
			t.Fatal(err)
		}
	}
	url := gatewayOf(t, func(e2e.Message, int) int { return http.StatusServiceUnavailable })
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
			if !strings.HasPrefix(r.stderr, "headway prove: redis: ") {
				t.Errorf("stderr = %q, want that Redis is away", r.stderr)
			}
		})
	}
}
