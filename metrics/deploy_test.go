package metrics_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/metrics"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/queue/schedule"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// program finds a program of Prometheus.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed, so nothing in deploy/ is tested: run tools/install-prometheus", name)
	}
	return path
}

// Each alert is valid, fires on what it is about, and is silent where all is well.
func TestAlerts(t *testing.T) {
	t.Parallel()
	promtool := program(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = filepath.Join("..", "deploy")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// expression is one of the board or of the alerts.
type expression struct{ where, text string }

func expressions(t *testing.T) (board, alerts []expression) {
	t.Helper()
	var grafana struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	text, err := os.ReadFile(filepath.Join("..", "deploy", "grafana.json"))
	if err == nil {
		err = json.Unmarshal(text, &grafana)
	}
	if err != nil {
		t.Fatal(err)
	}
	given := strings.NewReplacer("$__rate_interval", "1m", "$queue", ".*", "$rule", ".*") // as Grafana does
	for _, p := range grafana.Panels {
		for _, e := range p.Targets {
			board = append(board, expression{"panel " + p.Title, given.Replace(e.Expr)})
		}
	}
	var file struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	text, err = os.ReadFile(filepath.Join("..", "deploy", "alerts.yaml"))
	if err == nil {
		err = yaml.Unmarshal(text, &file)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range file.Groups[0].Rules {
		alerts = append(alerts, expression{"alert " + r.Alert, r.Expr})
	}
	return board, alerts
}

// A Prometheus scrapes a pool that works. Each expression of the board has an answer then,
// and each of the alerts can be evaluated; of a pool that is well, none fires but those about
// what the test has done.
func TestBoardOnRealFigures(t *testing.T) {
	t.Parallel()
	prom := startPrometheus(t, program(t, "prometheus"), exposition(t))
	for prom.count(t, `count_over_time(headway_lateness_seconds_count[1m]) >= 4`) == 0 {
		time.Sleep(20 * time.Millisecond)
	}
	board, alerts := expressions(t)
	if len(board) < 20 || len(alerts) < 10 {
		t.Fatalf("%d expressions of the board and %d of alerts", len(board), len(alerts))
	}
	for _, e := range board {
		if prom.count(t, e.text) == 0 {
			t.Errorf("%s: %s has no answer", e.where, e.text)
		}
	}
	done := map[string]bool{"alert HeadwayRuleClosed": true, "alert HeadwayQueuePaused": true}
	for _, e := range alerts {
		if n := prom.count(t, e.text); (n > 0) != done[e.where] {
			t.Errorf("%s: %s has %d answers", e.where, e.text, n)
		}
	}
}

// exposition is the address of the metrics of a pool that works.
func exposition(t *testing.T) string {
	t.Helper()
	rdb := redistest.Start(t).Client(t)
	policies := []queue.Policy{{Type: "sms", Rules: []queue.Rule{
		{Name: "phone", Limit: throttle.Sliding(1, 200*time.Millisecond), Key: queue.MustJSONKey("$.to")},
		{Name: "provider", Limit: throttle.GCRA(1000, time.Second, 10), Constant: "acme"},
	}}, {Type: "later", Rules: []queue.Rule{{Name: "hour", Limit: throttle.Sliding(1, time.Hour), Constant: "all"}}}}
	inspector, err := inspect.New(rdb, inspect.Config{Policies: policies})
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	m, err := metrics.New(reg)
	if err != nil {
		t.Fatal(err)
	}
	if err := metrics.RegisterQueues(reg, inspector); err != nil {
		t.Fatal(err)
	}
	rdb.AddHook(m.Hook())
	ran := make(chan struct{}, 100)
	pool, err := worker.New(rdb, asynq.HandlerFunc(func(context.Context, *asynq.Task) error { ran <- struct{}{}; return nil }),
		worker.Config{Policies: policies, Observer: m.Observer(), Servers: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := pool.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Shutdown)
	client, err := queue.NewClient(rdb, queue.ClientConfig{Policies: policies})
	if err != nil {
		t.Fatal(err)
	}
	for n := range 6 {
		if _, err := client.Enqueue(t.Context(), queue.NewTask("sms", fmt.Appendf(nil, `{"to":"+4917%d"}`, n%2))); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range client.BookMany(t.Context(), []*queue.Task{queue.NewTask("later", nil), queue.NewTask("later", nil)}) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	for range 7 {
		<-ran
	}
	why := inspect.Reason{Who: "ann", Why: "a test"}
	if _, err := inspector.CloseRule(t.Context(), "hour", time.Hour, why); err != nil {
		t.Fatal(err)
	}
	if err := inspector.SetLimit(t.Context(), "hour", throttle.Sliding(2, time.Hour), 0, why); err != nil {
		t.Fatal(err)
	}
	if err := inspector.PauseQueue(t.Context(), "default", why); err != nil {
		t.Fatal(err)
	}
	batches := batch.NewControl(client)
	if _, err := batches.Start(t.Context(), batch.Spec{ID: "winter", Type: "sms", Source: "messages", Total: 100}); err != nil {
		t.Fatal(err)
	}
	if err := batches.Pause(t.Context(), "default", "winter"); err != nil {
		t.Fatal(err)
	}
	// What happens rarely is told by hand.
	m.Tick(schedule.Tick{Entry: "nightly", Outcome: schedule.OutcomeEnqueued})
	o := m.Observer()
	o.LeaseLost(t.Context(), event.LeaseLost{Rule: "slots"})
	o.Postponed(t.Context(), event.Postponed{Rule: "phone"})
	o.KeyClosed(t.Context(), event.KeyClosed{Rule: "phone"})
	o.LimitChanged(t.Context(), event.LimitChanged{Rule: "hour"})
	o.Refused(t.Context(), event.Refused{Rule: "phone", Reason: event.Unavailable})
	srv := httptest.NewServer(promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

// prometheusServer is one of the test's own.
type prometheusServer struct {
	url    string
	client *http.Client
}

func startPrometheus(t *testing.T, path, target string) *prometheusServer {
	t.Helper()
	dir := t.TempDir()
	config := fmt.Sprintf("global: {scrape_interval: 200ms, scrape_timeout: 200ms}\nscrape_configs:\n  - job_name: headway\n    static_configs: [{targets: [%q]}]\n", target)
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	var log bytes.Buffer
	cmd := exec.Command(path, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+addr)
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	transport := &http.Transport{}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = cmd.Process.Kill()
		<-ended
	})
	p := &prometheusServer{"http://" + addr, &http.Client{Transport: transport}}
	for {
		if r, err := p.client.Get(p.url + "/-/ready"); err == nil {
			_ = r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return p
			}
		}
		select {
		case <-ended:
			t.Fatalf("prometheus ended:\n%s", log.String())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// count is how many series an expression answers.
func (p *prometheusServer) count(t *testing.T, text string) int {
	t.Helper()
	r, err := p.client.PostForm(p.url+"/api/v1/query", url.Values{"query": {text}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct{ Result []json.RawMessage }
	}
	if err := json.NewDecoder(r.Body).Decode(&answer); err != nil || answer.Status != "success" {
		t.Fatalf("%s: %s, %v", text, answer.Error, err)
	}
	return len(answer.Data.Result)
}
