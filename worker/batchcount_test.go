package worker

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/batchscripts"
)

// countCalls is a Redis that records calls of batchcount.lua: "id outcome elements".
type countCalls struct{ calls []string }

func (*countCalls) DialHook(next redis.DialHook) redis.DialHook { return next }
func (*countCalls) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *countCalls) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		args := cmd.Args()[8:] // behind five keys
		h.calls = append(h.calls, fmt.Sprint(args[0], " ", args[1], " ", len(args)-3))
		cmd.(*redis.Cmd).SetVal([]any{int64(len(args) - 3), int64(0)})
		return nil
	}
}

// The first that ends is counted at once, what ends next together, by batch and outcome;
// and what is left when the adapter closes then, after which each counts by itself.
func TestVirtualBatchCountsAreGathered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		defer rdb.Close()
		redisCalls := &countCalls{}
		rdb.AddHook(redisCalls)
		a, err := NewAdapter(rdb, Config{})
		if err != nil {
			t.Fatal(err)
		}
		end := func(id string, outcome batchscripts.Outcome, n int) (taken bool) {
			for i := range n {
				taken = a.batchCounts.add(ended{batchID{"default", id}, outcome, fmt.Sprint(i)})
			}
			return taken
		}
		if end("b", batchscripts.OutcomeDone, 1) {
			t.Error("what ends before the start is taken by nobody")
		}
		ctx, stop := context.WithCancel(t.Context())
		a.batchCounts.begin()
		a.wg.Go(func() { a.batchCounts.run(ctx) })
		want := func(what string, calls ...string) {
			t.Helper()
			if !slices.Equal(redisCalls.calls, calls) {
				t.Errorf("%s: calls %q, want %q", what, redisCalls.calls, calls)
			}
			redisCalls.calls = nil
		}
		end("b", batchscripts.OutcomeDone, 1)
		synctest.Wait()
		want("the first", "b done 1")
		end("b", batchscripts.OutcomeDone, 150)
		end("b", batchscripts.OutcomeFailed, 2)
		end("c", batchscripts.OutcomeDone, 3)
		synctest.Wait()
		want("the next wait")
		// stopped before the pause is over
		stop()
		a.wg.Wait()
		want("at the end", "b done 100", "b done 50", "b failed 2", "c done 3")
		if end("b", batchscripts.OutcomeDone, 1) {
			t.Error("what ends after the end is taken by nobody")
		}
	})
}
