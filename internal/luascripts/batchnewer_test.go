package luascripts

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
	for _, state := range []BatchState{BatchRunning, BatchCancelled} {
		t.Run(string(state), func(t *testing.T) {
			t.Parallel()
			b := newBatch(t, 10)
			ctx := t.Context()
			b.feed(2, b.tasks(0, 2)...)
			b.raw.HSet(ctx, keysOf(b.q, "b").record, "v", "2", "state", string(state))
			if err := b.setTime(start.Add(time.Minute)); err != nil { // a sample is due, and the lease is over
				t.Fatal(err)
			}
			before := redistest.Dump(t, b.raw)
			calls := map[string]func() error{
				"BatchClaim": func() error {
					_, err := BatchClaim(ctx, b.rdb, b.q, BatchClaimArgs{ID: "b", Owner: rival, Lease: time.Second})
					return err
				},
				"Feed": func() error {
					_, err := Feed(ctx, b.rdb, b.q, FeedArgs{Batch: "b", Owner: feeder, Call: 99, Cursor: 3, Tasks: b.tasks(2, 3)})
					return err
				},
				"BatchDrop": func() error { _, err := BatchDrop(ctx, b.rdb, b.q, "b", []string{"e0"}); return err },
				"BatchStart": func() error {
					_, err := BatchStart(ctx, b.rdb, b.q, BatchStartArgs{Token: 7, Batch: Batch{ID: "b"}})
					return err
				},
				"ReadBatches": func() error { _, errs := ReadBatches(ctx, b.raw, b.q, []string{"b"}); return errs[0] },
			}
			for _, what := range []BatchChange{BatchPause, BatchResume, BatchCancel, BatchSetPace, BatchSetWeight} {
				calls[string(what)] = func() error {
					_, err := BatchSet(ctx, b.rdb, b.q, BatchSetArgs{ID: "b", What: what, N: 1})
					return err
				}
			}
			for name, call := range calls {
				if err := call(); !errors.Is(err, ErrNewerBatch) {
					t.Errorf("%s = %v, want ErrNewerBatch", name, err)
				}
			}
			b.count(OutcomeDone, 0, false, "e0")
			b.raw.Del(ctx, b.q.Task(BatchTaskID("b", "e1")))
			delete(before, b.q.Task(BatchTaskID("b", "e1")))
			if done, failed, ended, err := BatchSweep(ctx, b.rdb, b.q, "b", []string{"e1"}); done+failed != 0 || ended || err != nil {
				t.Errorf("BatchSweep = %d, %d, %v, %v, want nothing counted", done, failed, ended, err)
			}
			if after := redistest.Dump(t, b.raw); !maps.Equal(before, after) {
				t.Errorf("what was there has changed: %v, want %v", after, before)
			}
		})
	}
}
