package worker_test

import (
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/throttle"
)

// A task was deleted while it waited, and another of its id waits for something else:
// what the first left is cleared when it is due, although the key was closed meanwhile,
// and does not move the other again and again.
func TestEntryOfADeletedTaskIsCleared(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	limit := throttle.Sliding(1, 2*time.Second)
	lim := r.limiter("sms", limit)
	r.take(lim, "+1")
	pool, _ := r.start(seen.handler(), policies(smsLimit(limit)))
	r.deferred("a")
	if err := r.insp.DeleteTask("default", "a"); err != nil {
		t.Fatal(err)
	}
	r.enqueue("sms", "a", to("+1"), asynq.MaxRetry(0), asynq.Deadline(time.Now().Add(24*time.Hour)))
	r.eventually("deferred again", func() bool { return r.is("a", asynq.TaskStateRetry) })
	if n := r.rdb.ZCard(t.Context(), "hw:{default}:due").Val(); n != 2 {
		t.Fatalf("%d entries are in the index, want that of the task which was deleted, too", n)
	}
	if _, err := lim.CloseKey(t.Context(), "+1", time.Hour); err != nil {
		t.Fatal(err)
	}
	r.eventually("one entry", func() bool { return r.rdb.ZCard(t.Context(), "hw:{default}:due").Val() == 1 })
	never(t, 300*ms, "the task moved again and again", func() bool { return pool.Stats().Moved > 2 })
	if !r.is("a", asynq.TaskStateRetry) || len(seen.all()) > 0 {
		t.Errorf("%v ran on a closed key, want that it waits", seen.ids())
	}
}
