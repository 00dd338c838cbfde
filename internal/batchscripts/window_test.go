package batchscripts

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/redistest"
)

// What is said to be the ceiling of a window is what a feeding call lets in.
func TestCeilingIsThatOfTheScript(t *testing.T) {
	t.Parallel()
	b := newBatch(t, 1)
	for _, w := range [][2]int{{1, 1}, {1, 100}, {3, 33}, {3, 34}, {7, 50}, {29, 100}, {58, 50}, {90, 70}, {99, 99}, {100, 29}, {1000, 7}, {333, 29}} {
		for _, of := range []string{"hw:*", "asynq:*"} {
			b.raw.Del(t.Context(), b.raw.Keys(t.Context(), of).Val()...)
		}
		spec := Batch{ID: "b", Window: w[0], Weight: w[1]}
		if _, err := Start(t.Context(), b.rdb, b.q, StartArgs{Token: 1, Batch: spec}); err != nil {
			t.Fatal(err)
		}
		b.claim(feeder, ClaimOurs)
		if r := b.feed(0, b.tasks(0, ElementsMax)...); r.Unfinished != spec.Ceiling() {
			t.Errorf("of a window of %d and a weight of %d%% %d are let in, want %d", w[0], w[1], r.Unfinished, spec.Ceiling())
		}
	}
}

// freed is how much another thread has freed, so that no call waited for it.
func (b *batchScene) freed() int {
	b.Helper()
	info := b.raw.Info(b.Context(), "memory").Val()
	found := lazilyFreed.FindStringSubmatch(info)
	if found == nil {
		b.Fatalf("INFO memory does not tell what was freed:\n%s", info)
	}
	n, err := strconv.Atoi(found[1])
	if err != nil {
		b.Fatal(err)
	}
	return n
}

var lazilyFreed = regexp.MustCompile(`lazyfreed_objects:(\d+)`)

// What four of the largest windows hold before the first element is settled is taken out
// in portions, and an id among it that comes again is no conflict; the end and a cancel
// leave the freeing to another thread.
func TestAheadOfTheLargestWindow(t *testing.T) {
	t.Parallel()
	const n, portion = 400_000, 500 // all at once would hold Redis up for a quarter of a second
	for name, last := range map[string]func(*batchScene){
		"ended": func(b *batchScene) {
			r, err := Feed(b.Context(), b.rdb, b.q, FeedArgs{Batch: "b", Owner: feeder, Call: 99, Cursor: n + 2, End: true})
			if err != nil || !r.Ended {
				b.Errorf("Feed = %+v, %v, want the batch ended", r, err)
			}
		},
		"cancelled": func(b *batchScene) { b.set(Cancel, SetDone) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBatch(t, 100_000, redistest.Own())
			ahead := keysOf(b.q, "b").ahead
			for from := 1; from < n; from += 1000 {
				var some []redis.Z
				for i := from; i < from+1000; i++ {
					some = append(some, redis.Z{Score: float64(i), Member: fmt.Sprint("e", i)})
				}
				b.raw.ZAdd(t.Context(), ahead, some...)
			}
			before := b.raw.ZCard(t.Context(), ahead).Val()
			redistest.WantCodes(t, "Feed", b.feed(n+1, b.tasks(0, 1)...).Codes, nil, queuescripts.Enqueued)
			if left := b.raw.ZCard(t.Context(), ahead).Val(); left < before-portion {
				t.Errorf("the call that settled the first took out %d, want %d or fewer", before-left, portion)
			}
			again := b.tasks(n+1, n+2)
			again[0].Element = fmt.Sprint("e", n-1)
			redistest.WantCodes(t, "Feed of an id that comes again", b.feed(n+2, again...).Codes, nil, queuescripts.Enqueued)
			before = b.raw.ZCard(t.Context(), ahead).Val()
			b.feed(n + 2)
			if left := b.raw.ZCard(t.Context(), ahead).Val(); left != before-portion {
				t.Errorf("%d are left of %d, want %d taken out", left, before, portion)
			}
			b.count(OutcomeDone, 2, false, "e0", fmt.Sprint("e", n-1))
			freed := b.freed()
			last(b)
			for begun := time.Now(); b.freed() == freed; time.Sleep(time.Millisecond) {
				if time.Since(begun) > 10*time.Second {
					t.Fatal("no other thread frees the elements")
				}
			}
			if b.raw.Exists(t.Context(), ahead).Val() != 0 {
				t.Error("elements ahead of the cursor are left")
			}
		})
	}
}
