package dashboard

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/queue/schedule"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
	"github.com/headwayq/headway/worker"
)

// axeFile is where tools/install-chromium puts axe-core.
const axeFile = "axe-4.14.1.min.js"

// story is an application at work: thousands of tasks wait, pools run, a batch is fed, and
// a schedule ticks.
type story struct {
	*testing.T
	rdb  *redis.Client
	url  string
	seen *inspect.Inspector
}

func storyPolicies(t *testing.T) []queue.Policy {
	t.Helper()
	hours, err := gate.Parse("08:00-21:00 Mon-Fri; 10:00-18:00 Sat Europe/Lisbon")
	if err != nil {
		t.Fatal(err)
	}
	return []queue.Policy{
		{Type: "sms:send", Rules: []queue.Rule{
			{Name: "sms-per-phone", Limit: throttle.Sliding(1, 4*time.Minute), Key: queue.MustJSONKey("$.to")},
			{Name: "sms-provider", Limit: throttle.GCRA(50, time.Second, 20), Constant: "acme"},
		}},
		{Type: "mail:send", Rules: []queue.Rule{{Name: "mail-host", Limit: throttle.Smooth(4, time.Second, 1), Constant: "mx.example"}}},
		{Type: "call:dial", Rules: []queue.Rule{
			{Name: "calling-hours", Gate: hours},
			{Name: "call-slots", Limit: throttle.Concurrent(5, time.Minute), Constant: "pbx"},
		}},
	}
}

// tell starts the application: tasks of so many phones, pools, a batch and a schedule.
func tell(t *testing.T, tasks, phones int, change func(*Config)) *story {
	t.Helper()
	rdb := redistest.Start(t).Client(t)
	policies := storyPolicies(t)
	client, err := queue.NewClient(rdb, queue.ClientConfig{Policies: policies})
	if err != nil {
		t.Fatal(err)
	}
	for from := 0; from < tasks; from += 500 {
		var some []*queue.Task
		for n := from; n < min(tasks, from+500); n++ {
			payload := fmt.Appendf(nil, `{"to":"+1555%07d"}`, n*n%phones)
			some = append(some, queue.NewTask("sms:send", payload, asynq.TaskID(fmt.Sprintf("sms-%05d", n))))
		}
		for _, b := range client.BookMany(t.Context(), some) {
			if b.Err != nil {
				t.Fatal(b.Err)
			}
		}
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	t.Cleanup(func() { stop(); running.Wait() })
	for n := range 2 {
		queues := map[string]int{"default": 3, "mails": 1}
		pool, err := worker.New(rdb, handler, worker.Config{Policies: policies, Asynq: asynq.Config{Concurrency: 8 + 4*n, Queues: queues}, Logger: zap.NewNop(), NoSignals: true})
		if err == nil {
			err = pool.Start(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() { <-ctx.Done(); pool.Shutdown() })
	}
	control := batch.NewControl(client)
	if _, err := control.Start(t.Context(), batch.Spec{ID: "newsletter-48", Name: "November newsletter", Queue: "mails", Type: "mail:send", Source: "readers", Total: 20_000, Window: 200}); err != nil {
		t.Fatal(err)
	}
	readers := batch.Seq(func(batch.Spec) iter.Seq[batch.Element] {
		return func(yield func(batch.Element) bool) {
			for n := range 20_000 {
				if !yield(batch.Element{Payload: fmt.Appendf(nil, `{"n":%d}`, n)}) {
					return
				}
			}
		}
	})
	feeder, err := batch.NewFeeder(client, batch.FeederConfig{Queues: []string{"mails"}, Sources: map[string]batch.Source{"readers": readers}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	running.Go(func() { _ = feeder.Run(ctx) })
	ticker, err := schedule.New(client, schedule.Config{Logger: zap.NewNop()},
		schedule.Entry{Name: "nightly-report", Spec: "CRON_TZ=Europe/Berlin 30 2 * * *", Queue: "mails", Task: queue.NewTask("mail:send", nil)},
		schedule.Entry{Name: "sync", Spec: "@every 6h", Task: queue.NewTask("mail:send", nil)})
	if err != nil {
		t.Fatal(err)
	}
	running.Go(func() { _ = ticker.Run(ctx) })
	cfg := Config{Policies: policies, AllowWrites: true, Refresh: RefreshMin, Who: func(*http.Request) string { return "ann" }}
	if change != nil {
		change(&cfg)
	}
	board, err := New(rdb, cfg)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(board)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	seen, err := inspect.New(rdb, inspect.Config{Policies: policies})
	if err != nil {
		t.Fatal(err)
	}
	s := &story{t, rdb, server.URL, seen}
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) { // all processes have said that they run
		if all, _, err := seen.Processes(t.Context()); err == nil && len(all) >= 4 {
			return s
		} else if time.Now().After(end) {
			t.Fatalf("%d processes run, %v", len(all), err)
		}
	}
}

// An operator finds what waits, closes a phone, sees its line move without a reload, changes a
// limit, sees other planned starts, pauses a batch, and undoes the change. No page loads
// anything from elsewhere, breaks its content security policy, or is wider than a phone.
func TestStoryInABrowser(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	tasks := 5000
	if testing.Short() {
		tasks = 1500
	}
	s := tell(t, tasks, 100, nil)
	b.look(1280, "light")

	b.open(s.url + "/")
	b.until("the overview is live", `document.querySelector("#state").textContent === "Live"`)
	b.until("a chart of planned starts", `document.querySelectorAll("svg rect.bar").length > 10`)
	for _, kind := range []string{"keyDown", "keyUp"} {
		b.call("Input.dispatchKeyEvent", map[string]any{"type": kind, "key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}, nil)
	}
	b.until("the keyboard comes to the content first", `document.activeElement.matches("a.skip") && document.activeElement.getBoundingClientRect().left >= 0`)
	b.leave("to the rule", `document.querySelector('a[href*="rule=sms-per-phone"]').click()`)
	b.leave("to the key that waits longest", `document.querySelector('a[href^="/key"]').click()`)
	keyPage := ""
	if err := b.eval("location.href", &keyPage); err != nil {
		t.Fatal(err)
	}
	b.submit("close key", map[string]string{"for": "15m", "reason": "the customer asked"})
	b.until("the key is closed", `document.querySelector(".banner.note").textContent.includes("the customer asked")`)
	b.until("what was done is said", `document.querySelector(".done").textContent.includes("closed")`)

	// The line moves while the page stays.
	first := ""
	if err := b.eval(`window.stays = true, document.querySelector("#live tbody th a").textContent`, &first); err != nil {
		t.Fatal(err)
	}
	if err := s.seen.Cancel(t.Context(), "default", first, because); err != nil {
		t.Fatal(err)
	}
	gone := fmt.Sprintf(`![...document.querySelectorAll("#live tbody th a")].some(a => a.textContent === %q)`, first)
	b.until("the line moves", "window.stays && "+gone)

	// A paused page does not change; it goes on when it is told to.
	if err := b.eval(`document.getElementById("pause").click(); first = document.querySelector("#live tbody th a").textContent`, &first); err != nil {
		t.Fatal(err)
	}
	if err := s.seen.Cancel(t.Context(), "default", first, because); err != nil {
		t.Fatal(err)
	}
	b.until("it says that it is paused", `document.querySelector("#state").textContent === "Paused"`)
	if err := b.eval(`document.getElementById("pause").click()`, nil); err != nil {
		t.Fatal(err)
	}
	b.until("the line moves again", "window.stays && "+fmt.Sprintf(`![...document.querySelectorAll("#live tbody th a")].some(a => a.textContent === %q)`, first))

	// Another limit, with a preview, and the planned starts change.
	planned := func() (n int) {
		t.Helper()
		b.open(s.url + "/")
		if err := b.eval(`parseInt(document.querySelector("figcaption").textContent.replaceAll(",", ""))`, &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := planned()
	b.open(s.url + "/rule?rule=sms-per-phone&limit=4/4m&for=1h")
	b.until("a preview", `document.querySelector(".preview").textContent.includes("25 %")`)
	b.submit("set limit", map[string]string{"reason": "catch up"})
	b.until("the limit is stored", `document.querySelector(".facts").textContent.includes("sliding 4/4m")`)
	after := 0
	for end := time.Now().Add(browserPatience); after <= before; time.Sleep(200 * time.Millisecond) {
		if after = planned(); time.Now().After(end) {
			t.Fatalf("%d starts are planned within the hour with four times the limit, %d before", after, before)
		}
	}

	b.open(s.url + "/batches")
	b.submit("pause batch", map[string]string{"reason": "the provider asked"})
	b.until("the batch is paused", `document.querySelector(".batch .tag").textContent === "paused"`)

	b.open(s.url + "/audit")
	undo := `[...document.querySelectorAll('select[name=change] option')].find(o => o.textContent.includes("set limit")).value`
	ref := ""
	if err := b.eval(undo, &ref); err != nil {
		t.Fatal(err)
	}
	b.submit("undo", map[string]string{"change": ref, "reason": "caught up"})
	b.open(s.url + "/rule?rule=sms-per-phone")
	b.until("the limit in code counts", `document.querySelector(".facts").textContent.includes("the code")`)

	b.until("what the pools did is told", `document.querySelector("#day-h").parentElement.textContent.includes("Held up")`)

	b.open(s.url + "/pools")
	b.until("a pool says how many connections it has", `(cell => cell && Number(cell.textContent) > 0)([...document.querySelectorAll("#live tbody tr")].find(r => r.cells[1].textContent === "pool").cells[[...document.querySelectorAll("#live thead th")].findIndex(h => h.textContent === "Connections")])`)

	s.lookAround(b, keyPage)
	b.mu.Lock()
	defer b.mu.Unlock()
	for address := range b.fetched {
		if !strings.HasPrefix(address, s.url) && address != "about:blank" {
			t.Errorf("%s was fetched", address)
		}
	}
	for _, fault := range b.faults {
		if !strings.Contains(fault, s.url+"/none") { // the page that is not there
			t.Errorf("a page complains: %s", fault)
		}
	}
}

// Without a script every page shows what it has, a reload shows what is new, links and forms lead
// where they say, and changes can be made and undone.
func TestBrowserWithoutScript(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	s := tell(t, 200, 10, nil)
	b.scripts(false)
	b.look(390, "light")
	b.open(s.url + "/")
	b.until("no script runs", `document.querySelector("#state").textContent === "Reload to refresh" && document.querySelector("#pause").hidden`)
	b.until("a chart of planned starts", `document.querySelectorAll("svg rect.bar").length > 0`)
	b.until("times say their zone", `[...document.querySelectorAll("time")].every(t => t.textContent.includes("UTC"))`)
	b.leave("to the rule", `document.querySelector('a[href*="rule=sms-per-phone"]').click()`)
	b.leave("to the key that waits longest", `document.querySelector('a[href^="/key"]').click()`)
	keyPage := ""
	if err := b.eval("location.pathname + location.search", &keyPage); err != nil {
		t.Fatal(err)
	}
	for _, p := range s.pages(keyPage) {
		b.open(s.url + p.address)
		b.until(p.name+" has a heading and content", `document.querySelector("h1").innerText && document.querySelector("main").innerText.length > 20`)
	}
	b.open(s.url + keyPage)
	b.leave("to its first task", `document.querySelector("#live tbody th a").click()`)
	b.until("the task's explanation", `document.querySelector("main").innerText.includes("sms-per-phone")`)
	if err := b.eval("history.back()", nil); err != nil {
		t.Fatal(err)
	}
	b.until("back at the key", `location.pathname === "/key" && document.readyState === "complete"`)
	b.submit("close key", map[string]string{"for": "15m", "reason": "the customer asked"})
	b.until("the key is closed", `document.querySelector(".banner.note").innerText.includes("the customer asked")`)
	first := ""
	if err := b.eval(`document.querySelector("#live tbody th a").textContent`, &first); err != nil {
		t.Fatal(err)
	}
	if err := s.seen.Cancel(t.Context(), "default", first, because); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(browserPatience); ; time.Sleep(100 * time.Millisecond) {
		b.leave("reload", "location.reload()")
		var there bool
		if err := b.eval(fmt.Sprintf(`[...document.querySelectorAll("#live tbody th a")].some(a => a.textContent === %q)`, first), &there); err == nil && !there {
			break
		} else if time.Now().After(end) {
			t.Fatalf("a reload shows the old line, %v", err)
		}
	}
	b.submit("open key", map[string]string{"reason": "done"})
	b.until("the key is open", `!document.querySelector(".banner.note")`)

	b.open(s.url + "/rule?rule=sms-per-phone")
	b.leave("a preview", `(f => { f.elements.limit.value = "4/4m"; f.elements.for.value = "1h"; f.querySelector("button").click() })(document.querySelector("form[method=get]"))`)
	b.until("the preview", `document.querySelector(".preview").innerText.includes("25 %")`)
	b.submit("set limit", map[string]string{"reason": "catch up"})
	b.until("the limit is stored", `document.querySelector(".facts").innerText.includes("sliding 4/4m")`)
	b.open(s.url + "/audit")
	ref := ""
	if err := b.eval(`[...document.querySelectorAll('select[name=change] option')].find(o => o.textContent.includes("set limit")).value`, &ref); err != nil {
		t.Fatal(err)
	}
	b.submit("undo", map[string]string{"change": ref, "reason": "caught up"})
	b.open(s.url + "/rule?rule=sms-per-phone")
	b.until("the limit in code counts", `document.querySelector(".facts").innerText.includes("the code")`)
}

// TestPictureForDocs draws docs/dashboard.png from a real run; "make docs" calls it.
func TestPictureForDocs(t *testing.T) {
	file := os.Getenv("HEADWAY_PICTURE")
	if file == "" {
		t.Skip("make docs sets HEADWAY_PICTURE")
	}
	b := newBrowser(t)
	s := tell(t, 5000, 700, nil)
	b.look(1280, "light")
	b.open(s.url + "/")
	b.until("the overview is live", `document.querySelector("#state").textContent === "Live" && document.querySelectorAll("svg rect.bar").length > 10`)
	b.shoot(file, 1010)
}

// lookAround takes pictures of all pages, wide and narrow, light and dark, and looks for
// what can't be used by everybody.
func (s *story) lookAround(b *browser, keyPage string) {
	s.Helper()
	dir := s.ArtifactDir()
	if to := os.Getenv("HEADWAY_PICTURES"); to != "" {
		dir = to
	}
	axe := ""
	if cache, err := os.UserCacheDir(); err == nil {
		if text, err := os.ReadFile(filepath.Join(cache, "headway", axeFile)); err == nil {
			axe = string(text)
		}
	}
	if axe == "" {
		s.Log("axe-core is not installed: tools/install-chromium installs it")
	}
	pages := s.pages(strings.TrimPrefix(keyPage, s.url))
	for _, width := range []int{1280, 390} {
		for _, scheme := range []string{"light", "dark"} {
			if testing.Short() && (width == 390) == (scheme == "light") {
				continue // each page is seen once in each
			}
			b.look(width, scheme)
			for _, p := range pages {
				b.open(s.url + p.address)
				b.shoot(filepath.Join(dir, fmt.Sprintf("%s-%d-%s.png", p.name, width, scheme)), 4000)
				var wide int
				if err := b.eval("document.documentElement.scrollWidth", &wide); err != nil || wide > width {
					s.Errorf("%s is %d pixels wide on a screen of %d, %v", p.name, wide, width, err)
				}
				if axe != "" {
					s.axe(b, axe, fmt.Sprintf("%s, %d pixels, %s", p.name, width, scheme))
				}
			}
		}
	}
	s.Logf("pictures of all pages are in %s", dir)
}

// place is a page of the dashboard.
type place struct{ name, address string }

// pages are all pages, with the page of that key.
func (s *story) pages(keyPage string) []place {
	s.Helper()
	task := ""
	for w, err := range s.seen.Deferred(s.Context(), "default") {
		if err != nil {
			s.Fatal(err)
		}
		if slices.Contains(w.Rules, "sms-per-phone") && time.Until(w.At) > 5*time.Minute {
			task = w.ID
			break
		}
	}
	return []place{
		{"overview", "/"}, {"queue", "/queue?queue=default"}, {"rule", "/rule?rule=sms-per-phone&limit=1/8m&for=2h"}, {"key", keyPage},
		{"task", "/task?queue=default&id=" + url.QueryEscape(task)}, {"gates", "/gates"}, {"batches", "/batches"}, {"schedules", "/schedules"},
		{"policies", "/policies"}, {"pools", "/pools"}, {"audit", "/audit"}, {"fault", "/none"},
	}
}

// axe runs axe-core on the page.
func (s *story) axe(b *browser, axe, page string) {
	s.Helper()
	if err := b.eval(axe, nil); err != nil {
		s.Fatal(err)
	}
	var found []struct {
		ID, Impact, Help string
		Nodes            []struct{ HTML, FailureSummary string }
	}
	err := b.eval(`axe.run(document, {resultTypes: ["violations"]}).then(r => r.violations.filter(v => v.impact === "serious" || v.impact === "critical"))`, &found)
	if err != nil {
		s.Fatal(err)
	}
	for _, v := range found {
		text, _ := json.Marshal(v.Nodes[:min(len(v.Nodes), 3)])
		s.Errorf("%s: %s, %s (%s): %s", page, v.Impact, v.Help, v.ID, text)
	}
}
