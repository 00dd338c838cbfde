//go:build accept

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
)

// TestAccept runs the figures of the main job in real time, one after the other,
// and prints them as a table. `make accept` runs all of it; a part alone is
// `go test -count=1 -tags accept -run 'Accept/one_phone' -v ./e2e`
func TestAccept(t *testing.T) {
	acceptParts(t, []acceptPart{
		{"one phone: 600 messages at 1/100ms, three processes", acceptOnePhone},
		{"storm: 20,000 messages to 2,000 phones at 1/5s, processes killed", acceptStorm},
		{"frozen: a process stands still for 10 s", acceptFrozen},
		{"away: Redis is away for 20 s", acceptAway},
		{"full: Redis has no memory left", acceptFull},
		{"flush: the script cache is flushed", acceptFlush},
		{"outage: Redis is away for 6 s when handlers return", acceptOutage},
		{"idle: what a pool without tasks costs Redis", acceptIdle},
		{"memory: what a deferred job costs Redis", acceptMemory},
		{"everysec: what kill -9 of Redis loses without appendfsync always", acceptEverySec},
	})
}

// acceptPart is one experiment, whose figures go into the table.
type acceptPart struct {
	name string
	run  func(*testing.T, *table)
}

func acceptParts(t *testing.T, parts []acceptPart) {
	t.Helper()
	tab := &table{}
	defer tab.print(os.Stdout)
	for _, part := range parts {
		t.Run(part.name, func(t *testing.T) {
			tab.head(part.name)
			m := watchMachine()
			part.run(t, tab)
			tab.note("the machine itself stood still", "%v", m.end())
		})
	}
}

// acceptOnePhone is one line under load: tasks without a rule flow through the
// same queue all the time.
func acceptOnePhone(t *testing.T, tab *table) {
	const pace = 200 // other tasks a second
	s := newTestbed(t, "1/100ms", workerSpec{Concurrency: 4, Takes: 2 * time.Millisecond})
	s.crew.start(3)
	flow := s.startFlow(pace)
	s.enqueuePaced(600, time.Millisecond)
	order := s.watchLine(phone(0), 2*time.Minute)
	s.eventually(2*time.Minute, "every message is sent", func() bool { return s.gateway.Answered() == s.sent })
	offered := flow.end()
	s.crew.end()

	all := s.crew.records()
	grants := grantsOf(all, s.phones)
	stats := sum(all)
	late, first := lateness(all), latenessFirst(all)
	excused, over := overtaken(all, order, grants)
	most, id := displacement(grants)
	n := float64(s.sent)

	tab.faults(t, s)
	tab.most(t, "sent more than once", float64(len(s.gateway.Repeated())), 0)
	tab.most(t, "admissions per message", float64(stats.Admissions)/n, 2.05)
	tab.least(t, "share of the permitted rate, %", 100*share(grants, s.limit.Window()), 99)
	tab.most(t, fmt.Sprintf("overtaken in the line (%d places seen)", len(order)), float64(len(over)+excused), 0)
	tab.most(t, "displaced from the order of enqueueing, most", float64(most), 12)
	tab.within(t, "lateness p99", quantile(late, 0.99), 25*time.Millisecond)
	tab.note("lateness p50, max", "%v, %v", quantile(late, 0.5), quantile(late, 1))
	tab.note("lateness against the first promise p50, p99", "%v, %v", quantile(first, 0.5), quantile(first, 0.99))
	tab.note("moves, wake checks per message", "%.3f, %.3f", float64(stats.Moved)/n, float64(stats.WakeChecks)/n)
	tab.note("lead at the end", "%v", stats.Lead)
	tab.least(t, "other tasks, % of their pace", 100*float64(ranWithin(all, flow.began, flow.ended))/(pace*flow.ended.Sub(flow.began).Seconds()), 90)
	tab.note("other tasks offered", "%d", offered)
	if most > 12 {
		t.Logf("displaced by %d: %s", most, id)
	}
	if len(over) > 0 {
		t.Logf("overtaken: %s", few(over))
	}
}

// ranWithin counts the tasks without a rule that ran between two instants.
func ranWithin(all []record, from, to time.Time) int {
	n := 0
	for _, r := range ofKind(all, kindOther) {
		if r.Wrote >= from.UnixMicro() && r.Wrote < to.UnixMicro() {
			n++
		}
	}
	return n
}

// flow offers tasks without a rule at a fixed pace.
type flow struct {
	began, ended time.Time
	stop         context.CancelFunc
	wg           sync.WaitGroup
	offered      int
	err          error
}

func (s *testbed) startFlow(pace int) *flow {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	f := &flow{began: time.Now(), stop: cancel}
	f.wg.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			for due := int(time.Since(f.began).Seconds() * float64(pace)); f.offered < due; f.offered++ {
				if _, err := s.client.Enqueue(s.Context(), queue.NewTask(typeOther, nil)); err != nil {
					f.err = err
					return
				}
			}
		}
	})
	s.Cleanup(func() { cancel(); f.wg.Wait() })
	return f
}

// end stops the flow and answers how many tasks were offered.
func (f *flow) end() int {
	f.ended = time.Now()
	f.stop()
	f.wg.Wait()
	return f.offered
}

// acceptStorm kills a process every 3 s for a minute, and restarts Redis once.
func acceptStorm(t *testing.T, tab *table) {
	const (
		kills    = 20
		every    = 3 * time.Second
		recovery = 5 * time.Minute // asynq finds the last victim's tasks after 60 to 120 s
	)
	s := newTestbed(t, "1/5s", workerSpec{Concurrency: 10, Takes: 2 * time.Millisecond}, redistest.AOF())
	began := time.Now()
	alive := s.crew.start(3)
	var producers errgroup
	for part := range slices.Chunk(s.write(20_000, 2_000), 2_500) {
		producers.Go(func() error { return s.send(part) }) // workers are killed while they come in
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for i := range kills {
		<-tick.C
		alive[i%3].kill()
		if i == kills/2 {
			s.server.Restart()
		}
		alive[i%3] = s.crew.launch()
	}
	if err := producers.Wait(); err != nil {
		t.Fatal(err)
	}
	s.eventually(recovery, "every message is sent", func() bool { return s.gateway.Answered() == s.sent })
	took := time.Since(began)
	s.settled(recovery, 0)
	s.crew.end()

	all := s.crew.records()
	grants := grantsOf(all, s.phones)
	again, faults := sentAgain(all, func(life int) bool { return s.crew.life(life).killed })
	late := lateness(all)
	tab.faults(t, s)
	tab.least(t, "messages sent at least once", float64(s.gateway.Answered()), float64(s.sent))
	tab.none(t, "sent again, but not running in a killed process", faults)
	tab.note("sent again in all; at the gateway", "%d; %d", again, len(s.gateway.Repeated()))
	tab.note("grants; admissions per message, of what was recorded", "%d; %.3f", len(grants),
		float64(len(grants)+len(ofKind(all, kindDeferred)))/float64(s.sent))
	tab.note("lateness p50, p99, max", "%v, %v, %v", quantile(late, 0.5), quantile(late, 0.99), quantile(late, 1))
	tab.note("processes in all; time for all messages", "%d; %v", len(s.crew.lives), took.Round(time.Second))
	tab.note("log lines of a process, most", "%d", s.crew.mostLines())
}

// errgroup runs functions and keeps their errors.
type errgroup struct {
	sync.WaitGroup
	mu   sync.Mutex
	errs []error
}

// Go runs f in a goroutine of the group.
func (g *errgroup) Go(f func() error) {
	g.WaitGroup.Go(func() {
		if err := f(); err != nil {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.errs = append(g.errs, err)
		}
	})
}

// Wait waits for all, and returns their errors joined.
func (g *errgroup) Wait() error {
	g.WaitGroup.Wait()
	return errors.Join(g.errs...)
}

// mostLines is what the process that logged most has logged.
func (c *crew) mostLines() int {
	most := 0
	for _, l := range c.lives {
		most = max(most, l.lines())
	}
	return most
}

func acceptFrozen(t *testing.T, tab *table) {
	during, permitted := frozen(t, 10*time.Second)
	tab.want(t, !t.Failed(), "breaches, lost, sent twice, early", "none", "none")
	tab.least(t, "sent while it stood still, % of what is permitted", 100*float64(during)/float64(permitted), 50)
}

// trouble is a fault of Redis while messages flow.
func trouble(t *testing.T, tab *table, took time.Duration, opts []redistest.Option, fault func(*testbed)) {
	t.Helper()
	s := newTestbed(t, "1/500ms", workerSpec{Concurrency: 4}, opts...)
	s.crew.start(3)
	s.enqueue(40*30, 40) // 15 s of work
	s.eventually(20*time.Second, "it is under way", func() bool { return s.gateway.Answered() > 200 })
	lines := s.crew.mostLines()
	fault(s)
	over := time.Now()
	s.eventually(30*time.Second, "work goes on", func() bool { return s.gateway.since(over) > 0 })
	tab.within(t, "work goes on after", time.Since(over), 5*time.Second)
	s.eventually(5*time.Minute, "every message is sent", func() bool { return s.gateway.Answered() == s.sent })
	all := time.Since(over)
	s.settled(5*time.Minute, 0)
	flood := s.crew.mostLines() - lines
	s.crew.end()

	tab.faults(t, s)
	tab.least(t, "messages sent", float64(s.gateway.Answered()), float64(s.sent))
	tab.none(t, "sent more than once", s.gateway.Repeated())
	tab.note("all sent after", "%v", all.Round(100*time.Millisecond))
	tab.most(t, "log lines of a process, most", float64(flood), 30+5*took.Seconds())
	if t.Failed() {
		return
	}
	t.Logf("a process logged:\n%s", s.crew.lives[0].Tail())
}

func acceptAway(t *testing.T, tab *table) {
	const away = 20 * time.Second
	trouble(t, tab, away, []redistest.Option{redistest.AOF()}, func(s *testbed) {
		s.server.Stop()
		time.Sleep(away) // the fault lasts so long
		s.server.StartAgain()
	})
}

func acceptFull(t *testing.T, tab *table) {
	const full = 10 * time.Second
	trouble(t, tab, full, []redistest.Option{redistest.Arg("maxmemory", "48mb"), redistest.Arg("maxmemory-policy", "noeviction")}, func(s *testbed) {
		end := time.Now().Add(full)
		for size, n := 1<<20, 0; time.Now().Before(end); n++ {
			// what the workers free by ending tasks is filled again
			if err := s.rdb.Set(s.Context(), fmt.Sprintf("junk:%d", n), make([]byte, size), 0).Err(); err != nil {
				size = max(16, size/2)
				time.Sleep(time.Millisecond)
			}
		}
		before := s.gateway.since(end.Add(-full / 2))
		keys, err := s.rdb.Keys(s.Context(), "junk:*").Result()
		if err != nil {
			s.Fatal(err)
		}
		for len(keys) > 0 {
			some := keys[:min(1000, len(keys))]
			if err := s.rdb.Del(s.Context(), some...).Err(); err != nil {
				s.Fatal(err)
			}
			keys = keys[len(some):]
		}
		tab.note("sent in the last 5 s while it was full", "%d", before)
	})
}

func acceptFlush(t *testing.T, tab *table) {
	const flushes = 20
	trouble(t, tab, 2*time.Second, nil, func(s *testbed) {
		for range flushes {
			if err := s.rdb.ScriptFlush(s.Context()).Err(); err != nil {
				s.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond) // so that each finds scripts to flush
		}
	})
}

// acceptOutage takes Redis away when many handlers are about to return.
func acceptOutage(t *testing.T, tab *table) {
	const (
		tasks  = 20 // with a rule, and as many without
		outage = 6 * time.Second
	)
	s := newTestbed(t, "1/1m", workerSpec{Concurrency: 2 * tasks, Takes: 2 * time.Second}, redistest.AOF())
	s.crew.start(1)
	s.enqueue(tasks, tasks)
	for range tasks {
		if _, err := s.client.Enqueue(t.Context(), queue.NewTask(typeOther, nil)); err != nil {
			t.Fatal(err)
		}
	}
	s.eventually(20*time.Second, "every handler runs", func() bool {
		q, ok := s.queueInfo()
		return ok && q.Active == 2*tasks && s.gateway.Answered() == tasks
	})
	s.server.Stop()
	stopped := time.Now()
	s.eventually(outage, "every handler returned while Redis was away", func() bool {
		recs := s.crew.records()
		return len(ofKind(recs, kindDone)) == tasks && len(ofKind(recs, kindOther)) == tasks
	})
	time.Sleep(time.Until(stopped.Add(outage)))
	s.server.StartAgain()
	back := time.Now()
	s.settled(3*time.Minute, 0) // a task that asynq forgot to end would run again after 60 to 120 s
	tab.note("asynq has ended all tasks after", "%v", time.Since(back).Round(10*time.Millisecond))
	s.crew.end()

	recs := s.crew.records()
	tab.none(t, "messages sent again", s.gateway.Repeated())
	tab.most(t, "other tasks run", float64(len(ofKind(recs, kindOther))), tasks)
	tab.note("redeliveries that were not run", "%d", sum(recs).NotRunAgain)
}

// acceptIdle measures the processor time that Redis spends on an idle pool.
func acceptIdle(t *testing.T, tab *table) {
	const span = 10 * time.Second
	measure := func(servers int) float64 {
		server := redistest.Start(t)
		rdb := server.Client(t)
		if servers > 0 {
			defer idlePool(t, rdb, servers, 1).Shutdown()
			time.Sleep(time.Second) // its start is not idling
		}
		before := server.CPU()
		time.Sleep(span)
		return 100 * (server.CPU() - before).Seconds() / span.Seconds()
	}
	tab.note("a Redis that nobody uses, % of a core", "%.2f", measure(0))
	for _, servers := range []int{1, 4} {
		tab.most(t, fmt.Sprintf("with a pool of %d servers, %% of a core", servers), measure(servers), 1)
	}
}

// table collects the figures of the acceptance tests.
type table struct {
	rows []row
}

type row struct {
	name, figure, bound, verdict string
}

// want adds a criterion. One that does not hold fails the test.
func (tab *table) want(t *testing.T, ok bool, name, figure, bound string) {
	t.Helper()
	verdict := "ok"
	if !ok {
		verdict = "FAILS"
		t.Errorf("%s: %s, want %s", name, figure, bound)
	}
	tab.rows = append(tab.rows, row{name, figure, bound, verdict})
}

// none adds a criterion that is met when there are no faults.
func (tab *table) none(t *testing.T, name string, faults []string) {
	t.Helper()
	if len(faults) > 0 {
		t.Logf("%s: %s", name, few(faults))
	}
	tab.want(t, len(faults) == 0, name, fmt.Sprint(len(faults)), "0")
}

// faults adds what no test may see.
func (tab *table) faults(t *testing.T, s *testbed) {
	t.Helper()
	for what, faults := range s.faults() {
		tab.none(t, what, faults)
	}
}

// most and least add a criterion on a number.
func (tab *table) most(t *testing.T, name string, figure, bound float64) {
	t.Helper()
	tab.want(t, figure <= bound, name, number(figure), "≤ "+number(bound))
}

func (tab *table) least(t *testing.T, name string, figure, bound float64) {
	t.Helper()
	tab.want(t, figure >= bound, name, number(figure), "≥ "+number(bound))
}

// within adds a criterion on a duration.
func (tab *table) within(t *testing.T, name string, figure, bound time.Duration) {
	t.Helper()
	tab.want(t, figure <= bound, name, figure.Round(10*time.Microsecond).String(), "≤ "+bound.String())
}

// note adds a figure that has no bound.
func (tab *table) note(name, format string, a ...any) {
	tab.rows = append(tab.rows, row{name: name, figure: fmt.Sprintf(format, a...)})
}

// head begins a group of rows.
func (tab *table) head(name string) { tab.rows = append(tab.rows, row{name: "", figure: name}) }

func (tab *table) print(w io.Writer) {
	out := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(out)
	for _, r := range tab.rows {
		if r.name == "" {
			fmt.Fprintf(out, "\n%s\n", r.figure)
			continue
		}
		fmt.Fprintf(out, "  %s\t%s\t%s\t%s\n", r.name, r.figure, r.bound, r.verdict)
	}
	out.Flush()
}

func number(f float64) string {
	switch {
	case f == float64(int64(f)):
		return fmt.Sprintf("%.0f", f)
	case f < 10:
		return fmt.Sprintf("%.3f", f)
	}
	return fmt.Sprintf("%.1f", f)
}

// machine watches how long a goroutine that sleeps a millisecond really sleeps.
// What it sees happens to worker processes and to Redis too: figures of
// lateness and shares mean little when others use the machine.
type machine struct {
	stop, over chan struct{}
	stalls     int
	sum, most  time.Duration
}

// stallLeast is what counts as standing still.
const stallLeast = 10 * time.Millisecond

func watchMachine() *machine {
	m := &machine{stop: make(chan struct{}), over: make(chan struct{})}
	go func() {
		defer close(m.over)
		for {
			select {
			case <-m.stop:
				return
			default:
			}
			before := time.Now()
			time.Sleep(time.Millisecond)
			if stall := time.Since(before) - time.Millisecond; stall >= stallLeast {
				m.stalls++
				m.sum += stall
				m.most = max(m.most, stall)
			}
		}
	}()
	return m
}

// end stops watching and says what was seen.
func (m *machine) end() string {
	close(m.stop)
	<-m.over
	return fmt.Sprintf("%d times, %v in all, at most %v", m.stalls, m.sum.Round(time.Millisecond), m.most.Round(time.Millisecond))
}
