package batch

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/batchscripts"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// When a batch goes on, the tasks that its pause deferred come back in the order of the source, also
// when its feeder has died just before. Tasks that run are not marked as due. A hundred such marks would keep
// pools from everything that is due on the queue.
func TestResumeBringsBackWhatThePauseDeferred(t *testing.T) {
	t.Parallel()
	for name, lease := range map[string]time.Duration{"without a feeder": 0, "behind a feeder that died": feedLease} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Client(t)
			c := newClient(t, rdb)
			b := NewControl(c)
			if _, err := b.Start(t.Context(), winter()); err != nil {
				t.Fatal(err)
			}
			f := testFeeder(t, c, nil)
			f.cfg.Sources["messages"] = Seq(func(Spec) iter.Seq[Element] { return slices.Values(make([]Element, 4)) })
			g := newFeeding(f, "default", "winter")
			if err := g.begin(t.Context()); err != nil {
				t.Fatal(err)
			}
			within(t, "all are enqueued", func() bool {
				if _, err := g.pass(t.Context()); err != nil {
					t.Fatal(err)
				}
				return g.unfinished == 4
			})
			g.input.close()
			unfinished, err := batchscripts.UnfinishedElements(t.Context(), rdb, g.keys, "winter", 0, 4)
			if err != nil || len(unfinished) != 4 {
				t.Fatalf("unfinished: %v, %v", unfinished, err)
			}
			if err := b.Pause(t.Context(), "default", "winter"); err != nil {
				t.Fatal(err)
			}
			var ids []string
			for i, e := range unfinished {
				id := batchscripts.TaskID("winter", e.ID)
				ids = append(ids, id)
				_, err := rdb.TxPipelined(t.Context(), func(p redis.Pipeliner) error { // as asynq's fetching does
					p.LRem(t.Context(), "asynq:{default}:pending", 0, id)
					p.LPush(t.Context(), "asynq:{default}:active", id)
					p.HSet(t.Context(), "asynq:{default}:t:"+id, "state", "active")
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				if i%2 == 0 {
					continue // it runs
				}
				a := queuescripts.DeferArgs{ID: id, Token: newOwner(), Wait: time.Hour, Reason: queuescripts.WaitReason{Cause: queuescripts.CausePaused}}
				if err := queuescripts.Defer(t.Context(), rdb, g.keys, a).Err(); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := batchscripts.Claim(t.Context(), rdb, g.keys, batchscripts.ClaimArgs{ID: "winter", Owner: g.owner, Lease: lease}); err != nil {
				t.Fatal(err)
			}
			if err := b.Resume(t.Context(), "default", "winter"); err != nil {
				t.Fatal(err)
			}
			due, err := queuescripts.Due(t.Context(), rdb, g.keys, queuescripts.DueArgs{Room: 10})
			var got []string
			for _, d := range due.Tasks {
				got = append(got, d.ID)
			}
			if want := []string{ids[1], ids[3]}; err != nil || !slices.Equal(got, want) {
				t.Errorf("%v are due (%v), want %v, which were put away", got, err, want)
			}
		})
	}
}

// slowBookings makes each script take long that names the provider.
type slowBookings struct{ redis.Hook }

func (slowBookings) DialHook(next redis.DialHook) redis.DialHook { return next }

func (slowBookings) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if slices.ContainsFunc(cmd.Args(), func(a any) bool { return fmt.Sprint(a) == "hw:{acme}:provider:line" }) {
			time.Sleep(60 * time.Millisecond)
		}
		return next(ctx, cmd)
	}
}

func (slowBookings) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// On a Redis Cluster each element is booked by itself when its keys are in several slots. To book a window
// takes longer than a lease lasts: the feeder keeps its batch all the same.
func TestLeaseIsKeptWhileBookingsTakeLong(t *testing.T) {
	t.Parallel()
	const n = 50
	rdb := redistest.StartCluster(t, 3)
	rdb.AddHook(slowBookings{})
	c := newClient(t, rdb, queue.Policy{Type: "sms", Rules: []queue.Rule{
		{Name: "phone", Limit: throttle.Sliding(1, time.Minute), Key: queue.MustJSONKey("$.to")},
		{Name: "provider", Limit: throttle.Sliding(n, time.Second), Constant: "acme"},
	}})
	if _, err := NewControl(c).Start(t.Context(), winter()); err != nil {
		t.Fatal(err)
	}
	f := testFeeder(t, c, nil)
	f.cfg.Sources["messages"] = Seq(func(Spec) iter.Seq[Element] {
		return func(yield func(Element) bool) {
			for i := range n {
				if !yield(Element{Payload: fmt.Appendf(nil, `{"to": "+%d"}`, i)}) {
					return
				}
			}
		}
	})
	g := newFeeding(f, "default", "winter")
	if err := g.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	watched := make(chan error, 1)
	go func() {
		for pause(ctx, 50*time.Millisecond) == nil {
			views, errs := batchscripts.Read(t.Context(), rdb, g.keys, []string{"winter"})
			if errs[0] != nil || !fed(views[0]) {
				watched <- errors.Join(errs[0], errors.New("nobody has the batch"))
				return
			}
		}
		watched <- nil
	}()
	longest := time.Duration(0)
	within(t, "all are enqueued", func() bool {
		began := time.Now()
		if _, err := g.pass(t.Context()); err != nil {
			t.Fatal(err)
		}
		longest = max(longest, time.Since(began))
		return g.unfinished == n
	})
	cancel()
	g.input.close()
	if err := <-watched; err != nil || longest < feedLease {
		t.Errorf("%v, while a step took %v, want one that is longer than the lease of %v", err, longest, feedLease)
	}
}
