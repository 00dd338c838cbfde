package batch

import (
	"errors"
	"fmt"
	"iter"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/batchscripts"
	"github.com/headwayq/headway/internal/redistest"
)

// TestRedisThatForgetsWhatWasFed: a failover may lose the last calls of a feeder that goes on. What they
// enqueued is enqueued again, and a batch whose end was lost ends all the same.
func TestRedisThatForgetsWhatWasFed(t *testing.T) {
	t.Parallel()
	const first, more, all = 300, 200, 600
	for name, before := range map[string]int64{"some elements": first + more, "the end of the source": all} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Start(t).Client(t)
			c := newClient(t, rdb)
			gates := map[int]chan struct{}{first: make(chan struct{}), first + more: make(chan struct{})}
			f, err := NewFeeder(c, FeederConfig{Queues: []string{"default"}, Sources: map[string]Source{
				"messages": Seq(func(Spec) iter.Seq[Element] {
					return func(yield func(Element) bool) {
						for i := range all {
							if gate := gates[i]; gate != nil {
								<-gate
							}
							if !yield(Element{ID: strconv.Itoa(i)}) {
								return
							}
						}
					}
				}),
			}})
			if err != nil {
				t.Fatal(err)
			}
			spec := winter()
			spec.Total, spec.Window = all, 1000
			b := NewControl(c)
			if _, err := b.Start(t.Context(), spec); err != nil {
				t.Fatal(err)
			}
			stop := run(t, f)
			wait := func(n int64, end bool) {
				t.Helper()
				eventually(t, fmt.Sprint(n, " are enqueued"), func() bool {
					p, err := b.Progress(t.Context(), "default", "winter")
					return err == nil && p.Enqueued == n && rdb.HExists(t.Context(), "hw:{default}:batch:winter", "end").Val() == end
				})
			}
			wait(first, false)
			kept := dump(t, rdb)
			close(gates[first])
			if before == all {
				close(gates[first+more])
			}
			wait(before, before == all)
			restore(t, rdb, kept)
			if before < all {
				close(gates[first+more])
			}
			wait(all, true)
			tasks, err := rdb.Keys(t.Context(), "asynq:{default}:t:*").Result()
			if pending := rdb.LLen(t.Context(), "asynq:{default}:pending").Val(); err != nil || len(tasks) != all || pending != all {
				t.Errorf("%d tasks, %d pending, %v, want %d", len(tasks), pending, err, all)
			}
			stop()
		})
	}
}

// TestFeederKnowsWhatWasFed: a feeder goes on only when Redis knows of just the calls that it knows of. Less are
// forgotten, and more are of another feeder, from which nobody can tell whether some were forgotten before.
func TestFeederKnowsWhatWasFed(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	c := newClient(t, rdb)
	if _, err := NewControl(c).Start(t.Context(), winter()); err != nil {
		t.Fatal(err)
	}
	const record = "hw:{default}:batch:winter"
	if err := rdb.HSet(t.Context(), record, "calls", 5).Err(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		calls  int64
		unsure bool
		want   error
	}{{5, false, nil}, {6, true, nil}, {6, false, errLost}, {7, true, errLost}, {4, false, errLost}, {4, true, errLost}} {
		g := newFeeding(testFeeder(t, c, nil), "default", "winter")
		if err := g.begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		if tt.unsure {
			g.unsure = &feedCall{}
		}
		rdb.HSet(t.Context(), record, "calls", tt.calls)
		if err := g.claim(t.Context()); !errors.Is(err, tt.want) {
			t.Errorf("with %d calls, unsure %v: %v, want %v", tt.calls, tt.unsure, err, tt.want)
		}
		if tt.calls < 5 {
			r, err := batchscripts.Feed(t.Context(), rdb, g.keys, batchscripts.FeedArgs{Batch: "winter", Owner: g.owner, Call: newOwner(), Calls: 5})
			if err != nil || r.Status != batchscripts.NotOwner {
				t.Errorf("feed.lua answers %+v, %v, want %d", r, err, batchscripts.NotOwner)
			}
		}
		rdb.HSet(t.Context(), record, "calls", 5)
		rdb.HDel(t.Context(), record, "owner", "until")
	}
}

// TestCopyOfAFeedCallLongAfter: a call may be repeated after an outage, when what it answered is forgotten. It
// counts once, or the feeder would take it for a call of another.
func TestCopyOfAFeedCallLongAfter(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	c := newClient(t, rdb)
	if _, err := NewControl(c).Start(t.Context(), winter()); err != nil {
		t.Fatal(err)
	}
	g := newFeeding(testFeeder(t, c, nil), "default", "winter")
	if err := g.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	call := batchscripts.FeedArgs{Batch: "winter", Owner: g.owner, Call: newOwner()}
	for range 2 {
		if r, err := batchscripts.Feed(t.Context(), rdb, g.keys, call); err != nil || r.Status != batchscripts.Fed {
			t.Fatalf("feed.lua answers %+v, %v", r, err)
		}
		answers := redistest.Keys(t, rdb, "hw:{default}:sent:*")
		if len(answers) != 1 {
			t.Fatalf("answers are kept in %v, want one", answers)
		}
		rdb.Del(t.Context(), answers...)
	}
	if n := rdb.HGet(t.Context(), "hw:{default}:batch:winter", "calls").Val(); n != "1" {
		t.Errorf("%s calls are counted, want 1", n)
	}
}

// dump is all that Redis has.
func dump(t *testing.T, rdb *redis.Client) map[string]string {
	t.Helper()
	keys, err := rdb.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]string)
	for _, key := range keys {
		if all[key], err = rdb.Dump(t.Context(), key).Result(); err != nil && !errors.Is(err, redis.Nil) {
			t.Fatal(err)
		}
	}
	return all
}

// restore makes Redis as it was, at one moment, as far as anybody can see.
func restore(t *testing.T, rdb *redis.Client, all map[string]string) {
	t.Helper()
	_, err := rdb.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.FlushDB(t.Context())
		for key, value := range all {
			if value != "" {
				p.Restore(t.Context(), key, 0, value)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
