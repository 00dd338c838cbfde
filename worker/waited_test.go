package worker_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/worker"
)

// Waited once added up what was promised: hours for tasks that waited for seconds. Here
// five tasks wait for 0, 10, 20, 30 and 40 s.
func TestWaitedIsWhatTasksReallyWaited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		r := rigOn(t, nil, rdb)
		ran := &runs{}
		pool, _ := r.start(ran.handler(), policies(phone("sms", 10*time.Second)))
		for _, id := range []string{"a", "b", "c", "d", "e"} {
			r.enqueue("sms", id, to("A"))
		}
		ran.ran(t, 1)
		ruleOf := func() worker.RuleStats {
			all := pool.Stats().Rules
			if len(all) != 1 {
				t.Fatalf("rules %+v, want one", all)
			}
			return all[0]
		}
		r.eventually("the others are deferred", func() bool { return pool.Stats().Deferred == 4 })
		if s := ruleOf(); s.Waited != 0 || s.Waits != 0 {
			t.Errorf("%+v while all wait, want nothing yet", s)
		}
		time.Sleep(time.Minute) // of the bubble
		ran.ran(t, 5)
		if s := ruleOf(); s.Waits != 4 || s.Waited < 99*time.Second || s.Waited > 101*time.Second {
			t.Errorf("%+v, want 4 waits of 100s together", s)
		}
	})
}

// The pool that starts a task counts how long it waited, also one that was booked when it was
// enqueued, or that another pool deferred. Each is counted once. Here ten tasks are booked and ten
// are deferred behind them by one of two pools, and 19 wait for 10, 20, ... 190 s from their start.
func TestWaitsOfBookedTasksAndOfOtherPools(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		r := rigOn(t, nil, rdb)
		policy := phone("sms", 10*time.Second)
		ran := &runs{}
		var pools []*worker.Pool
		for range 2 {
			cfg := policies(policy)
			cfg.Asynq.Concurrency = 1
			pool, _ := r.start(ran.handler(), cfg)
			pools = append(pools, pool)
		}
		wantBooked(t, producerOn(t, rdb, policy).BookMany(t.Context(), smsTo("A", "booked", 10)))
		ran.ran(t, 1)
		for n := range 10 {
			r.enqueue("sms", fmt.Sprint("deferred-", n), to("A"))
		}
		time.Sleep(5 * time.Minute) // of the bubble
		ran.ran(t, 20)
		waits, waited, both := int64(0), time.Duration(0), true
		for _, pool := range pools {
			for _, s := range pool.Stats().Rules {
				waits, waited = waits+s.Waits, waited+s.Waited
				both = both && s.Waits > 0
			}
		}
		if want := 1900 * time.Second; waits != 19 || waited < want-19*time.Second || waited > want+19*time.Second || !both {
			t.Errorf("%d waits of %v together, in both pools: %t; want 19 of about %v", waits, waited, both, want)
		}
	})
}
