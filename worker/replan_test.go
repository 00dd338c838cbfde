package worker_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// backlog enqueues n tasks to the phone +1, and answers where each stands in the
// line when all are deferred.
func (r *rig) backlog(lim *throttle.Limiter, n int) (rank map[string]int) {
	r.Helper()
	for i := range n {
		r.enqueue("sms", fmt.Sprintf("s%03d", i), to("+1"), asynq.MaxRetry(0))
	}
	r.eventually("all deferred", func() bool { return r.queueInfo().Retry == n })
	s, err := lim.Peek(r.Context(), "+1", throttle.PeekMax)
	if err != nil || len(s.Booked) != n {
		r.Fatalf("Peek = %d in the line, %v, want %d", len(s.Booked), err, n)
	}
	rank = make(map[string]int)
	for i, b := range s.Booked {
		_, id, _ := worker.TaskOf(b.Job)
		rank[id] = i
	}
	return rank
}

func smsLimit(limit throttle.Limit) queue.Policy {
	return queue.Policy{Type: "sms", Rules: []queue.Rule{{Name: "sms", Limit: limit, Key: queue.MustJSONKey("$.to")}}}
}

// set changes the limit, as an operator does in a process of its own.
func (r *rig) set(limit throttle.Limit) (at time.Time) {
	r.Helper()
	if _, err := r.limiter("sms", limit).SetLimit(r.Context(), limit, throttle.SetLimitOptions{}); err != nil {
		r.Fatal(err)
	}
	return r.rdb.Time(r.Context()).Val()
}

// wantOrder checks that tasks were granted in the order of their line, but for
// neighbours who had their turn within the same moment: a grant may lie up to
// InlineWait ahead. The workers of a pool ask for neighbours at once, and a change of the
// limit may come between: then who asked before it goes before its neighbour. And a task
// that came more than 100 ms after its instant, as on a busy machine, lets others pass. When
// it was promised another instant then, its grant does not show that it was late: so one
// task in 40 may go behind its turn, and each that was deferred again.
func wantOrder(t *testing.T, seen *runs, rank map[string]int, changed time.Time, again int) {
	t.Helper()
	const moment, workers, grace = 250 * ms, 4, 100 * ms
	all := seen.all()
	slices.SortFunc(all, func(a, b run) int { return rank[a.id] - rank[b.id] })
	var latest run
	var passed []string
	late := map[string]bool{}
	for _, n := range all {
		parted := n.grant.At.Before(changed.Add(moment)) && rank[n.id]-rank[latest.id] < workers
		if by := latest.grant.At.Sub(n.grant.At); by > moment && !parted {
			passed = append(passed, fmt.Sprintf("%s, number %d in the line, was granted %v before %s, number %d", n.id, rank[n.id], by, latest.id, rank[latest.id]))
			late[latest.id] = true
		}
		if n.grant.At.After(latest.grant.At) && n.grant.At.Sub(n.grant.Promised) <= grace {
			latest = n
		}
	}
	if len(late) > max(len(all)/40, again) {
		t.Errorf("%d of %d tasks were passed: %s", len(late), len(all), strings.Join(passed, "; "))
	}
}

// 240 tasks, more than a portion, wait for hours; the limit is raised, and all
// run within seconds: in virtual time, and on a real server while the machine has time for it.
func TestRaisedLimitWakesTheBacklog(t *testing.T) {
	t.Parallel()
	newRig(t).raisedLimit(5*time.Second, func(s worker.Stats) bool { return s.Stale > 0 || s.LatenessMax > 100*ms })
}

func TestVirtualRaisedLimitWakesTheBacklog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		rigOn(t, nil, rdb).raisedLimit(4*time.Second, func(worker.Stats) bool { return false })
	})
}

// raisedLimit has the backlog run within a time, unless the machine is slow.
func (r *rig) raisedLimit(within time.Duration, slow func(worker.Stats) bool) {
	r.Helper()
	t, seen := r.T, &runs{}
	code := throttle.Sliding(1, time.Hour)
	lim := r.limiter("sms", code)
	r.take(lim, "+1")
	cfg := policies(smsLimit(code))
	p, _ := r.start(seen.handler(), cfg)
	other, _ := r.start(seen.handler(), cfg)
	const n = 240
	rank := r.backlog(lim, n)
	changed := r.set(throttle.Sliding(100, time.Second))
	seen.ran(t, n)
	var last time.Time
	for _, run := range seen.all() {
		if run.grant.At.After(last) {
			last = run.grant.At
		}
	}
	a, b := p.Stats(), other.Stats()
	if took := last.Sub(changed); took > within && !slow(a) && !slow(b) {
		t.Errorf("the last was granted %v after the change, want about 3s", took)
	}
	wantOrder(t, seen, rank, changed, int(a.Deferred+b.Deferred)-n)
	if per := float64(a.Admissions+b.Admissions) / n; per > 3 {
		t.Errorf("%.2f admissions per task, want 3 at most", per)
	}
	t.Logf("%v after the change; stats %+v and %+v", last.Sub(changed), a, b)
}

// The limit is lowered while a backlog waits.
func TestLoweredLimitDelaysTheBacklog(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	const window = 500 * ms
	code := throttle.Sliding(10, window)
	lim := r.limiter("sms", code)
	// they wait under a limit that is closed, so that the line is complete
	if _, err := lim.SetLimit(t.Context(), throttle.Sliding(1, time.Hour), throttle.SetLimitOptions{}); err != nil {
		t.Fatal(err)
	}
	r.take(lim, "+1")
	p, _ := r.start(seen.handler(), policies(smsLimit(code)))
	const n = 30
	rank := r.backlog(lim, n)
	before := p.Stats().Admissions
	r.set(code)
	seen.ran(t, 11) // the second window has begun
	changed := r.set(throttle.Sliding(1, window))
	seen.ran(t, n)
	all := seen.all()
	slices.SortFunc(all, func(a, b run) int { return a.grant.At.Compare(b.grant.At) })
	after := 0
	for i, run := range all {
		if i == 0 || run.grant.At.Sub(changed) < time.Second {
			continue
		}
		after++
		if gap := run.grant.At.Sub(all[i-1].grant.At); gap < window {
			t.Errorf("%v after the change %s is granted %v after the one before it, want %v", run.grant.At.Sub(changed), run.id, gap, window)
		}
	}
	if after == 0 {
		t.Error("nothing was left a second after the change")
	}
	wantOrder(t, seen, rank, changed, int(p.Stats().Deferred)-n)
	if per := float64(p.Stats().Admissions-before) / n; per > 3 {
		t.Errorf("%.2f admissions per task after the changes, want 3 at most", per)
	}
	t.Logf("%d granted from a second after the change on; %+v", after, p.Stats())
}

// The pool that plans the queue anew dies: another goes on.
func TestAnotherPoolPlansWhenOneDied(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	code := throttle.Sliding(1, time.Hour)
	lim := r.limiter("sms", code)
	r.take(lim, "+1")
	r.start(seen.handler(), policies(smsLimit(code)))
	r.backlog(lim, 20)
	const claim = "hw:{default}:replan"
	if err := r.rdb.Set(t.Context(), claim, "somebody who is dead", 3*time.Second).Err(); err != nil {
		t.Fatal(err)
	}
	r.set(throttle.Sliding(100, time.Second))
	never(t, 2*time.Second, "a run while another plans", func() bool { return len(seen.all()) > 0 })
	seen.ran(t, 20)
	r.eventually("the claim is given back", func() bool { return r.rdb.Exists(t.Context(), claim).Val() == 0 })
	if got := r.rdb.HGet(t.Context(), "hw:{default}:planned", "sms").Val(); len(got) < 16 {
		t.Errorf("planned is %q, want the version of the change", got)
	}
}

// The pool that plans the queue anew is shut down in the midst of it: another
// need not wait for the end of its claim.
func TestPoolThatEndsGivesItsClaimBack(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	code := throttle.Sliding(1, time.Hour)
	lim := r.limiter("sms", code)
	r.take(lim, "+1")
	_, stop := r.start(seen.handler(), policies(smsLimit(code)))
	r.backlog(lim, 5)
	r.set(throttle.Sliding(1, 2*time.Hour)) // it claims for the second look too
	const claim = "hw:{default}:replan"
	r.eventually("a claim", func() bool { return r.rdb.Exists(t.Context(), claim).Val() == 1 })
	stop()
	if ttl := r.rdb.PTTL(t.Context(), claim).Val(); ttl > 0 {
		t.Errorf("its claim lives for %v", ttl)
	}
	r.set(throttle.Sliding(100, time.Second))
	r.start(seen.handler(), policies(smsLimit(code)))
	seen.ran(t, 5)
}

// The limit is raised while the master of a task's keys is away. The task would wait for an hour if nobody asked again.
func TestRaisedLimitWakesATaskWhoseMasterWasAway(t *testing.T) {
	t.Parallel()
	redistest.NeedFunctions(t)
	r, seen := newRig(t), &runs{}
	hook := &scriptAway{script: "refresh"}
	r.rdb.AddHook(hook)
	code := throttle.Sliding(1, time.Hour)
	lim := r.limiter("sms", code)
	r.take(lim, "+1")
	r.start(seen.handler(), policies(smsLimit(code)))
	r.backlog(lim, 1)
	hook.away.Store(true)
	r.set(throttle.Sliding(100, time.Second))
	r.eventually("both looks at the queue, and one more", func() bool { return hook.asked.Load() > 2 })
	hook.away.Store(false)
	seen.ran(t, 1)
	if n := r.logs.FilterMessage("a limit has changed: what waits is planned anew").Len(); n != 1 {
		t.Errorf("the change is told %d times, want once", n)
	}
}

// A limit that was changed, or taken away, while no pool ran is planned by the
// first that starts.
func TestChangeWhileNoPoolRan(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	code := throttle.Sliding(100, time.Second)
	lim := r.limiter("sms", code)
	if _, err := lim.SetLimit(t.Context(), throttle.Sliding(1, time.Hour), throttle.SetLimitOptions{}); err != nil {
		t.Fatal(err)
	}
	r.take(lim, "+1")
	_, stop := r.start(seen.handler(), policies(smsLimit(code)))
	r.backlog(lim, 5)
	stop()
	if err := lim.UnsetLimit(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.start(seen.handler(), policies(smsLimit(code)))
	seen.ran(t, 5)
}

// A task that costs more than a lowered limit holds fails for good, at once.
func TestTaskAboveALoweredLimitFails(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	code := throttle.Sliding(3, time.Hour)
	lim := r.limiter("sms", code)
	for range 3 {
		r.take(lim, "+1")
	}
	p := smsLimit(code)
	p.Rules[0].Cost = func(*asynq.Task) (int, error) { return 3, nil }
	r.start(seen.handler(), policies(p))
	r.enqueue("sms", "a", to("+1"), asynq.MaxRetry(5))
	r.eventually("deferred", func() bool { return r.is("a", asynq.TaskStateRetry) })
	r.set(throttle.Sliding(2, time.Hour))
	r.eventually("archived", func() bool { return r.is("a", asynq.TaskStateArchived) })
	if got := r.peek(lim, "+1"); got.Waiting != 0 {
		t.Errorf("%d wait in the line, want none", got.Waiting)
	}
	if n := len(seen.all()); n > 0 {
		t.Errorf("%d runs, want none", n)
	}
}

// A pool asks for the stored limits while something is deferred, and only then.
func TestVirtualIdlePoolDoesNotAskForLimits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clients, _ := mini(t, 1)
		asked := &countedGets{key: "hw:limit:sms"}
		clients[0].AddHook(asked)
		r, seen := rigOn(t, nil, clients[0]), &runs{}
		r.start(seen.handler(), policies(smsLimit(throttle.Sliding(1, 30*time.Second))))
		in := func(d time.Duration) int64 {
			before := asked.n.Load()
			time.Sleep(d) // of the bubble
			return asked.n.Load() - before
		}
		if n := in(10 * time.Second); n > 0 {
			t.Errorf("without tasks it asks %d times in 10s, want never", n)
		}
		r.enqueue("sms", "a", to("+1"))
		r.enqueue("sms", "b", to("+1"))
		time.Sleep(time.Second)
		if n := in(10 * time.Second); n < 10 || n > 12 {
			t.Errorf("while one waits it asks %d times in 10s, want about 11", n)
		}
		time.Sleep(25 * time.Second)
		if n := len(seen.all()); n != 2 {
			t.Fatalf("%d ran, want 2", n)
		}
		if n := in(10 * time.Second); n > 0 {
			t.Errorf("afterwards it asks %d times in 10s, want never", n)
		}
	})
}

// countedGets counts the reads of one key.
type countedGets struct {
	key string
	n   atomic.Int64
}

func (c *countedGets) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *countedGets) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.count(cmd)
		return next(ctx, cmd)
	}
}

func (c *countedGets) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			c.count(cmd)
		}
		return next(ctx, cmds)
	}
}

func (c *countedGets) count(cmd redis.Cmder) {
	if args := cmd.Args(); len(args) == 2 && args[0] == "get" && args[1] == c.key {
		c.n.Add(1)
	}
}

// While nobody can read the stored limit tasks wait, and none fails.
func TestUnreadableStoredLimitLetsTasksWait(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	code := throttle.Sliding(10, time.Second)
	if err := r.rdb.Set(t.Context(), "hw:limit:sms", "99 quantum 1/1s", 0).Err(); err != nil {
		t.Fatal(err)
	}
	r.start(seen.handler(), policies(smsLimit(code)))
	r.enqueue("sms", "a", to("+1"), asynq.MaxRetry(0))
	r.eventually("deferred", func() bool { return r.is("a", asynq.TaskStateRetry) })
	never(t, 1500*ms, "a run by a limit that nobody knows", func() bool { return len(seen.all()) > 0 })
	r.set(code)
	seen.ran(t, 1)
	r.eventually("an empty queue", func() bool { return r.queueInfo().Size == 0 })
	r.wantQueue(1, 0, 0)
}
