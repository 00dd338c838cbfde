package prove

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"

	"github.com/headwayq/headway/internal/e2e"
)

// failing lets so many scripts through.
type failing struct {
	redis.Hook
	left int
}

var errFailing = errors.New("no more")

func (f *failing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *failing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (f *failing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if redistest.IsScript(cmd) {
			if f.left--; f.left < 0 {
				cmd.SetErr(errFailing)
				return errFailing
			}
		}
		return next(ctx, cmd)
	}
}

// TestEnqueueGoesOn breaks off in the middle; with -once the rest follows.
func TestEnqueueGoesOn(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	policy := e2e.PhoneLimit(throttle.Sliding(1, time.Minute)).Policy
	broken := srv.Client(t)
	broken.AddHook(&failing{left: 4}) // a script costs two calls the first time
	client, err := queue.NewClient(broken, queue.ClientConfig{Policies: []queue.Policy{policy}})
	if err != nil {
		t.Fatal(err)
	}
	msgs := e2e.Sample()
	e2e.SetOnceIDs(msgs)
	done, err := enqueue(t.Context(), client, msgs, true)
	if text := fmt.Sprint(err); !strings.HasPrefix(text, "enqueued 3 of 24: ") || !strings.Contains(text, errFailing.Error()) || done != (enqueueing{fresh: 3}) {
		t.Errorf("enqueue = %+v, %v, want 3 and why no more", done, err)
	}
	checkPersonal(t, "the error", fmt.Sprint(err))

	client, err = queue.NewClient(srv.Client(t), queue.ClientConfig{Policies: []queue.Policy{policy}})
	if err != nil {
		t.Fatal(err)
	}
	done, err = enqueue(t.Context(), client, msgs, true)
	if err != nil || done != (enqueueing{fresh: 21, there: 3}) {
		t.Errorf("enqueue again = %+v, %v, want the other 21", done, err)
	}
	q, err := asynq.NewInspectorFromRedisClient(srv.Client(t)).GetQueueInfo(queueName)
	if err != nil {
		t.Fatal(err)
	}
	if q.Pending != 24 {
		t.Errorf("%d pending, want 24", q.Pending)
	}
	tasks, err := asynq.NewInspectorFromRedisClient(srv.Client(t)).ListPendingTasks(queueName, asynq.PageSize(24))
	if err != nil {
		t.Fatal(err)
	}
	for i, task := range tasks {
		if task.ID != msgs[i].ID || task.Retention != onceRetention {
			t.Errorf("task %d is %s, kept for %v, want %s, 24h", i, task.ID, task.Retention, msgs[i].ID)
		}
	}
}
