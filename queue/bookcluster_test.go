package queue

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// slowScripts is a network on which each call of a script takes a while.
type slowScripts struct{ redis.Hook }

func (slowScripts) DialHook(next redis.DialHook) redis.DialHook { return next }

func (slowScripts) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "fcall" || cmd.Name() == "evalsha" {
			time.Sleep(3 * time.Millisecond)
		}
		return next(ctx, cmd)
	}
}

func (slowScripts) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// On a Redis Cluster tasks under rules in several slots are booked one after the other, which takes long for a
// hundred of them. The first is woken at its instant all the same, and not later by the time that the others took.
func TestBookManyOnAClusterIsWokenInTime(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3)
	rdb.AddHook(slowScripts{})
	const n = 40
	client := newClient(t, rdb, Policy{Type: "sms", Rules: []Rule{
		{Name: "phone", Limit: throttle.Sliding(1, time.Hour), Key: MustJSONKey("$.to")},
		{Name: "provider", Limit: throttle.Sliding(1, time.Minute), Constant: "acme"},
	}})
	tasks := make([]*Task, n)
	for i := range tasks {
		tasks[i] = NewTask("sms", fmt.Appendf(nil, `{"to": "+%d"}`, i), asynq.TaskID(fmt.Sprint(i)))
	}
	began := time.Now()
	results := client.BookMany(t.Context(), tasks)
	took := time.Since(began)
	keys := queuescripts.NewQueueKeys("hw", "default")
	for i, r := range results {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		if r.Wait == 0 {
			continue // it is pending
		}
		at, err := queuescripts.GetTask(t.Context(), rdb, keys, fmt.Sprint(i))
		if late := at.At.Sub(r.At); err != nil || late > took/4 {
			t.Errorf("task %d is woken %v after its instant (%v), want less than a quarter of the %v that all bookings took", i, late, err, took)
		}
	}
}
