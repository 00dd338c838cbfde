package batch

import (
	"context"
	"fmt"
	"maps"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/batchscripts"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/redistest"
)

// Of many batches some end while they are listed: the others are all told.
func TestAllBatchesWhileSomeEnd(t *testing.T) {
	t.Parallel()
	b := NewControl(newClient(t, redistest.Client(t)))
	const n, gone = batchPage + 50, 60
	name := func(i int) string { return fmt.Sprint("b", i) }
	for i := range n {
		spec := winter()
		spec.ID = name(i)
		if _, err := b.Start(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
	seen := make(map[string]bool)
	for p, err := range b.All(t.Context(), "default") {
		if err != nil {
			t.Fatal(err)
		}
		for i := range gone {
			if len(seen) > 0 {
				break
			}
			if _, err := b.Cancel(t.Context(), "default", name(i)); err != nil {
				t.Fatal(err)
			}
		}
		seen[p.ID] = true
	}
	for i := gone; i < n; i++ {
		if !seen[name(i)] {
			t.Errorf("%s is not told", name(i))
		}
	}
}

// A record that can't be read hides no other batch: it is listed by its id.
func TestAllBatchesBesideOneThatCantBeRead(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	b := NewControl(newClient(t, rdb))
	for _, id := range []string{"a", "newer", "nobodys", "z"} {
		spec := winter()
		spec.ID = id
		if _, err := b.Start(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
	rdb.HSet(t.Context(), "hw:{default}:batch:newer", "v", "2")
	rdb.HSet(t.Context(), "hw:{default}:batch:nobodys", "done", "x")
	states := make(map[string]State)
	for p, err := range b.All(t.Context(), "") {
		if err != nil || p.Queue != "default" {
			t.Fatalf("%+v, %v", p, err)
		}
		states[p.ID] = p.State
	}
	page, next, err := b.Page(t.Context(), "", 1, 2)
	want := map[string]State{"a": Running, "newer": Unreadable, "nobodys": Unreadable, "z": Running}
	if !maps.Equal(states, want) || err != nil || len(page) != 2 || next != 3 {
		t.Errorf("All has %v, want %v; Page has %+v and goes on at %d, %v", states, want, page, next, err)
	}
}

// nth calls f before the n-th command.
type nth struct {
	redis.Hook
	n int
	f func(context.Context)
}

func (h *nth) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if h.n--; h.n == 0 {
			h.f(ctx)
		}
		return next(ctx, cmd)
	}
}

func (*nth) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*nth) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A cancel answers what became of all, also when a feeder dropped the rest at any moment.
func TestCancelBesideAFeeder(t *testing.T) {
	t.Parallel()
	srv := redistest.StartEither(t)
	rdb := srv.Client(t)
	other := newClient(t, rdb)
	const n = batchscripts.ElementsMax + 50
	for at := 1; at <= 8; at++ {
		if _, err := NewControl(other).Start(t.Context(), winter()); err != nil {
			t.Fatal(err)
		}
		owner := uint64(at)
		if _, err := batchscripts.Claim(t.Context(), rdb, clientOf(other).Keys("default"), batchscripts.ClaimArgs{ID: "winter", Owner: owner, Lease: feedLease}); err != nil {
			t.Fatal(err)
		}
		for from := int64(0); from < n; from += 50 {
			a := batchscripts.FeedArgs{Batch: "winter", Owner: owner, Call: uint64(at)*1000 + uint64(from), Cursor: from + 50}
			for i := from; i < from+50; i++ {
				a.Tasks = append(a.Tasks, batchscripts.FeedTask{Position: i, Element: fmt.Sprint(i), EnqueueTask: queuescripts.EnqueueTask{Token: uint64(i + 1), Message: []byte("m"), Since: 1}})
			}
			if r, err := batchscripts.Feed(t.Context(), rdb, clientOf(other).Keys("default"), a); err != nil || r.Status != batchscripts.Fed {
				t.Fatalf("Feed = %+v, %v", r, err)
			}
		}
		mine := srv.Client(t)
		mine.AddHook(&nth{n: at, f: func(ctx context.Context) {
			if _, err := clientOf(other).drain(ctx, "default", "sms", "winter"); err != nil {
				t.Error(err)
			}
		}})
		p, err := NewControl(newClient(t, mine)).Cancel(t.Context(), "default", "winter")
		if err != nil || p.Open != 0 || p.Dropped != n || p.State != Cancelled {
			t.Errorf("with a feeder before command %d Cancel = %+v, %v, want all %d dropped", at, p, err, n)
		}
	}
}
