package prove

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"

	"github.com/headwayq/headway/internal/e2e"
)

// TestDefaultRun is "headway prove" without flags, its two minutes in virtual time.
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

// TestWorkersShare starts two workers before there is a queue, and enqueues.
func TestWorkersShare(t *testing.T) {
	t.Parallel()
	const n = 60
	srv := redistest.Start(t)
	limit := throttle.Sliding(1, 200*time.Millisecond)
	gateway, err := e2e.StartGateway(t.Context(), e2e.PhoneLimit(limit), e2e.Faults{}, []byte("the test's own"))
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
	all, err := e2e.ReadGrants(grants)
	if err != nil {
		t.Fatal(err)
	}
	if breaches := e2e.Breaches(all, e2e.PhoneLimit(limit).Rules[0]); len(all) != n || breaches != 0 {
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
	w, err := e2e.OpenGrants(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, us := range []int64{1_000_000, 1_999_999} {
		if err := w.Write(e2e.Grant{ID: "1", Key: "k", Attempt: fmt.Sprint(us), GrantedUs: us}); err != nil {
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
