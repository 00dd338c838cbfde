package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/internal/redistest"
)

// TestDefaultRun is `go run ./examples/sms-sender`, its two minutes in virtual time.
func TestDefaultRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := miniredis.NewMiniRedis()
		m.ClockTTL(true)
		rdb := redis.NewClient(redistest.MiniOptions(m))
		defer func() { _ = rdb.Close(); m.Close() }()
		policy, err := phonePolicy("1/60s")
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		r := runProgram(t.Context(), t, env{rdb: rdb, gateway: e2e.NewGateway(policy, e2e.Faults{}, nil)}, "")
		r.want(t, exitOK, "24 messages to 12 phones: 2m0s at least\n", "sent 12 of 24, waiting 12, failed 0, next in 5", "sent 24 of 24, waiting 0, failed 0\n")
		if took := time.Since(start); took < 120*time.Second || took > 122*time.Second {
			t.Errorf("took %v, want two minutes", took)
		}
		got := r.report
		if got.Sent != 24 || got.Phones != 12 || got.Failed != 0 || got.Deferred != 12 || got.Breaches != 0 || got.Admissions > 2*24 {
			t.Errorf("report = %+v, want 24 messages to 12 phones, 12 deferred, no failure, no breach", got)
		}
		for _, gap := range []*float64{got.MinGapMs, got.GatewayGapMs} {
			if gap == nil || *gap < 60_000 || *gap > 60_100 {
				t.Errorf("smallest gaps of %+v, want 60 s", got)
			}
		}
		for _, want := range []string{"+12…0117  3     60.000 s\n", "breaches        0 by the grants, 0 by the gateway's clock\n"} {
			if !strings.Contains(r.stdout, want) {
				t.Errorf("stdout has no %q:\n%s", want, r.stdout)
			}
		}
	})
}

// TestWorkersShare starts two workers before there is a queue, and enqueues.
func TestWorkersShare(t *testing.T) {
	t.Parallel()
	const n = 30
	srv := redistest.Start(t)
	policy, err := phonePolicy("1/200ms")
	if err != nil {
		t.Fatal(err)
	}
	gateway, err := e2e.StartGateway(t.Context(), policy, e2e.Faults{}, []byte("the test's own"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = gateway.Shutdown(context.Background()) })
	var results [2]result
	var wg sync.WaitGroup
	for i := range results {
		wg.Go(func() {
			results[i] = runProgram(t.Context(), t, env{}, "", "-redis", urlOf(srv), "-role", "work", "-drain", "-gateway", gateway.URL(), "-limit", "1/200ms")
		})
	}
	r := runProgram(t.Context(), t, env{}, csvOf(n, 6), "-redis", urlOf(srv), "-role", "enqueue", "-input", "-", "-limit", "1/200ms")
	r.want(t, exitOK, "30 of 30 messages enqueued\n")
	wg.Wait()
	sent := 0
	for _, r := range results {
		r.want(t, exitOK)
		sent += r.report.Sent
	}
	if stats := gateway.Stats(); sent != n || stats.Messages != n || stats.Duplicates != 0 || stats.Breaches != 0 {
		t.Errorf("sent %d, at the gateway %+v, want %d each, none twice, no breach", sent, stats, n)
	}
	keys, err := srv.Client(t).Keys(t.Context(), "*").Result()
	if found := personal.FindString(strings.Join(keys, "\n")); err != nil || found != "" {
		t.Errorf("a key shows %q: %v", found, err)
	}
}

// TestInputFaults wants all faults with their lines, and nothing in Redis.
func TestInputFaults(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	const input = "to,text\n+12025550117,hello\n12025550118,hello\n+12025550119,\n+12025550117,hello\n"
	r := runProgram(t.Context(), t, env{}, input, "-redis", urlOf(srv), "-input", "-")
	r.want(t, exitUsage, "input: 2 faults\n", "  line 3: to 120…0118 does not start with +\n", "  line 4: text is empty\n")
	if n := srv.Client(t).DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys in Redis, want none", n)
	}
	r = runProgram(t.Context(), t, env{}, input, "-redis", urlOf(srv), "-input", "-", "-skip-invalid", "-limit", "1/200ms")
	r.want(t, exitOK, "input: 2 faults, skipped\n  line 3: ")
	if r.report.Sent != 2 || *r.report.MinGapMs < 200 {
		t.Errorf("report = %+v, want two messages 200 ms apart", r.report)
	}
}

func TestOnce(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	for _, want := range []struct {
		sent int
		says string
	}{{6, "6 messages enqueued, 0 already there\n"}, {0, "0 messages enqueued, 6 already there\n"}} {
		input := csvOf(5, 2) + "+12025550000,hello 0\n" // two equal messages are two
		r := runProgram(t.Context(), t, env{}, input, "-redis", urlOf(srv), "-input", "-", "-once", "-limit", "1/200ms")
		r.want(t, exitOK, want.says)
		if r.report.Sent != want.sent {
			t.Errorf("sent %d, want %d", r.report.Sent, want.sent)
		}
	}
}

// TestInterrupted ends a run early. Another goes on.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	r := runProgram(ctx, t, env{}, csvOf(4, 1), "-redis", urlOf(srv), "-input", "-", "-limit", "1/700ms")
	r.want(t, exitOK, " left in Redis, -role work goes on\n")
	again := runProgram(t.Context(), t, env{}, "", "-redis", urlOf(srv), "-role", "work", "-drain", "-limit", "1/700ms")
	again.want(t, exitOK)
	if r.report.Sent == 0 || again.report.Sent == 0 || r.report.Sent+again.report.Sent != 4 {
		t.Errorf("sent %d and then %d, want 4 in all", r.report.Sent, again.report.Sent)
	}
}

// TestPolicies runs by a file, and refuses what a file never lets through.
func TestPolicies(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	policy := func(text string) string {
		path := filepath.Join(t.TempDir(), "policy.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const rules = "rules:\n  day: {gate: \"00:00-24:00 recipient\", zone: phone $.to}\n  phone: {limit: 1/200ms, key: $.to}\n  all: {limit: 2/100ms, key: =provider}\n"
	file := policy(rules + "policies:\n  sms:send: {rules: [day, phone, all]}\n")
	r := runProgram(t.Context(), t, env{}, csvOf(8, 3), "-redis", urlOf(srv), "-policy", file, "-input", "-")
	r.want(t, exitOK, "rule     phone: sliding 1/200ms\n")
	if r.report.Sent != 8 || r.report.Breaches != 0 || len(r.report.Rules) != 3 {
		t.Errorf("report = %+v, want 8 sent by three rules, no breach", r.report)
	}
	r = runProgram(t.Context(), t, env{}, "to,text\n+351912345678,hello\n", "-redis", urlOf(srv), "-policy", file, "-input", "-")
	r.want(t, exitUsage, "message to +35…5678: ", "several zones")
	r = runProgram(t.Context(), t, env{}, "", "-redis", urlOf(srv), "-policy", policy("rules:\n  a: {limit: 1/x, key: $.to}\npolicies:\n  sms:send: {rules: [a]}\n"))
	r.want(t, exitUsage, "line 2, column 14: ")
	if _, err := e2e.ReadPolicy("policy.yaml"); err != nil {
		t.Error(err)
	}
}
