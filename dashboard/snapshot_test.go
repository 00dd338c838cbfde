package dashboard

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headwayq/headway/internal/redistest"
)

// fiftyViewers look at once; they cost Redis what one costs.
func TestFiftyViewersCostNoMoreThanOne(t *testing.T) {
	t.Parallel()
	d := newRig(t, func(c *Config) { c.Refresh = RefreshMax })
	d.book("+15550100", "0", "a", "b")
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
		h, err := New(rdb, Config{Policies: policies(t), Refresh: RefreshMax})
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
		s := &snapshots{meter: &meter{perSecond: 1000, left: 1000, at: time.Now()}, all: make(map[string]*snapshot)}
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

// All loads together stay in the budget: what is spent over it is waited for, and meanwhile
// a view that is there is shown.
func TestBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &meter{perSecond: 100, left: 100, at: time.Now()}
		s := &snapshots{meter: m, all: make(map[string]*snapshot)}
		begin := time.Now()
		load := func(cost int) func(context.Context) (any, error) {
			return func(ctx context.Context) (any, error) { m.spend(ctx, cost); return time.Since(begin), nil }
		}
		if v, err := s.get(t.Context(), "big", time.Second, load(600)); err != nil || v.cost != 600 {
			t.Fatalf("%+v, %v", v, err)
		}
		v, err := s.get(t.Context(), "next", time.Second, load(1))
		if waited := time.Since(begin); err != nil || waited < 5*time.Second || waited > 6*time.Second {
			t.Errorf("%+v, %v: the next load waited for %v, want 5 s", v, err, waited)
		}
		m.spend(t.Context(), 400)
		time.Sleep(1500 * time.Millisecond)
		if v, err := s.get(t.Context(), "next", time.Second, load(1)); err != nil || time.Since(v.at) < time.Second {
			t.Errorf("%+v, %v: want what is there while the budget is spent", v, err)
		}
		m.spend(t.Context(), 5000)
		if _, err := s.get(t.Context(), "never", time.Second, load(1)); !errors.Is(err, errBusy) {
			t.Errorf("a load that would wait too long: %v, want %v", err, errBusy)
		}
	})
}

// A page that is followed comes anew when something has changed, and only then.
func TestLive(t *testing.T) {
	t.Parallel()
	d := newRig(t, nil)
	d.book("+15550100", "0", "a")
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
	if first := <-events; !strings.Contains(first, "event: view") || !strings.Contains(first, "Nobody has changed anything") {
		t.Fatalf("the first event is %s", first)
	}
	if err := d.inspector().PauseQueue(t.Context(), "default", because); err != nil {
		t.Fatal(err)
	}
	if second := <-events; !strings.Contains(second, "paused queue default") {
		t.Errorf("after a change the event is %s", second)
	}
	stop()
	for range events { // until the reader has ended
	}
}
