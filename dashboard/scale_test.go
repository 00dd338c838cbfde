package dashboard

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/queue"
)

// pageMax is how long a page may take to answer while a million tasks wait.
const pageMax = 300 * time.Millisecond

// Of a million tasks that wait every page answers in 300 ms, and 50 viewers who follow all
// pages at once stay in the budget. The time is the median of some, by the clock of an idle
// machine: it is told, and only far more is a failure.
func TestAMillionTasksWait(t *testing.T) {
	tasks := 1_000_000
	if testing.Short() {
		t.Skip("a million bookings take minutes: make soak makes them")
	}
	d := newRig(t, func(c *Config) { c.Refresh = RefreshDefault })
	begin := time.Now()
	var filling sync.WaitGroup
	for worker := range 4 {
		filling.Go(func() {
			for from := worker * 500; from < tasks; from += 4 * 500 {
				some := make([]*queue.Task, 500)
				for n := range some {
					some[n] = queue.NewTask("sms", fmt.Appendf(nil, `{"to":"+1555%07d"}`, (from+n)%50_000), asynq.TaskID(strconv.Itoa(from+n)))
				}
				for _, b := range d.client.BookMany(t.Context(), some) {
					if b.Err != nil {
						t.Error(b.Err)
						return
					}
				}
			}
		})
	}
	filling.Wait()
	t.Logf("%d tasks were booked in %v", tasks, time.Since(begin).Round(time.Second))
	far := ""
	for w, err := range d.inspector().Deferred(t.Context(), "default") {
		if err != nil {
			t.Fatal(err)
		}
		far = w.ID
		break
	}
	targets := d.targets("+15550000007", far)
	for name, target := range targets {
		var took []time.Duration
		for range 5 {
			board, err := New(d.rdb, Config{Policies: policies(t)}) // one that has nothing of it yet
			if err != nil {
				t.Fatal(err)
			}
			if name == "key" { // a link is of the dashboard that made it
				w := httptest.NewRecorder()
				board.ServeHTTP(w, request("POST", "/find", url.Values{"rule": {"phone"}, "key": {"+15550000007"}}))
				target = w.Header().Get("Location")
			}
			w, from := httptest.NewRecorder(), time.Now()
			board.ServeHTTP(w, request("GET", target, nil))
			took = append(took, time.Since(from))
			if w.Code != http.StatusOK {
				t.Fatalf("%s: %d\n%s", name, w.Code, w.Body)
			}
		}
		slices.Sort(took)
		t.Logf("%-9s %v", name, took[2].Round(100*time.Microsecond))
		if took[2] > 10*pageMax {
			t.Errorf("%s took %v, want %v on an idle machine", name, took[2], pageMax)
		}
	}
	for _, viewers := range []int{1, 50} {
		ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
		before, from := d.commands(), time.Now()
		var following sync.WaitGroup
		for range viewers {
			for _, target := range targets {
				following.Go(func() {
					d.board.ServeHTTP(httptest.NewRecorder(), request("GET", "/live?view="+url.QueryEscape(target), nil).WithContext(ctx))
				})
			}
		}
		following.Wait()
		stop()
		rate := float64(d.commands()-before) / time.Since(from).Seconds()
		t.Logf("%d viewers of each page cost %.0f commands/s", viewers, rate)
		if rate > BudgetDefault {
			t.Errorf("%d viewers of each page cost %.0f commands/s, want at most %d", viewers, rate, BudgetDefault)
		}
	}
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	t.Logf("the process has %d MB", memory.HeapInuse>>20)
}
