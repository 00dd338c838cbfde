package dashboard

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headwayq/headway/internal/redistest"
)

// Fifty viewers who look at once cost Redis what one costs.
func TestFiftyViewersCostNoMoreThanOne(t *testing.T) {
	t.Parallel()
	d := newRig(t, func(c *Config) { c.Refresh = RefreshMax })
	d.spend()
	d.book("+15550100", "a", "b")
	d.get(http.StatusOK, "/pools") // what all pages share is read
	overhead := -d.commands()
	overhead += d.commands()
	for name, target := range map[string]string{"rule": "/rule?rule=phone", "task": "/task?queue=default&id=b"} {
		before := d.commands()
		var viewers sync.WaitGroup
		for range 50 {
			viewers.Go(func() {
				if w := d.do(request("GET", target, nil)); w.Code != http.StatusOK {
					t.Errorf("%s: %d", name, w.Code)
				}
			})
		}
		viewers.Wait()
		cost := d.commands() - before - overhead
		alone := d.alone(target)
		if cost > alone*2 { // what happens to be refreshed beside it, such as what processes say
			t.Errorf("%s: 50 viewers cost %d commands, one costs %d", name, cost, alone)
		}
	}
}

// On Redis Cluster a load costs what its commands are, as on one server. The caller's own commands
// cost nothing, and neither do those of another dashboard on the same client.
func TestCommandsOfAClusterAreCounted(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3)
	boards := map[string]*board{}
	for _, name := range []string{"looked at", "idle"} {
		h, err := New(rdb, Config{Policies: policies(t), Refresh: RefreshMax, AllowWrites: true})
		if err != nil {
			t.Fatal(err)
		}
		boards[name] = h.(*board)
	}
	for range 100 {
		if err := rdb.Set(t.Context(), "mine", "1", time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
	}
	one := newRig(t, func(c *Config) { c.Refresh = RefreshMax })
	if w := one.do(request("GET", "/rule?rule=phone", nil)); w.Code != http.StatusOK {
		t.Fatalf("one server: %d", w.Code)
	}
	w := httptest.NewRecorder()
	boards["looked at"].ServeHTTP(w, request("GET", "/rule?rule=phone", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("cluster: %d %s", w.Code, w.Body)
	}
	want := one.board.(*board).meter.spent()
	if got := boards["looked at"].meter.spent(); got < want/2 || got > 4*want || got == blindCost {
		t.Errorf("a page of a cluster counts as %d commands, of one server as %d", got, want)
	}
	before := boards["looked at"].meter.spent()
	w = httptest.NewRecorder()
	boards["looked at"].ServeHTTP(w, request("POST", "/act", url.Values{"verb": {"close rule"}, "rule": {"phone"}, "for": {"1h"}, "reason": {"x"}, "back": {"/"}}))
	if w.Code != http.StatusSeeOther || boards["looked at"].meter.spent() < before+scriptCost {
		t.Errorf("a change of a cluster is answered with %d, and counts as %d commands", w.Code, boards["looked at"].meter.spent()-before)
	}
	if got := boards["idle"].meter.spent(); got != 0 {
		t.Errorf("a dashboard that nobody looks at has spent %d commands", got)
	}
}

// spent is how many commands have been counted.
func (m *meter) spent() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.total
}

// alone is what one viewer of a dashboard costs that nobody else looks at.
func (d *rig) alone(target string) int {
	d.Helper()
	other, err := New(d.rdb, Config{Policies: policies(d.T), Refresh: RefreshMax})
	if err != nil {
		d.Fatal(err)
	}
	before := d.commands()
	w := httptest.NewRecorder()
	other.ServeHTTP(w, request("GET", target, nil))
	return d.commands() - before
}

// All viewers who wait for a view share one load. While it is loaded again they see the old view.
// An error is kept no longer than a view.
func TestSnapshotsAreShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSnapshots(0, &meter{perSecond: 1000, left: 1000, at: time.Now()})
		loads := 0
		load := func(context.Context) (any, error) {
			loads++
			n := loads
			time.Sleep(300 * time.Millisecond)
			if n == 3 {
				return nil, errors.New("away")
			}
			return n, nil
		}
		get := func() (any, error) {
			v, err := s.get(t.Context(), "x", time.Second, load)
			return v.value, err
		}
		var viewers sync.WaitGroup
		for range 50 {
			viewers.Go(func() {
				if v, err := get(); v != 1 || err != nil {
					t.Errorf("a viewer got %v, %v", v, err)
				}
			})
		}
		viewers.Wait()
		time.Sleep(time.Second)
		viewers.Go(func() {
			if v, err := get(); v != 2 || err != nil {
				t.Errorf("after a second a viewer got %v, %v", v, err)
			}
		})
		synctest.Wait()
		if v, err := get(); v != 1 || err != nil {
			t.Errorf("while it is loaded anew a viewer got %v, %v", v, err)
		}
		viewers.Wait()
		time.Sleep(time.Second)
		if _, err := get(); err == nil {
			t.Error("an error is not told")
		}
		time.Sleep(time.Second)
		if v, err := get(); v != 4 || err != nil {
			t.Errorf("after an error a viewer got %v, %v", v, err)
		}
		for n := range 2 * snapshotsMax {
			if _, err := s.get(t.Context(), fmt.Sprint(n), time.Second, func(context.Context) (any, error) { return n, nil }); err != nil {
				t.Error(err)
			}
		}
		if len(s.all) > snapshotsMax {
			t.Errorf("%d views are kept, want at most %d", len(s.all), snapshotsMax)
		}
		time.Sleep(loadFor)
	})
}

// All loads together stay in the budget: what is spent over it is waited for, for two seconds at most
// where nobody expected it, and meanwhile a view that is there is shown.
func TestBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &meter{perSecond: 100, left: 100, at: time.Now()}
		s := newSnapshots(0, m)
		begin := time.Now()
		load := func(cost int) func(context.Context) (any, error) {
			return func(ctx context.Context) (any, error) { m.spend(ctx, cost); return time.Since(begin), nil }
		}
		if v, err := s.get(t.Context(), "big", time.Second, load(600)); err != nil || v.cost != 600 {
			t.Fatalf("%+v, %v", v, err)
		}
		v, err := s.get(t.Context(), "next", time.Second, load(1))
		if waited := time.Since(begin); err != nil || waited < 2*time.Second || waited > 3*time.Second {
			t.Errorf("%+v, %v: the next load waited for %v, want 2 s and what it costs itself", v, err, waited)
		}
		m.spend(t.Context(), 400)
		time.Sleep(1500 * time.Millisecond)
		if v, err := s.get(t.Context(), "next", time.Second, load(1)); err != nil || time.Since(v.at) < time.Second {
			t.Errorf("%+v, %v: want what is there while the budget is spent", v, err)
		}
		begin = time.Now()
		if v, err := s.get(t.Context(), "big?2", time.Second, load(600)); err != nil || v.cost != 600 {
			t.Fatalf("%+v, %v", v, err)
		}
		if _, err := s.get(t.Context(), "other", time.Second, load(1)); err != nil || time.Since(begin) < 5*time.Second {
			t.Errorf("%v: a load behind one that is known to cost 600 waited for %v, want all of that", err, time.Since(begin))
		}
		if _, ok := m.book(&loadCost{of: m}, 1500); !ok {
			t.Fatal("a load is refused while the budget is there")
		}
		if _, err := s.get(t.Context(), "never", time.Second, load(1)); !errors.Is(err, errBusy) {
			t.Errorf("a load that would wait too long: %v, want %v", err, errBusy)
		}
	})
}

// A change that costs a hundred times the budget keeps neither pages nor other changes waiting for more
// than a few seconds, while it goes on and after it.
func TestALargeChangeLocksNobodyOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &meter{perSecond: 100, left: 100, at: time.Now()}
		s := newSnapshots(0, m)
		soon := func(when string) {
			t.Helper()
			for _, kind := range []string{"page", changeKind} {
				begin := time.Now()
				var err error
				if kind == changeKind {
					var end func()
					if _, end, err = s.enter(t.Context(), kind); err == nil {
						end()
					}
				} else {
					_, err = s.get(t.Context(), "page?"+when, time.Second, func(context.Context) (any, error) { return 1, nil })
				}
				if waited := time.Since(begin); err != nil || waited > 5*time.Second {
					t.Errorf("%s a %s waited for %v, %v, want a few seconds", when, kind, waited, err)
				}
			}
		}
		inside, end, err := s.enter(t.Context(), changeKind)
		if err != nil {
			t.Fatal(err)
		}
		var large sync.WaitGroup
		large.Go(func() {
			for range 1000 {
				m.spend(inside, 250)
				time.Sleep(100 * time.Millisecond)
			}
		})
		time.Sleep(10 * time.Second)
		soon("while it goes on")
		large.Wait()
		end()
		soon("after it")
		if got := m.spent(); got != 250_000 {
			t.Errorf("%d commands were counted, want 250,000", got)
		}
	})
}

// Many different views do not start together: few loads are under way at once, what they spend stays
// in the budget, and a viewer who would wait too long is told so at once.
func TestManyViewsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const perSecond, cost, views = 100, 60, 400
		m := &meter{perSecond: perSecond, left: perSecond, at: time.Now()}
		s := newSnapshots(0, m)
		var mu sync.Mutex
		now, most, refused, served := 0, 0, 0, 0
		run := func(ctx context.Context) (any, error) {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			m.spend(ctx, cost)
			time.Sleep(time.Second)
			mu.Lock()
			defer mu.Unlock()
			now--
			return most, nil
		}
		begin := time.Now()
		var viewers sync.WaitGroup
		for n := range views {
			viewers.Go(func() {
				_, err := s.get(t.Context(), fmt.Sprint("rule?", n), time.Second, run)
				mu.Lock()
				defer mu.Unlock()
				switch waited := time.Since(begin); {
				case err == nil:
					served++
				case !errors.Is(err, errBusy) || waited > 0:
					t.Errorf("%v after %v, want %v at once", err, waited, errBusy)
				default:
					refused++
				}
			})
		}
		synctest.Wait()
		if n := len(s.all); n > snapshotsMax {
			t.Errorf("%d views are held, want at most %d", n, snapshotsMax)
		}
		viewers.Wait()
		// The first loads are booked before it is known what they cost.
		if bound := perSecond * (1 + time.Since(begin).Seconds()) * cost / firstCost; float64(m.spent()) > bound || served == 0 || served+refused != views {
			t.Errorf("%d were served, %d refused, and %d commands spent, want at most %.0f", served, refused, m.spent(), bound)
		}

		m.perSecond, m.left = 1e6, 1e6
		for n := range snapshotsMax {
			viewers.Go(func() { _, _ = s.get(t.Context(), fmt.Sprint("task?", n), time.Second, run) })
		}
		viewers.Wait()
		if most != loadsMax {
			t.Errorf("%d loads were under way at once, want %d", most, loadsMax)
		}
		time.Sleep(loadFor)
	})
}

// A load that others need does not wait behind them.
func TestLoadsThatNeedALoad(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSnapshots(0, &meter{perSecond: 1e6, left: 1e6, at: time.Now()})
		shared := func(ctx context.Context) error {
			_, err := s.get(ctx, "shared", time.Second, func(context.Context) (any, error) { time.Sleep(time.Second); return 1, nil })
			return err
		}
		var viewers sync.WaitGroup
		for n := range 4 * loadsMax {
			viewers.Go(func() {
				if _, err := s.get(t.Context(), fmt.Sprint(n), time.Second, func(ctx context.Context) (any, error) {
					time.Sleep(time.Millisecond)
					return 1, shared(ctx)
				}); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		viewers.Go(func() { // it is behind the others, until they need it
			if err := shared(t.Context()); err != nil {
				t.Error(err)
			}
		})
		begin := time.Now()
		viewers.Wait()
		if took := time.Since(begin); took > 2*time.Second {
			t.Errorf("the loads took %v", took)
		}
	})
}

// A load ends when nobody waits for its view any more. If it has not started by then, it never starts.
func TestViewersLeave(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSnapshots(0, &meter{perSecond: 1e6, left: 1e6, at: time.Now()})
		var viewers sync.WaitGroup
		var mu sync.Mutex
		ended := 0
		begin := func(n int) (leave context.CancelFunc) {
			ctx, leave := context.WithCancel(t.Context())
			for range n {
				viewers.Go(func() {
					_, _ = s.get(ctx, fmt.Sprint(n, rand.Text()), time.Second, func(ctx context.Context) (any, error) {
						<-ctx.Done()
						mu.Lock()
						defer mu.Unlock()
						ended++
						return nil, ctx.Err()
					})
				})
			}
			synctest.Wait()
			return leave
		}
		first, behind := begin(loadsMax), begin(5)
		behind()
		synctest.Wait()
		first()
		viewers.Wait()
		synctest.Wait()
		if ended != loadsMax || len(s.slots) != 0 || len(s.all) != 0 || s.waiting != 0 {
			t.Errorf("%d loads ended, want %d; %d are under way, %d wait, %d views are held", ended, loadsMax, len(s.slots), s.waiting, len(s.all))
		}
	})
}

// A panic in a load is an error without its text. It does not end the program, and the next viewer
// gets the view.
func TestPanicInALoad(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSnapshots(0, &meter{perSecond: 1000, left: 1000, at: time.Now()})
		if _, err := s.get(t.Context(), "x", time.Second, func(context.Context) (any, error) { panic("+15550100") }); !errors.Is(err, errFault) {
			t.Errorf("a panic is %v, want %v", err, errFault)
		}
		if code, what, next := explained(errFault); code != http.StatusInternalServerError || strings.Contains(what+next, "15550100") {
			t.Errorf("a panic is answered with %d %s %s", code, what, next)
		}
		time.Sleep(time.Second)
		if v, err := s.get(t.Context(), "x", time.Second, func(context.Context) (any, error) { return 2, nil }); v.value != 2 || err != nil || len(s.slots) != 0 {
			t.Errorf("after a panic a viewer got %v, %v, and %d loads are under way", v.value, err, len(s.slots))
		}
	})
}

// Changes and searches wait for the budget as pages do. Whoever would wait too long is refused, with
// a time to try again.
func TestChangesWaitForTheBudget(t *testing.T) {
	t.Parallel()
	d := newRig(t, func(c *Config) { c.AllowWrites = true })
	d.book("+15550100", "a", "b")
	forms := d.forms()
	m := d.board.(*board).meter
	if _, ok := m.book(&loadCost{of: m}, 30*BudgetDefault); !ok { // a load before them has paid for half a minute
		t.Fatal("nothing can be booked while the budget is there")
	}
	change := forms[CloseRule]
	change.Set("verb", string(CloseRule))
	for name, r := range map[string]*http.Request{
		"a page": request("GET", "/audit", nil), "a change": request("POST", "/act", change),
		"a search": request("POST", "/find", url.Values{"rule": {"phone"}, "key": {"+15550100"}}),
	} {
		if w := d.do(r); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
			t.Errorf("%s is answered with %d, want %d and when to try again", name, w.Code, http.StatusServiceUnavailable)
		}
	}
	if n := len(d.audited()); n != 0 {
		t.Errorf("%d changes were made", n)
	}
}

// A page that is followed comes anew when something has changed, and only then. It ends when its
// reader may no longer look.
func TestLive(t *testing.T) {
	t.Parallel()
	var barred atomic.Bool
	d := newRig(t, func(c *Config) {
		c.Authorize = func(*http.Request, Action) error {
			if barred.Load() {
				return errors.New("signed out")
			}
			return nil
		}
	})
	d.spend()
	d.book("+15550100", "a")
	server := httptest.NewServer(d.board)
	defer server.Close()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/live?view="+url.QueryEscape("/audit"), nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if kind := answer.Header.Get("Content-Type"); answer.StatusCode != http.StatusOK || kind != "text/event-stream" {
		t.Fatalf("%d, %s", answer.StatusCode, kind)
	}
	events := make(chan string)
	go func() {
		defer close(events)
		var event strings.Builder
		for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
			if line := lines.Text(); line != "" {
				event.WriteString(line + "\n")
				continue
			}
			if strings.HasPrefix(event.String(), "event:") {
				select {
				case events <- event.String():
				case <-ctx.Done():
					return
				}
			}
			event.Reset()
		}
	}()
	if first := <-events; !regexp.MustCompile(`event: view\nid: 20\d\d-\S+Z\n`).MatchString(first) || !strings.Contains(first, "Nobody has changed anything") {
		t.Fatalf("the first event is %s", first)
	}
	if err := d.inspector().PauseQueue(t.Context(), "default", because); err != nil {
		t.Fatal(err)
	}
	if second := <-events; !strings.Contains(second, "paused queue default") {
		t.Errorf("after a change the event is %s", second)
	}
	barred.Store(true)
	if err := d.inspector().ResumeQueue(t.Context(), "default", because); err != nil {
		t.Fatal(err)
	}
	if last, more := <-events, <-events; !strings.Contains(last, "event: end") || more != "" {
		t.Errorf("who is signed out is sent %s and %s, want that and no more", last, more)
	}
	stop()
	for range events { // until the reader has ended
	}
}
