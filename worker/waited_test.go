package worker_test

import (
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
