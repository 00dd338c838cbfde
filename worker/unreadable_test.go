package worker_test

import (
	"testing"
	"time"

	"github.com/hibiken/asynq"
)

// A task whose message nobody can read says nothing about the version of asynq: a throttled task on its last
// attempt is deferred as before.
func TestUnreadableMessage(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	r.exhausted(2*time.Second, seen.handler(), asynq.Config{})
	const p = "asynq:{default}:"
	if err := r.rdb.HSet(t.Context(), p+"t:bad", "msg", "\xff", "state", "pending").Err(); err != nil {
		t.Fatal(err)
	}
	if err := r.rdb.LPush(t.Context(), p+"pending", "bad").Err(); err != nil {
		t.Fatal(err)
	}
	r.eventually("the message is told of", func() bool { return r.logs.FilterMessageSnippet("can't be read").Len() > 0 })
	r.enqueue("sms", "a", to("+1"), asynq.MaxRetry(0))
	r.eventually("deferred", func() bool { return r.is("a", asynq.TaskStateRetry) })
	seen.ran(t, 1)
}
