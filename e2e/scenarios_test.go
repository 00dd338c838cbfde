package e2e

import (
	"iter"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"
)

// TestOnePhone: a hundred messages to one phone, two processes.
func TestOnePhone(t *testing.T) {
	t.Parallel()
	s := newTestbed(t, "1/100ms", workerSpec{})
	s.crew.start(2)
	s.enqueuePaced(100, 5*time.Millisecond)
	order := s.watchLine(phone(0), 10*time.Second)
	s.allSent(30 * time.Second)

	s.judge()
	all := s.crew.records()
	grants := grantsOf(all, s.phones)
	if len(grants) != s.sent || len(s.gateway.Arrivals()) != s.sent {
		t.Errorf("%d grants and %d arrivals of %d messages, want one of each", len(grants), len(s.gateway.Arrivals()), s.sent)
	}
	excused, f := overtaken(all, order, grants)
	if len(f) > 0 {
		t.Errorf("overtaken: %s", few(f))
	}
	// Eight workers ask at once, and one of them may stand still for a moment. The others take a
	// message each 5 ms: 12 in 60 ms.
	if most, id := displacement(grants); most > 8+12 {
		t.Errorf("message %s was displaced by %d from the order of enqueueing, want 20 at most", id, most)
	}
	stats := sum(all)
	// A busy machine stands still between a grant and its use, which costs one admission more.
	if per := float64(stats.Admissions-stats.Stale) / float64(s.sent); per > 2.05 {
		t.Errorf("%.3f admissions per message, want 2.05 at most; %+v", per, stats)
	}
	late := lateness(all)
	t.Logf("%d in the line, %d late heads, share %.4f, late p50 %v p99 %v, %+v",
		len(order), excused, share(grants, s.limit.Window()), quantile(late, 0.5), quantile(late, 0.99), stats)
}

// TestFiftyPhones: the exact scenario at 1/2s, on a real server: fifty phones
// with one to five messages each, two pools. At 1/60s it runs in virtual time,
// in package worker.
func TestFiftyPhones(t *testing.T) {
	t.Parallel()
	const phones, rounds = 50, 5
	s := newTestbed(t, "1/2s", workerSpec{})
	s.crew.start(2)
	for round := range rounds {
		var messages []message
		for i := range phones {
			if i%rounds >= round {
				messages = append(messages, s.message(phone(i)))
			}
		}
		if err := s.send(messages); err != nil {
			t.Fatal(err)
		}
		s.eventually(10*time.Second, "all have been granted or have a place", func() bool {
			q, ok := s.queueInfo()
			return ok && q.Pending+q.Active == 0
		})
	}
	s.allSent(30 * time.Second)

	s.judge()
	all := s.crew.records()
	last := make(map[string]grant)
	var most time.Duration
	for _, g := range grantsOf(all, s.phones) {
		if before, ok := last[g.to]; ok {
			if g.id < before.id {
				t.Errorf("%s was granted before %s, want the order of enqueueing", before.id, g.id)
			}
			most = max(most, time.Duration(g.at-before.at)*time.Microsecond)
		}
		last[g.to] = g
	}
	if most >= 2*s.limit.Window() {
		t.Errorf("the largest gap between two messages to a phone is %v, want less than two windows", most)
	}
	stats := sum(all)
	if per := float64(stats.Admissions) / float64(s.sent); per > 2.05 {
		t.Errorf("%.3f admissions per message, want 2.05 at most; %+v", per, stats)
	}
	t.Logf("%d messages, largest gap %v, %+v", s.sent, most, stats)
}

// TestCrash: one of three processes dies.
func TestCrash(t *testing.T) {
	t.Parallel()
	s := newTestbed(t, "1/500ms", workerSpec{Takes: 20 * time.Millisecond})
	started := time.Now()
	lives := s.crew.start(3)
	s.enqueue(300, 30)
	s.eventually(20*time.Second, "it is under way", func() bool {
		return s.gateway.Answered() > 60 && time.Since(started) > 2*time.Second
	})
	lives[1].kill()
	s.crew.launch()
	// asynq finds what the dead one was running after 60 to 120 s
	s.settled(30*time.Second, s.crew.spec.Concurrency)
	s.crew.end()

	s.judge()
	missing := s.missing()
	if len(missing) > s.crew.spec.Concurrency {
		t.Errorf("%d messages wait for asynq's recovery, want no more than the %d workers of the killed process: %q",
			len(missing), s.crew.spec.Concurrency, missing)
	}
	if again := s.gateway.Repeated(); len(again) > 0 {
		t.Errorf("sent twice: %q, want none: nothing was recovered yet", again)
	}
	t.Logf("%d messages were running in the killed process", len(missing))
}

// TestRedisRestart: Redis goes away and comes back with its data.
func TestRedisRestart(t *testing.T) {
	t.Parallel()
	s := newTestbed(t, "1/500ms", workerSpec{}, redistest.AOF())
	s.crew.start(2)
	s.enqueue(200, 20)
	s.eventually(20*time.Second, "it is under way", func() bool { return s.gateway.Answered() > 60 })
	s.server.Restart()
	// A fetch whose answer was lost in the restart is a task that asynq finds
	// after 60 to 120 s: one for each server's only fetch loop.
	fetches := 2
	s.settled(30*time.Second, fetches)
	s.crew.end()

	s.judge()
	if missing := s.missing(); len(missing) > fetches {
		t.Errorf("%d messages wait for asynq's recovery, want %d lost fetches at most: %q", len(missing), fetches, missing)
	}
	if again := s.gateway.Repeated(); len(again) > 0 {
		t.Errorf("sent twice: %q", again)
	}
}

// TestFrozen: a process stands still for a while.
func TestFrozen(t *testing.T) {
	t.Parallel()
	during, permitted := frozen(t, 3*time.Second)
	t.Logf("%d of %d permitted messages arrived while one process stood still", during, permitted)
}

// frozen stops one of two processes for d while messages flow, and returns how
// many arrived meanwhile, and how many the limit permitted. Then it stops it
// for moments, again and again, so that some task is caught in between its
// grant and its handler: that one must not go on as if no time had passed.
func frozen(t *testing.T, d time.Duration) (during, permitted int) {
	t.Helper()
	const (
		phones  = 8
		moments = 10
		moment  = 150 * time.Millisecond
	)
	s := newTestbed(t, "1/100ms", workerSpec{Concurrency: 8})
	lives := s.crew.start(2)
	perPhone := int((d + 2*moments*moment + 2*time.Second) / s.limit.Window())
	// one phone after the other over a window, so that at any moment some task
	// is about to start
	for _, first := range s.write(phones, phones) {
		if err := s.send([]message{first}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(s.limit.Window() / phones)
	}
	// On a busy machine that takes so long that little would be left to be sent during the fault.
	rest, enqueued := s.write(phones*(perPhone-1), phones), make(chan error, 1)
	go func() { enqueued <- s.send(rest) }()
	s.eventually(20*time.Second, "it is under way", func() bool { return s.gateway.Answered() > 10*phones })

	lives[0].freeze()
	began := time.Now()
	time.Sleep(d) // the fault lasts so long
	during, permitted = s.gateway.since(began), phones*int(d/s.limit.Window())
	// A busy machine takes longer. Whoever waits for the process that stands still never gets there.
	s.eventually(20*time.Second, "half of what is permitted arrives while one process stands still", func() bool {
		return s.gateway.since(began) >= permitted/2
	})
	lives[0].resume()
	for range moments {
		time.Sleep(moment) // work goes on
		lives[0].freeze()
		time.Sleep(moment)
		lives[0].resume()
	}
	if err := <-enqueued; err != nil {
		t.Fatal(err)
	}
	s.allSent(d + 30*time.Second)

	s.judge()
	if again := s.gateway.Repeated(); len(again) > 0 {
		t.Errorf("sent twice: %q", again)
	}
	return during, permitted
}

// judge looks for what no test may see: a breach, by the instants of the grants
// or by the gateway's log, and a handler that began early.
func (s *testbed) judge() {
	s.Helper()
	for what, faults := range s.faults() {
		if len(faults) > 0 {
			s.Errorf("%s: %s", what, few(faults))
		}
	}
}

// faults are what judge looks for.
func (s *testbed) faults() iter.Seq2[string, []string] {
	all, arrivals, W := s.crew.records(), s.gateway.Arrivals(), s.limit.Window()
	return func(yield func(string, []string) bool) {
		_ = yield("breaches by granted instants", breaches(grantsOf(all, s.phones), s.limit.Permits(), W)) &&
			yield("breaches by the gateway's log", tooClose(arrivals, W, heldUp(all, arrivals, W))) &&
			yield("handlers that began early", early(all))
	}
}
