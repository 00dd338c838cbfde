package batch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/batchscripts"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/redistest"
)

// replicas is what a client sees that sends what only reads to a replica which has heard
// of nothing yet; TIME is that of a clock which is an hour ahead.
type replicas struct{ redis.Hook }

func (replicas) DialHook(next redis.DialHook) redis.DialHook { return next }

func (replicas) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		switch cmd := cmd.(type) {
		case *redis.TimeCmd:
			cmd.SetVal(time.Now().Add(time.Hour))
			return nil
		case *redis.Cmd, *redis.BoolSliceCmd: // scripts, and whether they are known
		default:
			if slices.Contains([]string{"hget", "hgetall", "hmget", "zcard", "zrange", "zscore", "exists"}, cmd.Name()) {
				cmd.SetErr(redis.Nil)
				return redis.Nil
			}
		}
		return next(ctx, cmd)
	}
}

func (r replicas) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return next(ctx, slices.DeleteFunc(slices.Clone(cmds), func(cmd redis.Cmder) bool {
			err := r.ProcessHook(func(context.Context, redis.Cmder) error { return errors.ErrUnsupported })(ctx, cmd)
			return !errors.Is(err, errors.ErrUnsupported)
		}))
	}
}

// What is counted of a batch is what the server of its keys has, however little of it a
// replica knows.
func TestBatchOfAClientThatReadsFromReplicas(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	rdb, stale := srv.Client(t), srv.Client(t)
	stale.AddHook(replicas{})
	c := newClient(t, stale)
	b := NewControl(c)
	if _, err := b.Start(t.Context(), winter()); err != nil {
		t.Fatal(err)
	}
	k := clientOf(c).Keys("default")
	if _, err := batchscripts.Claim(t.Context(), rdb, k, batchscripts.ClaimArgs{ID: "winter", Owner: 1, Lease: 2 * feedLease}); err != nil {
		t.Fatal(err)
	}
	a := batchscripts.FeedArgs{Batch: "winter", Owner: 1, Call: 1, Cursor: 3}
	for i := range int64(3) {
		a.Tasks = append(a.Tasks, batchscripts.FeedTask{Position: i, Element: fmt.Sprint(i), EnqueueTask: queuescripts.EnqueueTask{Token: uint64(i + 1), Message: []byte("m"), Since: 1}})
	}
	if _, err := batchscripts.Feed(t.Context(), rdb, k, a); err != nil {
		t.Fatal(err)
	}
	if err := clientOf(c).sweep(t.Context(), "default", "winter"); err != nil {
		t.Fatal(err)
	}
	p, err := b.Progress(t.Context(), "default", "winter")
	if err != nil || p.Open != 3 || p.Done != 0 || !p.Fed || p.Now.After(time.Now().Add(time.Minute)) {
		t.Errorf("Progress = %+v, %v, want three that wait, now", p, err)
	}
	rdb.Del(t.Context(), k.Task("batch:winter:1"))
	rdb.HSet(t.Context(), k.Task("batch:winter:2"), "state", "archived")
	if err := clientOf(c).sweep(t.Context(), "default", "winter"); err != nil {
		t.Fatal(err)
	}
	if p, err := b.Progress(t.Context(), "default", "winter"); err != nil || p.Open != 1 || p.Done != 1 || p.Failed != 1 {
		t.Errorf("Progress = %+v, %v, want one that waits, one done, and one failed", p, err)
	}
}
