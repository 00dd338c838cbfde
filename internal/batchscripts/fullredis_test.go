package batchscripts

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/redistest"
)

// A full Redis refuses to start or feed a batch, and nothing is half done. Elements still end, and are still taken out.
func TestFullRedisAndABatch(t *testing.T) {
	t.Parallel()
	rdb, raw := redistest.StartTimed(t, redistest.Arg("maxmemory-policy", "noeviction"))
	ctx, q := t.Context(), queuescripts.NewQueueKeys("hw", "default")
	b := &batchScene{T: t, rdb: rdb, raw: raw, q: q}
	begin := func(id string) (Reply, error) {
		return Start(ctx, rdb, q, StartArgs{Token: 1, Batch: Batch{ID: id, Window: 10, Weight: 100}})
	}
	if _, err := begin("b"); err != nil {
		t.Fatal(err)
	}
	b.claim(feeder, ClaimOurs)
	b.feed(4, b.tasks(0, 4)...)
	// The texts are known before memory runs out.
	_, _, _ = Count(ctx, rdb, q, "none", OutcomeDone, "e")
	_, _ = Set(ctx, rdb, q, SetArgs{ID: "none", What: Pause})
	_, _ = Drop(ctx, rdb, q, "none", []string{"e"})
	redistest.FillMemory(t, raw)

	before := redistest.Dump(t, raw)
	for name, call := range map[string]func() error{
		"to start": func() error { _, err := begin("c"); return err },
		"to feed": func() error {
			_, err := Feed(ctx, rdb, q, FeedArgs{Batch: "b", Owner: feeder, Call: 9, Cursor: 5, Tasks: b.tasks(4, 5)})
			return err
		},
		"to feed none": func() error {
			_, err := Feed(ctx, rdb, q, FeedArgs{Batch: "b", Owner: feeder, Call: 9, Cursor: 4})
			return err
		},
		"to claim": func() error {
			_, err := Claim(ctx, rdb, q, ClaimArgs{ID: "b", Owner: feeder, Lease: time.Minute})
			return err
		},
		"another speed": func() error {
			_, err := Set(ctx, rdb, q, SetArgs{ID: "b", What: SetWeight, N: 1})
			return err
		},
	} {
		if err := call(); !strings.Contains(fmt.Sprint(err), "OOM") {
			t.Errorf("%s = %v, want OOM", name, err)
		}
		if after := redistest.Dump(t, raw); !maps.Equal(before, after) {
			t.Fatalf("%s changed %q to %q, want nothing changed", name, before, after)
		}
	}
	b.count(OutcomeDone, 1, false, "e0")
	for _, what := range []Change{Pause, Resume, Cancel} {
		b.set(what, SetDone)
	}
	r, err := Drop(ctx, rdb, q, "b", []string{"e1", "e2", "e3"})
	redistest.WantCodes(t, "Drop", r.Codes, err, Dropped, Dropped, Dropped)
	if !r.Gone {
		t.Errorf("Drop = %+v, want nothing left", r)
	}
	b.none(q.Task(TaskID("b", "e0")), q.Pending)
}
