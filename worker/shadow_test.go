package worker_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// In shadow mode nothing is refused: a task without a key was archived all the same once.
func TestShadowRunsWhatWouldBeRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		r := rigOn(t, nil, rdb)
		ran := &runs{}
		noted := ran.handler()
		handler := asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			_ = noted.ProcessTask(ctx, task)
			if task.Type() == "costly" {
				return worker.Adjust(ctx, 1)
			}
			return nil
		})
		costly := queue.Policy{Type: "costly", Rules: []queue.Rule{{Name: "cost", Limit: throttle.Sliding(5, time.Minute), Key: queue.MustJSONKey("$.to"), Cost: queue.MustJSONCost("$.cost")}}}
		cfg := policies(phone("sms", time.Minute), costly)
		cfg.Throttle.Shadow, cfg.Unlimited = true, worker.UnlimitedRefuse
		pool, stop := r.start(handler, cfg)
		for id, task := range map[string][2]string{
			"no key": {"sms", `{}`}, "no JSON": {"sms", `hello`}, "no cost": {"costly", `{"to":"A","cost":0}`},
			"above": {"costly", `{"to":"A","cost":6}`}, "no policy": {"mail", `{}`}, "fine": {"costly", `{"to":"A","cost":5}`},
		} {
			r.enqueue(task[0], id, task[1], asynq.MaxRetry(0))
		}
		for i := range 3 {
			r.enqueue("sms", fmt.Sprint("one of three ", i), to("A"), asynq.MaxRetry(0))
		}
		ran.ran(t, 9) // first: the task with a deadline is too late behind them
		r.enqueue("sms", "deadline", to("A"), asynq.MaxRetry(0), asynq.Deadline(time.Now().Add(30*time.Second)))
		ran.ran(t, 10)
		stop()
		r.wantQueue(10, 0, 0)
		want := map[string]int64{
			worker.ShadowedNoKey: 2, worker.ShadowedBadCost: 1, worker.ShadowedExceeds: 1, worker.ShadowedNoPolicy: 1,
			worker.ShadowedDeferred: 2, worker.ShadowedTooLate: 1,
		}
		s := pool.Stats()
		if diff := cmp.Diff(want, s.Shadowed); diff != "" {
			t.Errorf("shadowed (-want +got):\n%s", diff)
		}
		if s.Refused != 0 || s.Deferred != 0 {
			t.Errorf("%d refused and %d deferred, want none", s.Refused, s.Deferred)
		}
	})
}

// Limits that are not kept are said so at start, once.
func TestShadowModeIsToldAtStart(t *testing.T) {
	t.Parallel()
	for _, shadow := range []bool{true, false} {
		r := newRig(t)
		cfg := policies(phone("sms", time.Minute))
		cfg.Throttle.Shadow = shadow
		if err := r.adapter(cfg).Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := r.logs.FilterMessage("shadow mode: limits are counted and not kept").Len(); (n == 1) != shadow {
			t.Errorf("shadow %v: %d lines about it", shadow, n)
		}
	}
}

// What can't be decided runs too, and is not counted as a cost above the limit.
func TestShadowCountsWhatCannotBeDecidedByItsReason(t *testing.T) {
	t.Parallel()
	for what, spoil := range map[string]func(r *rig){
		"a stored limit": func(r *rig) { r.rdb.Set(r.Context(), "hw:limit:sms", "junk", 0) },
		"a ledger": func(r *rig) {
			r.rdb.Set(r.Context(), r.limiter("sms", throttle.Sliding(1, time.Minute)).Ledger("A"), "junk", 0)
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r, ran := newRig(t), &runs{}
			cfg := policies(phone("sms", time.Minute))
			cfg.Throttle.Shadow = true
			spoil(r)
			pool, stop := r.start(ran.handler(), cfg)
			r.enqueue("sms", "a", to("A"), asynq.MaxRetry(0))
			ran.ran(t, 1)
			stop()
			if diff := cmp.Diff(map[string]int64{worker.ShadowedUnreadable: 1}, pool.Stats().Shadowed); diff != "" {
				t.Errorf("shadowed (-want +got):\n%s", diff)
			}
		})
	}
}
