package batchscripts

import (
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"
)

// A record that a newer version wrote is refused before anything of it is changed: it is
// neither paused nor fed, and a cancel deletes nothing of it.
func TestNewerBatchIsRefusedAndKept(t *testing.T) {
	t.Parallel()
	for _, state := range []State{Running, Cancelled} {
		t.Run(string(state), func(t *testing.T) {
			t.Parallel()
			b := newBatch(t, 10)
			ctx := t.Context()
			b.feed(2, b.tasks(0, 2)...)
			b.raw.HSet(ctx, keysOf(b.q, "b").record, "v", "2", "state", string(state))
			b.setTime(start.Add(time.Minute)) // a sample is due, and the lease is over
			before := redistest.Dump(t, b.raw)
			calls := map[string]func() error{
				"Claim": func() error {
					_, err := Claim(ctx, b.rdb, b.q, ClaimArgs{ID: "b", Owner: rival, Lease: time.Second})
					return err
				},
				"Feed": func() error {
					_, err := Feed(ctx, b.rdb, b.q, FeedArgs{Batch: "b", Owner: feeder, Call: 99, Cursor: 3, Tasks: b.tasks(2, 3)})
					return err
				},
				"Drop": func() error { _, err := Drop(ctx, b.rdb, b.q, "b", []string{"e0"}); return err },
				"Start": func() error {
					_, err := Start(ctx, b.rdb, b.q, StartArgs{Token: 7, Batch: Batch{ID: "b"}})
					return err
				},
				"Read": func() error { _, errs := Read(ctx, b.raw, b.q, []string{"b"}); return errs[0] },
			}
			for _, what := range []Change{Pause, Resume, Cancel, SetPace, SetWeight} {
				calls[string(what)] = func() error {
					_, err := Set(ctx, b.rdb, b.q, SetArgs{ID: "b", What: what, N: 1})
					return err
				}
			}
			for name, call := range calls {
				if err := call(); !errors.Is(err, ErrNewer) {
					t.Errorf("%s = %v, want ErrNewer", name, err)
				}
			}
			b.count(OutcomeDone, 0, false, "e0")
			b.raw.Del(ctx, b.q.Task(TaskID("b", "e1")))
			delete(before, b.q.Task(TaskID("b", "e1")))
			if done, failed, ended, err := Sweep(ctx, b.rdb, b.q, "b", []string{"e1"}); done+failed != 0 || ended || err != nil {
				t.Errorf("Sweep = %d, %d, %v, %v, want nothing counted", done, failed, ended, err)
			}
			if after := redistest.Dump(t, b.raw); !maps.Equal(before, after) {
				t.Errorf("what was there has changed: %v, want %v", after, before)
			}
		})
	}
}
