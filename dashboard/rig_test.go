package dashboard

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a Redis with tasks, and a dashboard of it.
type rig struct {
	*testing.T
	rdb    *redis.Client
	client *queue.Client
	board  http.Handler
}

var because = inspect.Reason{Who: "ann", Why: "a test"}

func policies(t *testing.T) []queue.Policy {
	t.Helper()
	hours, err := gate.Parse("00:00-24:00 Europe/Lisbon")
	if err != nil {
		t.Fatal(err)
	}
	rules := []queue.Rule{
		{Name: "daytime", Gate: hours},
		{Name: "phone", Limit: throttle.Sliding(1, 20*time.Minute), Key: queue.MustJSONKey("$.to")},
		{Name: "provider", Limit: throttle.GCRA(100, time.Second, 20), Key: func(*asynq.Task) (string, error) { return "acme", nil }},
	}
	return []queue.Policy{{Type: "sms", Rules: rules}}
}

// newRig has a dashboard with the policies given.
func newRig(t *testing.T, change func(*Config)) *rig {
	t.Helper()
	rdb := redistest.Start(t).Client(t)
	client, err := queue.NewClient(rdb, queue.ClientConfig{Policies: policies(t)})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Policies: policies(t), Refresh: RefreshMin}
	if change != nil {
		change(&cfg)
	}
	board, err := New(rdb, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &rig{t, rdb, client, board}
}

// commands is how many commands the server has run, with those inside scripts.
func (d *rig) commands() int {
	d.Helper()
	info, err := d.rdb.Info(d.Context(), "stats").Result()
	if err != nil {
		d.Fatal(err)
	}
	_, text, _ := strings.Cut(info, "total_commands_processed:")
	text, _, _ = strings.Cut(text, "\r\n")
	n, err := strconv.Atoi(text)
	if err != nil {
		d.Fatal(err)
	}
	return n
}

// book books tasks of a phone.
func (d *rig) book(phone string, ids ...string) {
	d.Helper()
	payload, err := json.Marshal(map[string]string{"to": phone})
	if err != nil {
		d.Fatal(err)
	}
	for _, id := range ids {
		if _, err := d.client.Book(d.Context(), queue.NewTask("sms", payload, asynq.TaskID(id))); err != nil {
			d.Fatal(err)
		}
	}
}

// spend spends the permit of +15550100, so that the first task that is booked for it afterwards waits.
func (d *rig) spend() {
	d.Helper()
	rule := policies(d.T)[0].Rules[1]
	l, err := throttle.New(d.rdb, rule.Name, rule.Limit, throttle.Config{})
	if err != nil {
		d.Fatal(err)
	}
	if got, err := l.TryAcquire(d.Context(), "+15550100", 1); err != nil || !got.Granted {
		d.Fatalf("TryAcquire = %+v, %v, want a grant", got, err)
	}
}

// inspector is for what a test looks at beside the pages.
func (d *rig) inspector() *inspect.Inspector {
	d.Helper()
	i, err := inspect.New(d.rdb, inspect.Config{Policies: policies(d.T)})
	if err != nil {
		d.Fatal(err)
	}
	return i
}

// request is one from this machine.
func request(method, target string, form url.Values) *http.Request {
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	r := httptest.NewRequest(method, target, body)
	r.RemoteAddr, r.Host = "127.0.0.1:50000", "localhost:8411"
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	return r
}

func (d *rig) do(r *http.Request) *httptest.ResponseRecorder {
	d.Helper()
	w := httptest.NewRecorder()
	d.board.ServeHTTP(w, r)
	return w
}

// get is a page that must be answered with a code.
func (d *rig) get(code int, target string) string {
	d.Helper()
	w := d.do(request("GET", target, nil))
	if w.Code != code {
		d.Fatalf("GET %s: %d, want %d\n%s", target, w.Code, code, w.Body)
	}
	return w.Body.String()
}

// post sends a form, and returns where the answer leads.
func (d *rig) post(code int, target string, pairs ...string) string {
	d.Helper()
	form := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		form.Set(pairs[i], pairs[i+1])
	}
	w := d.do(request("POST", target, form))
	if w.Code != code {
		d.Fatalf("POST %s %v: %d, want %d\n%s", target, pairs, w.Code, code, w.Body)
	}
	return w.Header().Get("Location")
}

// keyPage is the address of the page of a phone.
func (d *rig) keyPage(phone string) string {
	d.Helper()
	return d.post(http.StatusSeeOther, "/find", "rule", "phone", "key", phone)
}

// targets are the addresses of all pages, of a rig in which a task waits.
func (d *rig) targets(phone, task string) map[string]string {
	d.Helper()
	return map[string]string{
		"overview": "/", "queue": "/queue?queue=default", "rule": "/rule?rule=phone", "key": d.keyPage(phone), "task": "/task?queue=default&id=" + url.QueryEscape(task),
		"gates": "/gates", "batches": "/batches", "schedules": "/schedules", "policies": "/policies", "pools": "/pools", "audit": "/audit",
	}
}

func wants(t *testing.T, page string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(page, text) {
			t.Errorf("%q is missing in\n%s", text, page)
		}
	}
}

// handler does nothing.
var handler = asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })
