package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

const (
	slots     = 10
	slotLease = 2 * time.Second
	slotJob   = 50 * time.Millisecond
)

// slotsRun is what came out of jobs that share slots.
type slotsRun struct {
	most            int             // at the gateway at once
	busy, atGateway float64         // of all slots while nobody was killed, by handlers and by the gateway's work
	back            []time.Duration // after each kill, until the last slot of the dead was used again
	idle            time.Duration   // the longest time, while nobody was killed, in which not all slots were in use at once
	sent, wanted    int
}

// playSlots lets three processes work on a backlog for so long, and then kills one
// after the other.
func playSlots(t *testing.T, peace time.Duration, kills int) slotsRun {
	t.Helper()
	const between = 2 * slotLease
	s := newPolicyTestbed(t, []string{fmt.Sprintf("slots: {limit: concurrent %d lease %v, key: =acme}", slots, slotLease)},
		workerSpec{Concurrency: slots})
	s.gateway.SetTakes(slotJob)
	all := peace + time.Second + time.Duration(kills)*between + time.Second
	s.enqueue(int(slots*all/slotJob), 100)
	alive := s.crew.start(3)
	s.eventually(10*time.Second, "it is under way", func() bool { return s.gateway.Answered() > 2*slots })
	from := time.Now()
	time.Sleep(peace) // the share is what is measured
	until := time.Now()
	var killed []time.Time
	var ends [][]int64
	for i := range kills {
		var work map[int]int
		s.eventually(10*time.Second, "somebody is at work", func() bool { // a busy machine has moments of none
			work = atWork(s.gateway.Arrivals(), time.Now())
			return len(work) > 0
		})
		victim := 0 // who has the most slots
		for n := range alive {
			if work[alive[n].number] > work[alive[victim].number] {
				victim = n
			}
		}
		alive[victim].kill()
		killed = append(killed, time.Now())
		alive[victim] = s.crew.launch()
		time.Sleep(time.Until(killed[i].Add(slotLease * 3 / 4))) // who lives has new leases by then
		ends = append(ends, s.leasesUntil(killed[i].Add(slotLease)))
		time.Sleep(time.Until(killed[i].Add(between))) // its leases end
	}
	s.eventually(10*time.Second, "work goes on", func() bool { return s.gateway.since(until) > 2*slots })
	s.settled(2*time.Minute, kills*slots)
	s.crew.end()

	arrivals := s.gateway.Arrivals()
	for i, at := range killed {
		t.Logf("at kill %d the processes had %v; leases of the dead: %d", i+1, atWork(arrivals, at.Add(-30*time.Millisecond)), len(ends[i]))
		if len(ends[i]) == 0 {
			t.Errorf("the process of kill %d died without a slot", i+1)
		}
	}
	t.Logf("%+v", sum(s.crew.records()))
	return slotsRun{
		most: mostAtOnce(crowds(arrivals)), busy: share10(handled(s.crew.records()), from, until), atGateway: share10(arrivals, from, until),
		back: usedAgain(arrivals, killed, ends), idle: notAllInUse(arrivals, from, until), sent: s.gateway.Answered() + len(s.missing()), wanted: s.sent,
	}
}

// handled are the times that messages spent in handlers that ended.
func handled(all []record) []e2e.Arrival {
	type try struct {
		task string
		life int
	}
	began := make(map[try]int64)
	var out []e2e.Arrival
	for _, r := range all {
		switch r.Kind {
		case kindStart:
			began[try{r.Task, r.Life}] = r.Wrote
		case kindDone:
			out = append(out, e2e.Arrival{ArrivedUs: began[try{r.Task, r.Life}], LeftUs: r.Wrote})
		}
	}
	return out
}

// share10 is how much of all slots was in use between two instants.
func share10(work []e2e.Arrival, from, until time.Time) float64 {
	var sum int64
	for _, a := range work {
		sum += max(0, min(a.LeftUs, until.UnixMicro())-max(a.ArrivedUs, from.UnixMicro()))
	}
	return float64(sum) / float64(slots*until.Sub(from).Microseconds())
}

// atWork is how many messages of each process the gateway worked on.
func atWork(arrivals []e2e.Arrival, at time.Time) map[int]int {
	n := make(map[int]int)
	for _, a := range arrivals {
		if a.ArrivedUs <= at.UnixMicro() && (a.LeftUs == 0 || a.LeftUs > at.UnixMicro()) {
			n[a.Sender]++
		}
	}
	return n
}

// leasesUntil are the ends of the leases in Redis that end by then.
func (s *testbed) leasesUntil(end time.Time) []int64 {
	s.Helper()
	all, err := s.rdb.ZRangeByScoreWithScores(s.Context(), "hw:{acme}:slots:tokens",
		&redis.ZRangeBy{Min: "0", Max: fmt.Sprint(end.UnixMicro())}).Result()
	if err != nil {
		s.Fatal(err)
	}
	var ends []int64
	for _, z := range all {
		ends = append(ends, int64(z.Score))
	}
	return ends
}

// usedAgain is how long after each kill the last slot of the dead was granted to
// another. Whose slot a grant has is known for sure when its instant is that at which
// a lease of the dead ended; a slot that nobody got so was used again when all were.
func usedAgain(arrivals []e2e.Arrival, killed []time.Time, ends [][]int64) []time.Duration {
	at := make(map[int64]int) // how many were granted at an instant
	held := granted(arrivals)
	for _, a := range held {
		at[a.ArrivedUs]++
	}
	steps := crowds(held)
	var out []time.Duration
	for k, kill := range killed {
		last := kill.UnixMicro()
		for _, end := range ends[k] {
			if at[end] > 0 {
				at[end]--
				last = max(last, end)
			} else if i := slices.IndexFunc(steps, func(c crowd) bool { return c.at >= end && c.n >= slots }); i >= 0 {
				last = max(last, steps[i].at)
			} else {
				last = kill.Add(time.Hour).UnixMicro()
			}
		}
		out = append(out, time.Duration(last-kill.UnixMicro())*time.Microsecond)
	}
	return out
}

// notAllInUse is the longest time between two instants in which not all slots were granted at once.
// A busy machine can't keep all of them in use.
func notAllInUse(arrivals []e2e.Arrival, from, until time.Time) time.Duration {
	last, full, longest := from.UnixMicro(), false, int64(0)
	for _, c := range crowds(granted(arrivals)) {
		at := max(from.UnixMicro(), min(c.at, until.UnixMicro()))
		if !full {
			longest = max(longest, at-last)
		}
		if full || c.n >= slots {
			last = at
		}
		full = c.n >= slots
	}
	return time.Duration(max(longest, until.UnixMicro()-last)) * time.Microsecond
}

// granted are the arrivals from their grants on.
func granted(arrivals []e2e.Arrival) []e2e.Arrival {
	held := slices.Clone(arrivals)
	for i := range held {
		held[i].ArrivedUs = held[i].GrantedUs
	}
	return held
}

// TestSlots: ten at once over three processes, and one of them dies.
func TestSlots(t *testing.T) {
	t.Parallel()
	r := playSlots(t, 2*time.Second, 1)
	if r.most > slots {
		t.Errorf("%d at once, want %d at most", r.most, slots)
	}
	// The bound of `make accept` is the lease alone, on a machine that has time. Here it is seen that a slot
	// is back when all are in use at once, which they may not have been for a while before the kill either.
	for _, d := range r.back {
		if d > slotLease+500*time.Millisecond+r.idle {
			t.Errorf("its slots were used again %v after a process was killed, want %v; before, not all were in use for up to %v", d, slotLease, r.idle)
		}
	}
	if r.sent < r.wanted {
		t.Errorf("%d messages were sent or will be recovered, want %d", r.sent, r.wanted)
	}
	t.Logf("%.3f of the slots busy by handlers, %.3f at the gateway, back after %v; not all in use for %v before", r.busy, r.atGateway, r.back, r.idle)
}

// TestFrozenHolder: a process stands still for longer than its leases. Others go in
// their place; its handlers hear that they have lost them.
func TestFrozenHolder(t *testing.T) {
	t.Parallel()
	const lease = 2 * time.Second // so long, because a busy machine may keep process 2 from renewing for a second
	s := newPolicyTestbed(t, []string{fmt.Sprintf("slots: {limit: concurrent 2 lease %v, key: =acme}", lease)},
		workerSpec{Concurrency: 2, Takes: 8 * time.Second})
	first := s.crew.launch()
	s.enqueue(2, 2)
	s.eventually(10*time.Second, "both slots are held", func() bool { return s.gateway.Answered() == 2 })
	s.crew.launch()
	s.enqueue(2, 2)
	s.eventually(5*time.Second, "two more wait", func() bool { q, ok := s.queueInfo(); return ok && q.Retry == 2 })
	first.freeze()
	frozen := time.Now()
	// both: the leases end at instants of their own, and one that has not may still be renewed
	s.eventually(lease+2*time.Second, "two go in the place of those that stand still", func() bool { return s.gateway.Answered() == 4 })
	took := time.Since(frozen)
	first.resume()
	s.eventually(5*time.Second, "the handlers hear that their leases are lost", func() bool {
		return len(ofKind(s.crew.records(), kindLost)) == 2
	})
	s.crew.end()
	all := s.crew.records()
	if lost := sum(all).LeasesLost; lost != 2 {
		t.Errorf("%d leases lost, want 2", lost)
	}
	for _, r := range ofKind(all, kindLost) {
		if r.Life != first.number {
			t.Errorf("a handler of process %d lost its lease, want those of process %d alone", r.Life, first.number)
		}
	}
	t.Logf("two others went %v after the process was frozen", took)
}

// leasesLeft takes a lease on each of so many keys, releases none, and counts the
// keys in Redis once all have ended.
func leasesLeft(t *testing.T, keys int) (left int64, took time.Duration) {
	t.Helper()
	const lease, callers = 3 * time.Second, 64
	rdb := redistest.Start(t).Client(t)
	l, err := throttle.New(rdb, "slots", throttle.Concurrent(1, lease), throttle.Config{})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var next, granted atomic.Int64
	done := make(chan error, callers)
	for range callers {
		go func() {
			for n := next.Add(1); n <= int64(keys); n = next.Add(1) {
				d, err := l.TryAcquire(t.Context(), phone(int(n)), 1)
				if err != nil {
					done <- err
					return
				}
				if d.Granted {
					granted.Add(1)
				}
			}
			done <- nil
		}()
	}
	for range callers {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if granted.Load() != int64(keys) {
		t.Errorf("%d of %d leases were granted", granted.Load(), keys)
	}
	size := func() int64 {
		n, err := rdb.DBSize(t.Context()).Result()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if now := size(); time.Since(began) < lease && now < int64(keys) {
		t.Errorf("%d keys in Redis hold %d leases", now, keys)
	}
	poll(t.Context(), 30*time.Second, func() bool { return size() == 0 })
	return size(), time.Since(began)
}

// TestLeasesLeaveNothing: leases that nobody releases end by themselves.
func TestLeasesLeaveNothing(t *testing.T) {
	t.Parallel()
	left, took := leasesLeft(t, 2000)
	if left != 0 {
		t.Errorf("%d keys left %v later, want none", left, took)
	}
}

// TestLastHolderDies: the only process dies with all slots. Nobody is left to give one
// back and to tell who is next; they end with their leases all the same.
func TestLastHolderDies(t *testing.T) {
	t.Parallel()
	const lease = time.Second
	s := newPolicyTestbed(t, []string{fmt.Sprintf("slots: {limit: concurrent 2 lease %v, key: =acme}", lease)}, workerSpec{Concurrency: 4})
	s.gateway.SetTakes(200 * time.Millisecond)
	s.enqueue(100, 100)
	first := s.crew.launch()
	s.eventually(10*time.Second, "all others wait", func() bool {
		q, ok := s.queueInfo()
		return ok && q.Pending == 0 && s.gateway.Answered() > 40 // those who are next were promised to come long after
	})
	first.kill()
	killed := time.Now()
	s.crew.launch()
	s.eventually(lease+3*time.Second, "work goes on after the leases of the dead have ended", func() bool {
		return s.gateway.since(killed.Add(lease/2)) > 4
	})
	s.crew.end()
}

// TestSoleHolderDiesAtWork: one process has all slots, at full speed, and dies with them
// and with what it was just told about who is next. Work goes on when its leases end,
// time and again.
func TestSoleHolderDiesAtWork(t *testing.T) {
	t.Parallel()
	const rounds, waiting = 5, 400
	s := newPolicyTestbed(t, []string{fmt.Sprintf("slots: {limit: concurrent %d lease %v, key: =acme}", slots, slotLease)},
		workerSpec{Concurrency: 2 * slots}) // some are left to hear that they have to wait
	s.gateway.SetTakes(slotLease / 2) // so long that a slow machine has deferred the others before all are through
	s.enqueue(8*waiting, 100)
	alive := s.crew.launch()
	s.eventually(40*time.Second, "all others wait, but for those who were woken", func() bool {
		q, ok := s.queueInfo()
		return ok && q.Pending <= slots && q.Retry > 2*waiting
	})
	s.gateway.SetTakes(slotJob)
	for round := range rounds {
		enough := s.gateway.Answered() + slots + rand.IntN(10*slots) // a moment that nobody can foresee
		s.eventually(10*time.Second, "it is at work", func() bool { return s.gateway.Answered() > enough })
		alive.kill()
		killed := time.Now()
		if q, ok := s.queueInfo(); !ok || q.Retry < waiting {
			t.Fatalf("%+v wait, want %d at least", q, waiting)
		}
		ends := killed.Add(slotLease)
		alive = s.crew.launch()
		if now := time.Now(); now.After(ends) {
			ends = now // a machine that is slow to start a process
		}
		s.eventually(time.Until(ends)+3*time.Second, fmt.Sprintf("work goes on after kill %d", round+1), func() bool {
			return s.gateway.since(killed.Add(slotLease/4)) > slots
		})
		t.Logf("work went on %v after kill %d", time.Since(killed), round+1)
	}
	s.crew.end()
}

// TestSlotsBehindAWideRule: three pools work through slots on a Redis that takes some
// milliseconds to answer, also where a rule that never refuses anybody stands before
// the slots.
func TestSlotsBehindAWideRule(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name                 string
		jobs, slots, tenants int
		rules                []string
	}{
		{"slots alone", 400, 20, 1, []string{"slots: {limit: concurrent 20 lease 2s, key: =acme}"}},
		{"one tenant", 400, 20, 1, []string{"tenant: {limit: 100000/24h, key: $.tenant}", "slots: {limit: concurrent 20 lease 2s, key: =acme}"}},
		{"five tenants", 400, 20, 5, []string{"tenant: {limit: 100000/24h, key: $.tenant}", "slots: {limit: concurrent 20 lease 2s, key: =acme}"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const takes = 150 * time.Millisecond
				policies, err := queue.ReadPolicies("night", strings.NewReader(policyFile(typeSMS, tc.rules)))
				if err != nil {
					t.Fatal(err)
				}
				rdb, m := redistest.Mini(t)
				var ran atomic.Int64
				handler := asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
					time.Sleep(takes)
					ran.Add(1)
					return nil
				})
				var pools []*worker.Pool
				for range 3 {
					far := redis.NewClient(redistest.MiniOptions(m))
					t.Cleanup(func() { _ = far.Close() })
					far.AddHook(slowHook{8 * time.Millisecond})
					pools = append(pools, startPool(t, far, handler, worker.Config{Asynq: asynq.Config{Concurrency: 20}, Policies: policies}))
				}
				client, err := queue.NewClient(rdb, queue.ClientConfig{Policies: policies})
				if err != nil {
					t.Fatal(err)
				}
				for i := range tc.jobs {
					body, err := json.Marshal(message{Message: e2e.Message{ID: fmt.Sprint(i), To: phone(i), Text: "."}, Tenant: fmt.Sprint(i % tc.tenants)})
					if err != nil {
						t.Fatal(err)
					}
					if _, err := client.Enqueue(t.Context(), queue.NewTask(typeSMS, body)); err != nil {
						t.Fatal(err)
					}
				}
				began := time.Now()
				for ran.Load() < int64(tc.jobs) && time.Since(began) < 5*time.Minute {
					time.Sleep(100 * time.Millisecond)
				}
				ideal := time.Duration(tc.jobs/tc.slots) * takes
				if took := time.Since(began); took > ideal*3/2 {
					t.Errorf("%d of %d ran within %v, want all within %v", ran.Load(), tc.jobs, took, ideal)
				}
				for _, p := range pools {
					t.Logf("%v, %+v", time.Since(began), p.Stats())
				}
			})
		})
	}
}

// slowHook makes the way to Redis and back take up to so long.
type slowHook struct{ most time.Duration }

func (slowHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h slowHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		time.Sleep(rand.N(h.most))
		return next(ctx, cmds)
	}
}

func (h slowHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		time.Sleep(rand.N(h.most) / 2)
		err := next(ctx, cmd)
		time.Sleep(rand.N(h.most) / 2)
		return err
	}
}
