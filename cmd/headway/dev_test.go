package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/headwayq/headway/dashboard"
	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue/batch"
)

// Prometheus' text of the demonstration has the figures that its gateway counts, which judges
// the limits by its own clock.
func TestDevMeasuresWhatTheGatewayCounts(t *testing.T) {
	t.Parallel()
	rdb, stop, err := e2e.OpenRedis(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	d, err := startDemo(t.Context(), rdb, "", zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.close(); err != nil {
			t.Error(err)
		}
	}()
	least := 30
	if testing.Short() {
		least = 10
	}
	soon(t, fmt.Sprintf("the gateway has %d messages", least), func() bool { return d.gateway.Stats().Messages >= least })
	d.stopLoad()
	d.stopPool() // messages under way have come to the gateway now
	counted := make(map[string]int)
	for _, a := range d.gateway.Arrivals() {
		for _, r := range d.policy.Rules {
			if c, ok := e2e.ChargeOf(a.Charges, r.Name, a.Key); ok {
				counted[r.Name] += c.Cost
			}
		}
	}
	stats, text := d.gateway.Stats(), metricsOf(t, d)
	for _, r := range d.policy.Rules {
		if counted[r.Name] != stats.Messages {
			t.Errorf("the gateway counts %d permits of rule %s for %d messages", counted[r.Name], r.Name, stats.Messages)
		}
		if want := fmt.Sprintf("headway_admissions_total{outcome=\"granted\",rule=%q} %d\n", r.Name, counted[r.Name]); !strings.Contains(text, want) {
			t.Errorf("the metrics have no %sbut\n%s", want, linesWith(text, "headway_admissions_total{"))
		}
	}
	if stats.Breaches != 0 || stats.Duplicates != 0 {
		t.Errorf("the gateway counts %d breaches and %d messages that came twice", stats.Breaches, stats.Duplicates)
	}
	if deferred := linesWith(text, `headway_binding_total{`); deferred == "" {
		t.Error("no rule made a message wait")
	}
}

func metricsOf(t *testing.T, d *demo) string {
	t.Helper()
	h, err := d.handler(dashboard.Config{})
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	return w.Body.String()
}

func linesWith(text, begin string) (found string) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, begin) {
			found += line
		}
	}
	return found
}

// soon waits until something is so, at most a minute.
func soon(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	end := time.After(time.Minute)
	for !is() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("a minute later it is not so that %s", what)
		}
	}
}

// A batch ends while messages of the sample keep coming, because it has none of their phones.
func TestDevBatchHasPhonesOfItsOwn(t *testing.T) {
	t.Parallel()
	sample := make(map[string]bool)
	for _, m := range e2e.Sample() {
		sample[m.To] = true
	}
	elements := 0
	for e := range newsletter(batch.Spec{ID: "letter-1"}) {
		m, err := e2e.DecodeMessage(e.Payload)
		if err != nil {
			t.Fatal(err)
		}
		if elements++; sample[m.To] || e2e.PhoneFault(m.To) != "" {
			t.Errorf("element %d goes to %s, want a phone number that the sample does not have", elements, m.To)
		}
	}
	if elements != devBatch {
		t.Errorf("%d elements, want %d", elements, devBatch)
	}
}

// dev says where its pages are, answers until Ctrl-C, and leaves nothing on a server that was
// given.
func TestDev(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Own())
	rdb := srv.Client(t)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	in, out := io.Pipe()
	var stderr bytes.Buffer
	code := make(chan int, 1)
	go func() {
		code <- command(ctx, []string{"dev", "--redis", srv.Addr(), "--listen", "127.0.0.1:0"}, env{stdout: out, stderr: &stderr})
		_ = out.Close()
	}()
	at := make(map[string]string)
	for lines := bufio.NewScanner(in); lines.Scan() && lines.Text() != "Ctrl-C ends it"; {
		name, value, _ := strings.Cut(lines.Text(), " ")
		at[name] = strings.TrimSpace(value)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	page := func(url string) string {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d, %v", url, answer.StatusCode, err)
		}
		return string(body)
	}
	soon(t, "the dashboard shows the queue", func() bool { return strings.Contains(page(at["dashboard"]), "headway-dev-") })
	soon(t, "a message was granted", func() bool {
		return strings.Contains(page(at["metrics"]), `headway_admissions_total{outcome="granted",rule="phone"}`)
	})
	var stdout bytes.Buffer
	args := strings.Fields(strings.TrimPrefix(at["try"], "headway"))
	if got := command(t.Context(), args, env{stdout: &stdout, stderr: &stderr}); got != exitOK || !strings.Contains(stdout.String(), "phone") {
		t.Errorf("headway %v: exit code %d, %s%s", args, got, &stdout, &stderr)
	}
	interrupt()
	if got := <-code; got != exitOK {
		t.Errorf("exit code %d, want %d: %s", got, exitOK, &stderr)
	}
	if left, err := rdb.Keys(t.Context(), "*").Result(); err != nil || len(left) > 0 {
		t.Errorf("it leaves %q, %v", left, err)
	}
}

// dev does not begin with flags that mean nothing to it.
func TestDevFlags(t *testing.T) {
	t.Parallel()
	for flags, want := range map[string]int{
		"--listen 0.0.0.0:80": exitUsage, "--watch": exitUsage, "-o json": exitUsage, "--prefix x": exitUsage, "--redis h": exitUsage,
		"--redis 127.0.0.1:1 --timeout 1s": exitAway, "--redis a:1,b:2": exitUsage,
	} {
		var stdout, stderr bytes.Buffer
		if code := command(t.Context(), append([]string{"dev"}, strings.Fields(flags)...), env{stdout: &stdout, stderr: &stderr}); code != want || stderr.Len() == 0 {
			t.Errorf("dev %s: exit code %d, want %d; %s", flags, code, want, &stderr)
		}
	}
}
