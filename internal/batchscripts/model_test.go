package batchscripts

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/redistest"
)

// fed is a batch that two feeders fight for and that pools work on, of which any call
// may be sent twice, and any process may die between two calls.
type fed struct {
	*rapid.T
	ctx   context.Context
	rdb   redistest.Timed
	raw   *redis.Client
	q     queuescripts.QueueKeys
	now   time.Time
	size  int64
	bad   map[int64]bool // positions of elements that are to be refused
	known [2]view
	came  [2]int // how often each has come up
	calls uint64
	ran   map[string]int
}

// view is what a feeder knows, as it was answered; nil when it has nothing.
type view struct {
	settled map[int64]bool
}

// reasonFor is why an element is refused that is a bad one.
func reasonFor(position int64) string { return []string{"invalid", "too late"}[position%2] }

func element(position int64) string { return fmt.Sprint("e", position) }

// owner is drawn anew for each life: else what is still under way of the last one would
// not be fenced.
func (f *fed) owner(who int) uint64 { return uint64(1000*f.came[who] + who + 1) }

// claim makes a feeder one that has just come up.
func (f *fed) claim(who int) {
	f.came[who]++
	r, err := Claim(f.ctx, f.rdb, f.q, ClaimArgs{ID: "b", Owner: f.owner(who), Lease: 2 * time.Second})
	if err != nil {
		f.Fatal(err)
	}
	f.known[who] = view{}
	if r.Status != ClaimOurs {
		return
	}
	v := view{settled: make(map[int64]bool)}
	for i := range r.Cursor {
		v.settled[i] = true
	}
	ahead, err := AheadElements(f.ctx, f.raw, f.q, "b", 0, 1000)
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range ahead {
		v.settled[e.Position] = true
	}
	f.known[who] = v
}

// feed feeds some elements that a feeder believes to be unsettled, in any order.
func (f *fed) feed(who int) {
	v := f.known[who]
	if v.settled == nil {
		return
	}
	var left []int64
	for i := range f.size {
		if !v.settled[i] && len(left) < 12 {
			left = append(left, i)
		}
	}
	left = rapid.Permutation(left).Draw(f.T, "order")
	chosen := left[:rapid.IntRange(0, len(left)).Draw(f.T, "at once")]
	a := FeedArgs{Batch: "b", Owner: f.owner(who), Cursor: f.size}
	for i := range f.size {
		if !v.settled[i] && !slices.Contains(chosen, i) {
			a.Cursor = i
			break
		}
	}
	a.Mark, a.End = element(a.Cursor), a.Cursor == f.size
	life := f.came[who]
	f.calls++
	a.Call = f.calls
	for _, i := range chosen {
		task := FeedTask{Position: i, Element: element(i), EnqueueTask: queuescripts.EnqueueTask{Token: 1000*f.calls + uint64(i), Since: 1}}
		if !f.bad[i] {
			task.Message = []byte("m")
		} else {
			task.Reason = reasonFor(i)
		}
		a.Tasks = append(a.Tasks, task)
	}
	r, err := Feed(f.ctx, f.rdb, f.q, a)
	if err != nil {
		f.Fatal(err)
	}
	if rapid.IntRange(0, 3).Draw(f.T, "lost reply") == 0 {
		f.others()
		if r, err = Feed(f.ctx, f.rdb, f.q, a); err != nil {
			f.Fatal(err)
		}
	}
	if f.came[who] != life {
		return // this one is dead
	}
	if r.Status != Fed {
		f.known[who] = view{}
		return
	}
	for i, code := range r.Codes {
		if code != FeedNoRoom {
			v.settled[chosen[i]] = true
		}
		if code == queuescripts.Conflict || code == queuescripts.Duplicate || code == FeedSettled {
			f.Fatalf("feeding %d = %d: nobody has enqueued it", chosen[i], code)
		}
	}
	if rapid.IntRange(0, 9).Draw(f.T, "dies") == 0 {
		f.known[who] = view{}
	}
}

// others do something while a reply is under way.
func (f *fed) others() {
	for range rapid.IntRange(0, 3).Draw(f.T, "meanwhile") {
		f.step(rapid.IntRange(4, 9).Draw(f.T, "op"))
	}
}

// work runs one task to its end, and may die before it counts it.
func (f *fed) work() {
	id, err := f.raw.RPop(f.ctx, f.q.Pending).Result()
	if err != nil {
		return
	}
	_, e, _ := ParseTaskID(id)
	f.ran[e]++
	f.raw.Del(f.ctx, f.q.Task(id))
	if rapid.IntRange(0, 3).Draw(f.T, "dies") > 0 {
		if _, _, err := Count(f.ctx, f.rdb, f.q, "b", OutcomeDone, e); err != nil {
			f.Fatal(err)
		}
	}
}

// sweep counts what nobody has counted.
func (f *fed) sweep() {
	unfinished, err := UnfinishedElements(f.ctx, f.raw, f.q, "b", 0, 1000)
	if err != nil {
		f.Fatal(err)
	}
	for some := range slices.Chunk(unfinished, ElementsMax) {
		var ids []string
		for _, e := range some {
			ids = append(ids, e.ID)
		}
		if _, _, _, err := Sweep(f.ctx, f.rdb, f.q, "b", ids); err != nil {
			f.Fatal(err)
		}
	}
}

func (f *fed) set(what Change, n int) {
	if _, err := Set(f.ctx, f.rdb, f.q, SetArgs{ID: "b", What: what, N: n}); err != nil {
		f.Fatal(err)
	}
}

func (f *fed) step(op int) {
	who := op % 2
	switch {
	case op < 4:
		f.feed(who)
	case op < 6:
		if rapid.Bool().Draw(f.T, "anew") || f.known[who].settled == nil {
			f.claim(who)
		}
	case op < 7:
		f.now = f.now.Add(rapid.SampledFrom([]time.Duration{time.Millisecond, time.Second, 3 * time.Second}).Draw(f.T, "time"))
		f.rdb.SetTime(f.now)
	case op < 8:
		f.set(rapid.SampledFrom([]Change{Pause, Resume, Resume}).Draw(f.T, "state"), 0)
	case op < 9:
		f.sweep()
	default:
		for range rapid.IntRange(0, 5).Draw(f.T, "tasks") {
			f.work()
		}
	}
}

// Each element is enqueued once, whoever dies when, never more than the window are unfinished,
// and the batch ends when all have.
func TestBatchModel(t *testing.T) {
	t.Parallel()
	rdb, raw := redistest.StartTimed(t)
	rapid.Check(t, func(rt *rapid.T) {
		ctx := context.Background()
		raw.FlushDB(ctx)
		f := &fed{T: rt, ctx: ctx, rdb: rdb, raw: raw, q: queuescripts.NewQueueKeys("hw", "default"), now: start, bad: map[int64]bool{}, ran: map[string]int{}}
		rdb.SetTime(start)
		f.size = int64(rapid.IntRange(0, 40).Draw(rt, "size"))
		refused := rapid.SliceOfN(rapid.Int64Range(0, 40), 0, 5).Draw(rt, "bad")
		for _, i := range refused {
			f.bad[i] = i < f.size
		}
		window := rapid.IntRange(1, 10).Draw(rt, "window")
		if _, err := Start(ctx, rdb, f.q, StartArgs{Token: 1, Batch: Batch{ID: "b", Window: window, Weight: 100}}); err != nil {
			rt.Fatal(err)
		}
		read := func() View {
			views, errs := Read(ctx, raw, f.q, []string{"b"})
			if errs[0] != nil {
				rt.Fatal(errs[0])
			}
			if v := views[0]; v.Unfinished > window || v.Enqueued-v.Done != int64(v.Unfinished) {
				rt.Fatalf("%d are unfinished of a window of %d, %d enqueued and %d done", v.Unfinished, window, v.Enqueued, v.Done)
			}
			return views[0]
		}
		for range rapid.IntRange(1, 80).Draw(rt, "length") {
			f.step(rapid.IntRange(0, 9).Draw(rt, "op"))
			read()
		}
		f.set(Resume, 0)
		for range 300 {
			if read().State == Ended {
				break
			}
			f.set(Resume, 0)
			for _, op := range []int{6, 4, 0, 2, 9, 8} {
				f.step(op)
			}
		}
		want, reasons := map[bool]int64{}, map[string]int64{}
		for i := range f.size {
			want[f.bad[i]]++
			if f.bad[i] {
				reasons[reasonFor(i)]++
			}
			if n := f.ran[element(i)]; n != map[bool]int{false: 1, true: 0}[f.bad[i]] {
				rt.Fatalf("%s ran %d times", element(i), n)
			}
		}
		v := read()
		if v.State != Ended || v.Enqueued != want[false] || v.Refused != want[true] || v.Cursor != f.size || v.Mark != element(f.size) {
			rt.Fatalf("the batch is %+v, want it ended with %d enqueued and %d refused", v, want[false], want[true])
		}
		if !maps.Equal(v.RefusedFor, reasons) {
			rt.Fatalf("elements are refused for %v, want %v", v.RefusedFor, reasons)
		}
	})
}
