package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/internal/history"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
)

// Every page is answered without a script, loads nothing from elsewhere, and has no script
// or style in it.
func TestPagesStandAlone(t *testing.T) {
	t.Parallel()
	d := newRig(t, func(c *Config) { c.AllowWrites = true })
	d.book("+15550100", "a", "b", "c")
	inline := regexp.MustCompile(`(?i)<script(>|\s+[^>]*[^c]>)|<style|\sstyle=|\son[a-z]+=|javascript:`)
	elsewhere := regexp.MustCompile(`(?i)(src|href|action|data-live)="[^"/?#]*:?//`)
	for name, target := range d.targets("+15550100", "b") {
		w := d.do(request("GET", target, nil))
		page := w.Body.String()
		if w.Code != http.StatusOK {
			t.Errorf("%s: %d\n%s", name, w.Code, page)
			continue
		}
		if csp := w.Header().Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
			t.Errorf("%s: Content-Security-Policy is %q", name, csp)
		}
		if len(w.Result().Cookies()) > 0 {
			t.Errorf("%s sets cookies", name)
		}
		if found := inline.FindString(page); found != "" && !strings.Contains(found, "src=") {
			t.Errorf("%s has %q", name, found)
		}
		if found := elsewhere.FindString(page); found != "" {
			t.Errorf("%s leads elsewhere: %q", name, found)
		}
		for _, part := range []string{`<html lang="en">`, `<main id="main"`, `<nav aria-label="Pages">`, `href="#main"`, `name="viewport"`} {
			if !strings.Contains(page, part) {
				t.Errorf("%s lacks %s", name, part)
			}
		}
		if n := strings.Count(page, "<h1"); n != 1 && name != "overview" {
			t.Errorf("%s has %d headings of the first level, want 1", name, n)
		}
	}
}

// The pages show what waits, in which order, and until when.
func TestPagesShowTheLine(t *testing.T) {
	t.Parallel()
	d := newRig(t, nil)
	d.spend()
	d.book("+15550100", "a", "b", "c")
	d.book("+15550101", "goes") // it can run at once, and no pool takes it
	overview := d.get(http.StatusOK, "/")
	wants(t, overview, "No pool is known to serve queue default", "Planned starts of the next hour", `<a href="/rule?rule=phone">phone</a>`, "sliding 1/20m", "Next start")
	if strings.Contains(overview, "could run") {
		t.Error("without a pool the overview says that workers are busy")
	}
	wants(t, d.get(http.StatusOK, "/queue?queue=default"), `href="/task?id=b&amp;queue=default"`)
	task := d.get(http.StatusOK, "/task?queue=default&id=c")
	wants(t, task, "Waits for", "binds", "Booked", "so far", "place 3 in its line", `href="/task?id=a&amp;queue=default"`, "&#43;…100")
	key := d.get(http.StatusOK, d.keyPage("+15550100"))
	wants(t, key, "jobs in line", "&#43;…100")
	if a, b, c := strings.Index(key, ">a</a>"), strings.Index(key, ">b</a>"), strings.Index(key, ">c</a>"); a < 0 || a > b || b > c {
		t.Errorf("the line is not in order: %d %d %d", a, b, c)
	}
	wants(t, d.get(http.StatusOK, "/rule?rule=phone"), "&#43;…100", "At most 1 in any 20 minutes", "<dt>Wait for it</dt><dd>3 tasks</dd>", "<dt>Next start</dt>", "<dt>Oldest wait</dt>")
	wants(t, d.get(http.StatusOK, "/gates"), "daytime", "00:00–24:00")
	wants(t, d.get(http.StatusOK, "/policies"), "gcra 100/1s burst 20")
	for target, code := range map[string]int{
		"/task?queue=default&id=none": 404, "/queue?queue=none": 404, "/rule?rule=none": 404, "/key?rule=phone&k=none": 410, "/none": 404, "/task?queue=default": 400,
		"/queue?queue=default&from=x": 400, "/audit?from=-1": 400, "/gates?zone=Nowhere": 400, "/rule?rule=" + strings.Repeat("x", 3000): 400, "/live?view=/none": 400,
		"/live?view=//x": 400, "/assets/none": 404,
	} {
		d.get(code, target)
	}
}

// A task whose instant has come is runnable and not throttled, on all pages.
func TestOverdueTasksAreRunnable(t *testing.T) {
	t.Parallel()
	d := newRig(t, nil)
	d.spend()
	d.book("+15550100", "a", "b", "c")
	d.book("+15550101", "goes") // it can run at once
	count := regexp.MustCompile(`<dt>(Throttled|Runnable)</dt><dd>(\d+)</dd>`)
	row := regexp.MustCompile(`(?s)<a href="/queue\?queue=default">default</a></th>\s*<td class="num">(\d+)</td><td class="num opt">(\d+)</td><td class="num opt">(\d+)</td>\s*<td class="num">(\d+)</td>`)
	shows := func(when, throttled, within1m, within1h, runnable string) {
		t.Helper()
		board, err := New(d.rdb, Config{Policies: policies(t)}) // one that has no snapshot yet
		if err != nil {
			t.Fatal(err)
		}
		d.board = board
		for _, target := range []string{"/", "/queue?queue=default"} {
			page := d.get(http.StatusOK, target)
			for _, found := range count.FindAllStringSubmatch(page, -1) {
				if want := map[string]string{"Throttled": throttled, "Runnable": runnable}[found[1]]; found[2] != want {
					t.Errorf("%s, %s: %s is %s, want %s", when, target, found[1], found[2], want)
				}
			}
			if target != "/" {
				continue
			}
			want := []string{throttled, within1m, within1h, runnable}
			if found := row.FindStringSubmatch(page); found == nil || !slices.Equal(found[1:], want) {
				t.Errorf("%s: the row of the queue has %q, want %q", when, found, want)
			}
		}
	}
	shows("at first", "3", "0", "3", "1") // they start 20, 40 and 60 minutes after the permit was spent
	const due = "hw:{default}:due"
	first, err := d.rdb.ZRange(t.Context(), due, 0, 0).Result()
	if err != nil || len(first) != 1 {
		t.Fatalf("the first that comes due is %q, %v", first, err)
	}
	if err := d.rdb.ZAdd(t.Context(), due, redis.Z{Score: float64(time.Now().Add(-time.Minute).UnixMicro()), Member: first[0]}).Err(); err != nil {
		t.Fatal(err)
	}
	shows("when one is overdue", "2", "0", "2", "2")
}

// A name is chosen from a list where there are few queues, and typed where a list would be long.
func TestChoiceOfAQueue(t *testing.T) {
	t.Parallel()
	for n, typed := range map[int]bool{1: false, namesMax: false, namesMax + 1: true, 20 * namesMax: true} {
		d := newRig(t, func(c *Config) { c.Budget = 1_000_000 }) // it is not about the budget
		names := make([]any, n)
		for k := range names {
			names[k] = fmt.Sprintf("queue-%05d", k)
		}
		if err := d.rdb.SAdd(t.Context(), "asynq:queues", names...).Err(); err != nil {
			t.Fatal(err)
		}
		page := d.get(http.StatusOK, "/")
		options := strings.Count(page, `<option value="queue-`)
		if field := strings.Contains(page, `<input name="queue"`); field != typed || !typed && options != n || typed && options > 0 {
			t.Errorf("of %d queues the page offers %d, and a field to type a name is %t, want %t", n, options, field, typed)
		}
		if to := d.post(http.StatusSeeOther, "/find", "id", "a", "queue", "queue-00000"); to != "/task?id=a&queue=queue-00000" {
			t.Errorf("a search on a queue leads to %s", to)
		}
	}
}

// An asynq server without Headway may serve a queue. It is not said that nothing does.
func TestQueueOfAnAsynqServer(t *testing.T) {
	t.Parallel()
	d := newRig(t, nil)
	runs, done := make(chan struct{}, 10), make(chan struct{})
	server := asynq.NewServerFromRedisClient(d.rdb, asynq.Config{Concurrency: 1, Queues: map[string]int{"plain": 1}, LogLevel: asynq.FatalLevel})
	if err := server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { runs <- struct{}{}; <-done; return nil })); err != nil {
		t.Fatal(err)
	}
	defer server.Shutdown()
	defer close(done)
	client := asynq.NewClientFromRedisClient(d.rdb)
	for range 3 {
		if _, err := client.Enqueue(asynq.NewTask("mail", nil), asynq.Queue("plain")); err != nil {
			t.Fatal(err)
		}
	}
	<-runs
	page := d.get(http.StatusOK, "/")
	wants(t, page, "No pool is known to serve queue plain, where 1 task runs and 2 tasks should run now", "unless an asynq server of your own keeps up")
	if strings.Contains(page, "No pool serves") || strings.Contains(page, "Act now") {
		t.Errorf("a queue that an asynq server serves is told as one that nothing serves in\n%s", page)
	}
}

// Lists have pages, and a page is bounded.
func TestListsArePaged(t *testing.T) {
	t.Parallel()
	d := newRig(t, nil)
	d.spend()
	for n := range lineMost + 10 {
		d.book("+15550100", fmt.Sprintf("t%03d", n))
	}
	next := regexp.MustCompile(`<a rel="next" href="([^"]+)"`)
	for _, target := range []string{"/queue?queue=default", d.keyPage("+15550100")} {
		page := d.get(http.StatusOK, target)
		if n := strings.Count(page, "/task?id=t"); n != lineMost {
			t.Errorf("%s lists %d tasks, want %d", target, n, lineMost)
		}
		link := next.FindStringSubmatch(page)
		if link == nil {
			t.Fatalf("%s has no next page", target)
		}
		page = d.get(http.StatusOK, strings.ReplaceAll(link[1], "&amp;", "&"))
		if n := strings.Count(page, "/task?id=t"); n != 10 {
			t.Errorf("the next page of %s lists %d tasks, want 10", target, n)
		}
		wants(t, page, "t059", "First page")
	}
}

// say notes a process as it says itself that it runs.
func (d *rig) say(process string) {
	d.Helper()
	id := fmt.Sprintf("%016x", rand.Uint64())
	if err := errors.Join(d.rdb.Set(d.Context(), "hw:process:"+id, process, time.Hour).Err(),
		d.rdb.ZAdd(d.Context(), "hw:processes", redis.Z{Score: float64(time.Now().UnixMicro()), Member: id}).Err()); err != nil {
		d.Fatal(err)
	}
}

// Every list that can be long has pages, which lead from the first row to the last. Queues whose
// names come late have a page, too.
func TestLongListsHavePages(t *testing.T) { // not beside the browser: its pages are the longest
	const rows = 130
	hours, err := gate.Parse("08:00-20:00 UTC")
	if err != nil {
		t.Fatal(err)
	}
	var policies []queue.Policy
	var entries []string
	for n := range rows {
		policies = append(policies, queue.Policy{Type: fmt.Sprintf("row-%03d", n), Rules: []queue.Rule{
			{Name: fmt.Sprintf("hours-%03d", n), Gate: hours},
			{Name: fmt.Sprintf("rule-%03d", n), Limit: throttle.Sliding(1, time.Hour), Constant: "x"},
		}})
		entries = append(entries, fmt.Sprintf(`{"name":"row-%03d","queue":"default","spec":"@every 6h"}`, n))
	}
	d := newRig(t, func(c *Config) { c.Policies, c.Budget = policies, 1_000_000 }) // it is not about the budget
	control := batch.NewControl(d.client)
	for n := range rows {
		name := fmt.Sprintf("row-%03d", n)
		d.say(fmt.Sprintf(`{"kind":"pool","host":%q,"pid":1,"policies":[{"type":"row-000","rules":[{"name":"hours-000","gate":%q},{"name":"rule-000","limit":"sliding %d/1h"}]}]}`, name, hours, n+2))
		if err := d.rdb.SAdd(t.Context(), "asynq:queues", name).Err(); err != nil {
			t.Fatal(err)
		}
		where := name // one batch in each of some queues, and many in one
		if n%10 != 5 {
			where = "row-000"
		}
		if _, err := control.Start(t.Context(), batch.Spec{ID: name, Queue: where, Type: "sms", Source: "readers"}); err != nil {
			t.Fatal(err)
		}
		if _, err := d.inspector().CloseRule(t.Context(), "provider", time.Hour, inspect.Reason{Who: name, Why: "a test"}); err != nil {
			t.Fatal(err)
		}
	}
	d.say(`{"kind":"scheduler","host":"z","entries":[` + strings.Join(entries, ",") + `]}`)
	next := regexp.MustCompile(`<a rel="next" href="([^"]+)"`)
	for name, list := range map[string]struct{ first, begin, end, row, param string }{
		"queues":      {"/", `id="queues-h"`, "</section>", `<th scope="row"><a href="/queue\?queue=(row-\d+)">`, "queues"},
		"rules":       {"/", `id="rules-h"`, "</section>", `<th scope="row"><a href="/rule\?rule=rule-(\d+)">`, "rules"},
		"pools":       {"/pools", "<main", "</main>", `<th scope="row" class="whole">(row-\d+):1`, "from"},
		"policies":    {"/policies", `aria-label="Policy of`, "</main>", `<h2>(row-\d+)</h2>`, "from"},
		"differences": {"/policies", `id="differences-h"`, "</section>", `<th scope="row">(row-\d+):1`, "differences"},
		"gates":       {"/gates", "<main", "</main>", `<section class="gate" aria-label="hours-(\d+)">`, "from"},
		"entries":     {"/schedules", `id="entries-h"`, "</section>", `<th scope="row">(row-\d+)</th>`, "from"},
		"batches":     {"/batches", "<main", "</main>", `<section class="batch" aria-label="Batch (row-\d+)">`, "from"},
		"changes":     {"/audit", "<main", "</main>", `<strong>(row-\d+)</strong>`, "from"},
	} {
		seen := make(map[string]bool)
		pages := 0
		for target := list.first; target != ""; pages++ {
			_, part, _ := strings.Cut(d.get(http.StatusOK, target), list.begin)
			part, _, _ = strings.Cut(part, list.end)
			found := regexp.MustCompile(list.row).FindAllStringSubmatch(part, -1)
			if len(found) > lineMost {
				t.Errorf("a page of %s has %d rows, want at most %d", name, len(found), lineMost)
			}
			for _, row := range found {
				if seen[row[1]] {
					t.Errorf("%s lists %s twice", name, row[1])
				}
				seen[row[1]] = true
			}
			target = ""
			for _, link := range next.FindAllStringSubmatch(part, -1) {
				if strings.Contains(link[1], list.param+"=") {
					target, _, _ = strings.Cut(strings.ReplaceAll(link[1], "&amp;", "&"), "#")
				}
			}
		}
		if len(seen) != rows || pages < 3 {
			t.Errorf("%d pages of %s list %d rows, want %d", pages, name, len(seen), rows)
		}
	}
	wants(t, d.get(http.StatusOK, "/queue?queue=row-129"), "Nothing waits here.")
	wants(t, d.get(http.StatusOK, "/"), "The verdict, the counts and the chart are of the first 100 queues of 130, by name.", "The last hour is told of the 30 rules for which most waits now.",
		`<option value="rule-129">`, `<option value="row-129">`, `aria-label="Pages of queues"`)
	wants(t, d.get(http.StatusOK, "/pools?from=100"), "101 to 131 of 131", `<a rel="prev" href="/pools?from=50">`)
	wants(t, d.get(http.StatusOK, "/pools?from=9999"), "101 to 131 of 131")
	wants(t, d.get(http.StatusOK, "/audit?from=5000"), "No older change is kept.", "First page")
	wants(t, d.get(http.StatusOK, "/batches?at=zzz&from=7"), "No batch is on this page.", "First page")
	for _, target := range []string{"/batches?from=x", "/batches?from=-1", "/pools?from=1e9", "/?rules=-1", "/?queues=x", "/schedules?from=1000000", "/gates?from=x", "/policies?differences=x"} {
		d.get(http.StatusBadRequest, target)
	}
}

// What comes before a page of batches is not read, and a page that is just full leads nowhere.
func TestPagesOfBatches(t *testing.T) {
	t.Parallel()
	d := newRig(t, nil)
	control := batch.NewControl(d.client)
	start := func(queue string, n int) {
		for k := range n {
			if _, err := control.Start(t.Context(), batch.Spec{ID: fmt.Sprintf("%s-%03d", queue, k), Queue: queue, Type: "sms", Source: "readers"}); err != nil {
				t.Fatal(err)
			}
		}
	}
	start("a", lineMost)
	if err := d.rdb.SAdd(t.Context(), "asynq:queues", "b").Err(); err != nil {
		t.Fatal(err)
	}
	if page := d.get(http.StatusOK, "/batches"); strings.Contains(page, "Next page") || strings.Count(page, `class="batch"`) != lineMost {
		t.Errorf("a page that holds all batches has a next page")
	}
	start("c", 400)
	cost := func(target string) int {
		before := d.commands()
		wants(t, d.get(http.StatusOK, target), `class="batch"`)
		return d.commands() - before
	}
	near, far := cost("/batches?at=c"), cost("/batches?at=c&from=350")
	if far > near+20 {
		t.Errorf("a page behind 350 batches costs %d commands, the first one %d", far, near)
	}
}

// A dashboard can be mounted under any prefix, and its links stay below it.
func TestPrefix(t *testing.T) {
	t.Parallel()
	d := newRig(t, func(c *Config) { c.Prefix = "/ops/headway/" })
	d.book("+15550100", "a")
	link := regexp.MustCompile(`(?:href|src|action|data-live)="([^"#]+)`)
	for _, target := range []string{"/ops/headway/", "/ops/headway/task?queue=default&id=a", "/ops/headway/rule?rule=phone"} {
		for _, found := range link.FindAllStringSubmatch(d.get(http.StatusOK, target), -1) {
			if !strings.HasPrefix(found[1], "/ops/headway/") {
				t.Errorf("%s has a link to %s", target, found[1])
			}
		}
	}
	d.get(http.StatusMovedPermanently, "/ops/headway")
	d.get(http.StatusNotFound, "/")
	wants(t, d.get(http.StatusOK, "/ops/headway/assets/live.js"), "EventSource")
}

// What stands in Redis is shown as text: markup, control characters and great length break
// no page, and no key is shown in clear.
func TestHostileText(t *testing.T) {
	t.Parallel()
	const nasty = "a\x1b[31m\u202e<b>\r\x00"
	d := newRig(t, nil)
	process, err := json.Marshal(map[string]any{
		"id": "x", "kind": "pool", "host": nasty, "version": nasty, "queues": map[string]int{nasty: 1},
		"policies": []any{map[string]any{"type": nasty, "rules": []any{map[string]any{"name": nasty + "rule", "limit": nasty}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	d.say(string(process))
	if err := d.rdb.SAdd(t.Context(), "asynq:queues", nasty+"queue").Err(); err != nil {
		t.Fatal(err)
	}
	spec := batch.Spec{ID: "letter", Type: "sms", Source: "readers", Args: "to=+15550100"}
	if _, err := batch.NewControl(d.client).Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if err := d.rdb.HSet(t.Context(), "hw:{default}:batch:letter", "state", nasty+"state").Err(); err != nil {
		t.Fatal(err)
	}
	hostile := []string{
		`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, "a\x00b\x1b[31mc\u202ed\u2028e", "javascript:alert(1)", "../../etc", strings.Repeat("x", 400), "a&b=c#d e?f",
	}
	for _, id := range hostile {
		d.book("+15550100", id)
		d.book(clean(id)+"<b>key</b>", id+"-2")
	}
	i := d.inspector()
	if err := i.SetLimit(t.Context(), "provider", throttle.Sliding(5, time.Second), 0, because); err != nil {
		t.Fatal(err)
	}
	because := because
	because.Why = `<b onclick="x">why</b>`
	if _, err := i.CloseKey(t.Context(), "phone", clean(hostile[1])+"<b>key</b>", time.Hour, because); err != nil {
		t.Fatal(err)
	}
	pages := []string{"/", "/queue?queue=default", "/rule?rule=phone", "/rule?rule=provider", "/audit", "/pools", "/policies", "/batches"}
	for _, id := range hostile {
		pages = append(pages, "/task?queue=default&id="+url.QueryEscape(id), "/task?queue=default&id="+url.QueryEscape(id+"-2"), d.keyPage(clean(id)+"<b>key</b>"))
	}
	for _, target := range pages {
		page := regexp.MustCompile(`<option value="[^"]*"`).ReplaceAllString(d.get(http.StatusOK, target), "") // what is sent stays as it is
		for _, bad := range []string{"<script>alert", "<img src=x", "<b>key", "<b onclick", "\x00", "\x1b", "\u202e", "\u2028", "\r", strings.Repeat("x", 200) + "<", "+15550100"} {
			if strings.Contains(page, bad) {
				t.Errorf("%s has %q", target, bad)
			}
		}
		if strings.Contains(target, "15550100") {
			t.Errorf("an address has a key: %s", target)
		}
	}
}

// An event of a live page keeps its lines together, whatever ends a line.
func TestLinesOfAnEvent(t *testing.T) {
	t.Parallel()
	if got, want := eventOf("view", "a\rdata: b\r\n\r\revent: c\n", time.Time{}), "event: view\ndata: a\ndata: data: b\ndata: \ndata: \ndata: event: c\n\n"; got != want {
		t.Errorf("the event is %q, want %q", got, want)
	}
}

// A task whose id is too long for an address is listed without a link, and a search for it says so.
func TestLongTaskID(t *testing.T) {
	t.Parallel()
	d := newRig(t, nil)
	long, fits := strings.Repeat("x", 3000), strings.Repeat("y", paramMax)
	d.spend()
	d.book("+15550100", long, fits)
	link := regexp.MustCompile(`href="(/task[^"]*)"`)
	page := d.get(http.StatusOK, "/queue?queue=default")
	wants(t, page, "too long for a page of its own")
	links := link.FindAllStringSubmatch(page, -1)
	if len(links) != 1 {
		t.Errorf("%d tasks have a link, want the one whose id fits", len(links))
	}
	for _, found := range links {
		d.get(http.StatusOK, strings.ReplaceAll(found[1], "&amp;", "&"))
	}
	d.post(http.StatusSeeOther, "/find", "id", fits)
	d.post(http.StatusBadRequest, "/find", "id", long)
	d.post(http.StatusBadRequest, "/find", "id", "a", "queue", long)
}

// clean is a text that can stand in JSON.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0xFFFD {
			return 'x'
		}
		return r
	}, s)
}

// Only with ShowKeys keys are shown in full.
func TestShowKeys(t *testing.T) {
	t.Parallel()
	d := newRig(t, func(c *Config) { c.ShowKeys = true })
	d.book("+15550100", "a", "b")
	target := d.keyPage("+15550100")
	wants(t, d.get(http.StatusOK, target), "<code>&#43;15550100</code>")
	if strings.Contains(target, "15550100") {
		t.Errorf("an address has a key: %s", target)
	}
}

// A request from elsewhere, by another name, through a proxy that is not named, or from
// another site is refused.
func TestClosedByDefault(t *testing.T) {
	t.Parallel()
	d := newRig(t, func(c *Config) { c.AllowWrites = true })
	change := url.Values{"verb": {"pause queue"}, "queue": {"default"}, "reason": {"x"}, "back": {"/"}}
	d.book("+15550100", "a")
	for name, r := range map[string]func() *http.Request{
		"another machine": func() *http.Request { r := request("GET", "/", nil); r.RemoteAddr = "192.0.2.1:5"; return r },
		"another name":    func() *http.Request { r := request("GET", "/", nil); r.Host = "evil.example"; return r },
		"a proxy": func() *http.Request {
			r := request("GET", "/", nil)
			r.Header.Set("X-Forwarded-For", "127.0.0.1")
			return r
		},
		"no address": func() *http.Request { r := request("GET", "/", nil); r.RemoteAddr = ""; return r },
		"another site": func() *http.Request {
			r := request("POST", "/act", change)
			r.Header.Set("Sec-Fetch-Site", "cross-site")
			return r
		},
		"another origin": func() *http.Request {
			r := request("POST", "/act", change)
			r.Header.Del("Sec-Fetch-Site")
			r.Header.Set("Origin", "https://evil.example")
			return r
		},
	} {
		if w := d.do(r()); w.Code != http.StatusForbidden || strings.Contains(w.Body.String(), "Throttled") {
			t.Errorf("%s: %d, want %d\n%s", name, w.Code, http.StatusForbidden, w.Body)
		}
	}
	for _, host := range []string{"localhost", "127.0.0.1:80", "[::1]:80", "LOCALHOST:1"} {
		r := request("GET", "/", nil)
		if r.Host = host; d.do(r).Code != http.StatusOK {
			t.Errorf("host %s is refused", host)
		}
	}
	if queues, err := d.inspector().Queues(t.Context()); err != nil || queues[0].Paused {
		t.Errorf("queues are %+v, %v: want none paused", queues, err)
	}
}

// Other machines come in by name, with Authorize. Only a named proxy is believed.
func TestHosts(t *testing.T) {
	t.Parallel()
	d := newRig(t, func(c *Config) {
		c.Hosts, c.TrustedProxies = []string{"ops.example"}, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
		c.Authorize = func(r *http.Request, _ Action) error {
			if r.Header.Get("X-User") == "" {
				return errors.New("who?")
			}
			return nil
		}
	})
	for name, c := range map[string]struct {
		from, host, user, forwardedHost string
		code                            int
	}{
		"a known name":             {"192.0.2.1:5", "ops.example", "ann", "", 200},
		"a known name with a port": {"192.0.2.1:5", "OPS.example:8443", "ann", "", 200},
		"nobody":                   {"192.0.2.1:5", "ops.example", "", "", 403},
		"another name":             {"192.0.2.1:5", "evil.example", "ann", "", 403},
		"a proxy's word":           {"10.1.2.3:5", "inside:80", "ann", "ops.example", 200},
		"a stranger's word":        {"192.0.2.1:5", "inside:80", "ann", "ops.example", 403},
	} {
		r := request("GET", "/", nil)
		r.RemoteAddr, r.Host = c.from, c.host
		r.Header.Set("X-User", c.user)
		if c.forwardedHost != "" {
			r.Header.Set("X-Forwarded-Host", c.forwardedHost)
			r.Header.Set("X-Forwarded-For", "198.51.100.7")
		}
		if w := d.do(r); w.Code != c.code {
			t.Errorf("%s: %d, want %d\n%s", name, w.Code, c.code, w.Body)
		}
	}
}

// A named proxy's X-Forwarded-For says where a request comes from. What can't be read is refused, and
// so is what any other proxy passes on.
func TestForwardedFor(t *testing.T) {
	t.Parallel()
	d := newRig(t, func(c *Config) { c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")} })
	from := func(addr string, pairs ...string) int {
		r := request("GET", "/gates", nil)
		r.RemoteAddr = addr
		for i := 0; i < len(pairs); i += 2 {
			r.Header.Set(pairs[i], pairs[i+1])
		}
		return d.do(r).Code
	}
	for _, hops := range []string{"127.0.0.1", "127.0.0.1:80", "::1", "[::1]", "[::1]:80", "203.0.113.9, 127.0.0.2, 127.0.0.1:7", "::ffff:127.0.0.3"} {
		if code := from("127.0.0.1:5", "X-Forwarded-For", hops); code != http.StatusOK {
			t.Errorf("%q: %d, want %d", hops, code, http.StatusOK)
		}
	}
	for _, hops := range []string{
		"203.0.113.9", "203.0.113.9:4711", "unknown", `"[2001:db8::1]:80"`, "[2001:db8::1]:80", "[2001:db8::1]", "203.0.113.9, x", "", " ", "127.0.0.2,", "203.0.113.9, 127.0.0.1",
	} {
		if code := from("127.0.0.1:5", "X-Forwarded-For", hops); code != http.StatusForbidden {
			t.Errorf("%q: %d, want %d", hops, code, http.StatusForbidden)
		}
	}
	for _, header := range []string{"X-Real-IP", "Via", "Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Port"} {
		for _, addr := range []string{"127.0.0.2:5", "[::1]:5"} { // not the named one
			if code := from(addr, header, "127.0.0.1"); code != http.StatusForbidden {
				t.Errorf("%s from %s: %d, want %d", header, addr, code, http.StatusForbidden)
			}
		}
	}
	if code := from("127.0.0.1:5", "X-Real-IP", "203.0.113.9"); code != http.StatusForbidden {
		t.Errorf("a named proxy that does not say X-Forwarded-For: %d, want %d", code, http.StatusForbidden)
	}
	if code := from("127.0.0.1:5"); code != http.StatusOK {
		t.Errorf("the named proxy's machine itself: %d, want %d", code, http.StatusOK)
	}
}

// A browser names the host by which it knows a proxy, and the proxy may ask for another one. What a
// named proxy says of it counts, also for a form.
func TestFormThroughAProxy(t *testing.T) {
	t.Parallel()
	d := newRig(t, func(c *Config) {
		c.AllowWrites, c.Authorize = true, func(*http.Request, Action) error { return nil }
		c.Hosts, c.TrustedProxies = []string{"ops.example", "inside"}, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	})
	d.book("+15550100", "a")
	for name, c := range map[string]struct {
		from, origin string
		code         int
	}{
		"a named proxy":               {"10.1.2.3:5", "http://ops.example", http.StatusSeeOther},
		"one that leaves the host":    {"10.1.2.3:5", "http://inside:80", http.StatusSeeOther},
		"a stranger":                  {"192.0.2.1:5", "http://ops.example", http.StatusForbidden},
		"another site behind a proxy": {"10.1.2.3:5", "http://evil.example", http.StatusForbidden},
	} {
		r := request("POST", "/act", url.Values{"verb": {"close rule"}, "rule": {"phone"}, "for": {"1h"}, "reason": {"x"}, "back": {"/"}})
		r.RemoteAddr, r.Host = c.from, "inside:80"
		r.Header.Del("Sec-Fetch-Site") // a browser does not send it to a name in plain http
		r.Header.Set("Origin", c.origin)
		r.Header.Set("X-Forwarded-Host", "ops.example")
		r.Header.Set("X-Forwarded-For", "198.51.100.7")
		if w := d.do(r); w.Code != c.code {
			t.Errorf("%s: %d, want %d\n%s", name, w.Code, c.code, w.Body)
		}
	}
}

// Everything that is wrong with a configuration is said, in one error.
func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	_, err := New(newRig(t, nil).rdb, Config{
		Prefix: "headway", Hosts: []string{"ops.example", "http://x"}, Refresh: time.Millisecond, Budget: 1, AsynqmonURL: "javascript:x",
		Throttle: throttle.Config{Prefix: "a:b"},
	})
	if !errors.Is(err, ErrInvalidConfig) || !errors.Is(err, throttle.ErrInvalidConfig) {
		t.Fatalf("New = %v", err)
	}
	for _, field := range []string{"Prefix", "Hosts", "Refresh", "Budget", "AsynqmonURL", "Authorize"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%v does not name %s", err, field)
		}
	}
}

// A stored limit that can't be read is told on every page that needs it, with what to do, and can be
// taken away from the page of its rule.
func TestUnreadableLimit(t *testing.T) {
	t.Parallel()
	d := newRig(t, func(c *Config) { c.AllowWrites = true })
	d.spend()
	d.book("+15550100", "a")
	recorded := history.New(d.rdb, "hw", func(string) string { return "sliding 1/20m" })
	recorded.Of("phone").Granted("+15550100", 1)
	recorded.Write(t.Context())
	key := d.keyPage("+15550100")
	if err := d.rdb.Set(t.Context(), "hw:limit:phone", "nonsense", 0).Err(); err != nil {
		t.Fatal(err)
	}
	wants(t, d.get(http.StatusOK, "/"), "The stored limit of phone can&#39;t be read")
	wants(t, d.get(http.StatusOK, "/policies"), "can’t be read")
	rule := d.get(http.StatusOK, "/rule?rule=phone")
	wants(t, rule, "The stored limit can’t be read", "take it away", `value="unset limit"`, `placeholder="sliding 1/20m"`, "Busiest keys", "…100</code>",
		`<span class="tag bad">not known</span>`)
	for _, bad := range []string{"0 in ", "0s", "invalid limit"} {
		if strings.Contains(rule, bad) {
			t.Errorf("the page of the rule has %q", bad)
		}
	}
	for _, target := range []string{key, "/task?queue=default&id=a"} {
		wants(t, d.get(http.StatusConflict, target), "The stored limit can&#39;t be read.", "take it away")
	}
	d.post(http.StatusSeeOther, "/act", "verb", "unset limit", "rule", "phone", "reason", "x", "back", "/rule?rule=phone")
	wants(t, d.get(http.StatusOK, "/rule?rule=phone"), "At most 1 in any 20 minutes")
}

// A limit about which Redis does not answer as it should is told as such, and not as one that can be
// taken away.
func TestLimitOfARedisThatIsAway(t *testing.T) {
	t.Parallel()
	d := newRig(t, nil)
	if err := d.rdb.LPush(t.Context(), "hw:limit:phone", "x").Err(); err != nil { // of another type: Redis refuses to read it
		t.Fatal(err)
	}
	overview, rules := d.get(http.StatusOK, "/"), d.get(http.StatusOK, "/policies")
	wants(t, overview, "Redis does not answer as it should about the limit of phone")
	wants(t, rules, "Redis does not answer as it should")
	for _, page := range []string{overview, rules} {
		if strings.Contains(page, "take it away") {
			t.Errorf("a limit that is not known is to be taken away in\n%s", page)
		}
	}
	d.get(http.StatusServiceUnavailable, "/rule?rule=phone")
}

// The limit of a key that a function of another program finds is not told as a stored limit that can
// be taken away, and who stored or closed something is named only when it was made.
func TestWhatIsKnownOfKeysAndChanges(t *testing.T) {
	t.Parallel()
	d := newRig(t, func(c *Config) {
		c.Policies[0].Rules[1].LimitOf = func(_ context.Context, key string, _ time.Time) (throttle.Limit, time.Time, error) {
			if key == "+15550199" {
				return throttle.Sliding(3, time.Hour), time.Time{}, nil
			}
			if key == "+15550100" {
				return throttle.Limit{}, time.Time{}, errors.New("no plan")
			}
			return throttle.Limit{}, time.Time{}, nil
		}
	})
	unknown := d.get(http.StatusConflict, d.keyPage("+15550100"))
	wants(t, unknown, "The limit of the key is not known here.")
	if strings.Contains(unknown, "take it away") {
		t.Errorf("a limit that nobody stored is to be taken away in\n%s", unknown)
	}
	wants(t, d.get(http.StatusOK, d.keyPage("+15550199")), "At most 3 in any hour")
	wants(t, d.get(http.StatusOK, "/rule?rule=phone"), "Keys may have limits of their own.")

	rule := policies(t)[0].Rules[1]
	l, err := throttle.New(d.rdb, rule.Name, rule.Limit, throttle.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.CloseKey(t.Context(), "+15550102", time.Hour); err != nil {
		t.Fatal(err)
	}
	wants(t, d.get(http.StatusOK, d.keyPage("+15550102")), "The audit list has no entry of it: a provider asked for a later attempt, or a program closed it.")

	at := time.Now()
	failed := func(c inspect.Change) []inspect.Change {
		c.At, c.Rule, c.Who = at, "phone", "ann"
		said := c
		said.Failed = "away"
		return []inspect.Change{said, c}
	}
	bob := inspect.Change{At: at.Add(-time.Minute), Rule: "phone", Who: "bob"}
	for action, found := range map[inspect.Action]func([]inspect.Change, string) *inspect.Change{inspect.ActionSetLimit: setting, inspect.ActionClose: closing} {
		bob.Action = action
		if c := found(append(failed(inspect.Change{Action: action}), bob), "phone"); c == nil || c.Who != "bob" {
			t.Errorf("%s: %+v, want that of bob: the other failed", action, c)
		}
		if c := found(failed(inspect.Change{Action: action}), "phone"); c != nil {
			t.Errorf("%s: %+v, want none: it failed", action, c)
		}
	}
	if c := setting([]inspect.Change{{At: at, Rule: "phone", Action: inspect.ActionUnsetLimit}, {At: at.Add(-1), Rule: "phone", Action: inspect.ActionSetLimit}}, "phone"); c != nil {
		t.Errorf("%+v stored the limit, want nobody that is known: it was taken away since", c)
	}
}

// A wrong method is told which are right, and a HEAD of a live page has no events to wait for.
func TestMethods(t *testing.T) {
	t.Parallel()
	d := newRig(t, func(c *Config) { c.Prefix = "/headway" })
	for _, c := range []struct {
		method, target string
		code           int
		allow          string
	}{
		{"POST", "/headway/", 405, "GET, HEAD"}, {"DELETE", "/headway/rule?rule=phone", 405, "GET, HEAD"}, {"POST", "/headway/live?view=/headway/", 405, "GET, HEAD"},
		{"PUT", "/headway/assets/live.js", 405, "GET, HEAD"}, {"GET", "/headway/act", 405, "POST"}, {"GET", "/headway/find", 405, "POST"}, {"POST", "/headway/none", 404, ""},
		{"HEAD", "/headway/pools", 200, ""}, {"HEAD", "/headway/live?view=" + url.QueryEscape("/headway/pools"), 200, ""}, {"HEAD", "/headway/live?view=/none", 400, ""},
	} {
		r := request(c.method, c.target, nil)
		r.Header.Set("Sec-Fetch-Site", "same-origin")
		if w := d.do(r); w.Code != c.code || w.Header().Get("Allow") != c.allow {
			t.Errorf("%s %s: %d, Allow %q, want %d, %q", c.method, c.target, w.Code, w.Header().Get("Allow"), c.code, c.allow)
		}
	}
}

// An opening over midnight stands in two days by the clock of each, and a gate that is always open
// is told as such.
func TestWeekOfAGate(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 3, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]struct {
		day    string
		always bool
	}{
		"20:00-06:00 UTC": {"[00:00 06:00] [20:00 24:00]", false},
		"00:00-24:00 UTC": {"[00:00 24:00]", true},
		"08:00-20:00 UTC": {"[08:00 20:00]", false},
	} {
		g, err := gate.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		row := gateRow{gate: g}
		row.draw(time.UTC, now)
		for _, day := range row.Days[1:6] {
			var got []string
			for _, o := range day.Spans {
				got = append(got, fmt.Sprintf("[%s %s]", o.From, o.To))
			}
			if day := strings.Join(got, " "); day != want.day {
				t.Errorf("%s: a day is %s, want %s", text, day, want.day)
			}
		}
		if row.Always != want.always {
			t.Errorf("%s: always open is %t, want %t", text, row.Always, want.always)
		}
	}
	wants(t, newRig(t, nil).get(http.StatusOK, "/gates"), "It is always open.")
}

// On a day of 25 or 23 hours an opening stands where the hours below the picture say, and is told with
// its zone. One that goes over the change is drawn in two parts.
func TestGateOnADayOfAClockChange(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		day, gate string
		want      []string // name of the day, and its openings
	}{
		{"2026-10-25", "06:00-18:00 Europe/Berlin", []string{"Sun 25 Oct", "6 to 18: 06:00 CET–18:00 CET"}},
		{"2026-10-25", "02:30-06:00 Europe/Berlin", []string{"Sun 25 Oct", "2.5 to 3: 02:30 CEST–03:00 CEST", "2.5 to 6: 02:30 CET–06:00 CET"}},
		{"2026-10-25", "02:15-02:45 Europe/Berlin", []string{"Sun 25 Oct", "2.25 to 2.75: 02:15 CEST–02:45 CEST", "2.25 to 2.75: 02:15 CET–02:45 CET"}},
		{"2026-10-25", "00:00-24:00 Europe/Berlin", []string{"Sun 25 Oct", "0 to 3: 00:00 CEST–03:00 CEST", "2 to 24: 02:00 CET–24:00"}},
		{"2026-03-29", "06:00-18:00 Europe/Berlin", []string{"Sun 29 Mar", "6 to 18: 06:00 CEST–18:00 CEST"}},
		{"2026-03-29", "01:00-04:00 Europe/Berlin", []string{"Sun 29 Mar", "1 to 2: 01:00 CET–02:00 CET", "3 to 4: 03:00 CEST–04:00 CEST"}},
		{"2026-09-05", "08:00-23:30 America/Santiago", []string{"Sat 5 Sep", "8 to 23.5: 08:00–23:30"}},
		{"2026-09-06", "08:00-23:30 America/Santiago", []string{"Sun 6 Sep", "8 to 23.5: 08:00 -03–23:30 -03"}}, // the hour after midnight is left out
		{"2026-09-06", "00:00-24:00 America/Santiago", []string{"Sun 6 Sep", "1 to 24: 01:00 -03–24:00"}},
	} {
		g, err := gate.Parse(c.gate)
		if err != nil {
			t.Fatal(err)
		}
		zone, err := time.LoadLocation(g.Zone())
		if err != nil {
			t.Fatal(err)
		}
		noon, err := time.ParseInLocation("2006-01-02 15", c.day+" 12", zone)
		if err != nil {
			t.Fatal(err)
		}
		row := gateRow{gate: g}
		row.draw(time.UTC, noon)
		day := row.Days[0]
		got := []string{day.Name + " " + day.Date}
		for _, s := range day.Spans {
			got = append(got, fmt.Sprintf("%g to %g: %s–%s", s.X*24/dayWidth, (s.X+s.W)*24/dayWidth, s.From, s.To))
		}
		if diff := cmp.Diff(c.want, got); diff != "" || day.Now != dayWidth/2 {
			t.Errorf("%s on %s, now at %g (-want +got):\n%s", c.gate, c.day, day.Now, diff)
		}
		names := make(map[string]bool)
		for _, day := range row.Days {
			names[day.Date] = true
		}
		if len(names) != 7 {
			t.Errorf("the week has the days %v, want seven", names)
		}
	}
}

// The last days of a leap year are drawn like others, also where the zone follows a rule: from 2038
// on all do. Go's time package ends such a year after 365 days.
func TestGateAtTheEndOfALeapYear(t *testing.T) {
	t.Parallel()
	g, err := gate.Parse("00:00-24:00 Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	drawn := make(chan gateRow, 1)
	go func() {
		row := gateRow{gate: g}
		row.draw(time.UTC, time.Date(2040, 12, 29, 12, 0, 0, 0, time.UTC))
		drawn <- row
	}()
	select {
	case row := <-drawn:
		for _, day := range row.Days {
			if len(day.Spans) != 1 || day.Spans[0].From != "00:00" || day.Spans[0].To != "24:00" {
				t.Errorf("%s: open %v, want all day", day.Date, day.Spans)
			}
		}
	case <-time.After(20 * time.Second):
		t.Error("the week is not drawn within 20 s")
	}
}

// Where asynqmon runs, the pages of a queue and of a task lead to its pages about the same.
func TestLinksToAsynqmon(t *testing.T) {
	t.Parallel()
	d := newRig(t, func(c *Config) { c.AsynqmonURL = "https://ops.example/asynqmon/" })
	d.spend()
	d.book("+15550100", "a/b?c")
	wants(t, d.get(http.StatusOK, "/"), `href="https://ops.example/asynqmon"`)
	wants(t, d.get(http.StatusOK, "/queue?queue=default"), `href="https://ops.example/asynqmon/queues/default"`)
	wants(t, d.get(http.StatusOK, "/task?queue=default&id="+url.QueryEscape("a/b?c")), `href="https://ops.example/asynqmon/queues/default/tasks/a%2Fb%3Fc"`)
}

// The page of batches tells why elements were refused.
func TestRefusedElements(t *testing.T) {
	t.Parallel()
	d := newRig(t, nil)
	d.startBatch()
	const record = "hw:{default}:batch:letter"
	if err := d.rdb.HSet(t.Context(), record, "refused", 7, "refused:too late", 2, "refused:id taken", 4, "refused:<b>", 1).Err(); err != nil {
		t.Fatal(err)
	}
	wants(t, d.get(http.StatusOK, "/batches"),
		`<dt>Refused</dt><dd>7 <span class="quiet">4 id taken</span> <span class="quiet">1 not known</span> <span class="quiet">2 too late</span></dd>`)
}

// The page of schedules tells what became of the last ticks, and leads to their tasks.
func TestLastTicks(t *testing.T) {
	t.Parallel()
	d := newRig(t, nil)
	d.say(`{"id":"x","kind":"scheduler","entries":[{"name":"nightly","queue":"low","spec":"CRON_TZ=UTC 30 2 * * *"}]}`)
	at := time.Date(2026, 3, 1, 2, 30, 0, 0, time.UTC).UnixMicro()
	if err := d.rdb.LPush(t.Context(), "hw:{low}:ticks:nightly", fmt.Sprint(at, " 1 ", at), fmt.Sprint(at+86_400_000_000, " 2 ", at)).Err(); err != nil {
		t.Fatal(err)
	}
	wants(t, d.get(http.StatusOK, "/schedules"), `>ended, and deleted</a>`, "<td>skipped: an earlier one had not ended</td>", "nightly%402026-03-01T02%3A30%3A00Z")
}
