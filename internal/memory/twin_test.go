package memory_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/memory"
	"github.com/headwayq/headway/internal/redistest"
)

// The scripts and the store in memory, written apart from one text, are asked
// the same, and must answer the same: every field, to the microsecond.

var start = time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)

// On a real Redis the clock goes forward and backward, and no key expires.
func TestTwinOnRedis(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			raw := redistest.Start(t).Client(t)
			rdb, err := redistest.NewTimed(t.Context(), redistest.LongLived{UniversalClient: raw}, start)
			if err != nil {
				t.Fatal(err)
			}
			rapid.Check(t, func(rt *rapid.T) {
				runTwin(rt, kind, rdb, raw, true, func(now time.Time) {
					if err := rdb.SetTime(context.Background(), now); err != nil {
						rt.Fatal(err)
					}
				})
			})
		})
	}
}

// On miniredis keys expire by the clock of the test, which goes forward only.
// The limit stays: a ledger lives as long as the limit that wrote it needs, and
// miniredis cuts each life to whole milliseconds of its own.
func TestTwinOnMiniredis(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds[:len(kinds)-1] {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			m := miniredis.NewMiniRedis()
			m.ClockTTL(true)
			t.Cleanup(m.Close)
			rdb := redis.NewClient(redistest.MiniOptions(m))
			t.Cleanup(func() { _ = rdb.Close() })
			rapid.Check(t, func(rt *rapid.T) { runTwin(rt, kind, rdb, rdb, false, m.SetTime) })
		})
	}
}

// kinds draw the numbers of a limit; the last draws those of any.
var kinds = []limitKind{
	{"sliding", func(t *rapid.T) luascripts.Numbers { return numbers(t, luascripts.Sliding) }},
	{"fixed", func(t *rapid.T) luascripts.Numbers { return numbers(t, luascripts.Fixed) }},
	{"calendar", func(t *rapid.T) luascripts.Numbers { return numbers(t, luascripts.Calendar) }},
	{"gcra", func(t *rapid.T) luascripts.Numbers { return numbers(t, luascripts.GCRA) }},
	{"step", func(t *rapid.T) luascripts.Numbers { return numbers(t, luascripts.Step) }},
	{"smooth", func(t *rapid.T) luascripts.Numbers { return numbers(t, luascripts.Smooth) }},
	{"warmup", func(t *rapid.T) luascripts.Numbers { return numbers(t, luascripts.WarmUp) }},
	{"changing", func(t *rapid.T) luascripts.Numbers {
		return numbers(t, rapid.SampledFrom([]luascripts.Kind{
			luascripts.Sliding, luascripts.Fixed, luascripts.Calendar, luascripts.GCRA, luascripts.Step, luascripts.Smooth, luascripts.WarmUp,
		}).Draw(t, "kind"))
	}},
}

type limitKind struct {
	name string
	draw func(*rapid.T) luascripts.Numbers
}

func numbers(t *rapid.T, kind luascripts.Kind) luascripts.Numbers {
	n := luascripts.Numbers{
		Kind: kind, Permits: rapid.IntRange(1, 7).Draw(t, "n"),
		Window: rapid.SampledFrom([]time.Duration{time.Millisecond, 1000003 * time.Microsecond, time.Second, time.Minute}).Draw(t, "window"),
	}
	switch kind {
	case luascripts.GCRA:
		n.Burst = rapid.IntRange(1, 9).Draw(t, "burst")
	case luascripts.Step:
		n.Burst = n.Permits + rapid.IntRange(0, 5).Draw(t, "more burst")
	case luascripts.Smooth:
		n.Burst = rapid.IntRange(0, 6).Draw(t, "stored")
	case luascripts.WarmUp:
		n.Warm = rapid.SampledFrom([]time.Duration{time.Millisecond, 4 * time.Second, time.Minute}).Draw(t, "over")
		n.ColdMilli = rapid.SampledFrom([]int{1000, 2500, 3000, 10000}).Draw(t, "cold")
	case luascripts.Calendar:
		n.Window, n.Short = time.Minute, 20*time.Second
	}
	return n
}

// most is the largest cost that a limit can grant.
func most(n luascripts.Numbers) int {
	switch n.Kind {
	case luascripts.GCRA, luascripts.Step:
		return n.Burst
	case luascripts.Smooth, luascripts.WarmUp:
		return n.Permits + 3
	}
	return n.Permits
}

// civil is a calendar whose windows are 20 s to 90 s long.
var civil = func() []time.Time {
	at, out := start.Add(-2*time.Hour), []time.Time{}
	for i := range 1000 {
		out = append(out, at)
		at = at.Add(time.Duration(20+(i*37)%71) * time.Second)
	}
	return out
}()

// twin asks both.
type twin struct {
	*rapid.T
	ctx    context.Context
	rdb    redis.UniversalClient
	raw    *redis.Client
	store  *memory.Store
	key    luascripts.Limit
	now    time.Time
	n      luascripts.Numbers
	held   []held
	jobs   []string
	tokens uint64

	version int64 // of the limit
}

type held struct {
	token uint64
	job   string
	cost  int
	worth int64
}

func runTwin(rt *rapid.T, kind limitKind, rdb redis.UniversalClient, raw *redis.Client, back bool, setTime func(time.Time)) {
	w := &twin{
		T: rt, ctx: context.Background(), rdb: rdb, raw: raw, now: start,
		key: luascripts.LimitKeys("hw", "rule", "id"), jobs: []string{"a", "b", "c", "d", "e"},
	}
	raw.FlushAll(w.ctx)
	w.store = memory.New(func() time.Time { return w.now })
	if back {
		w.store.Keep(1000000 * time.Hour)
	}
	setTime(w.now)
	w.change(kind)
	steps := []time.Duration{0, 0, 1000, 333 * time.Microsecond, 200 * time.Millisecond, time.Second, 1000003 * time.Microsecond, 20 * time.Second, 3 * time.Minute}
	if back {
		steps = append(steps, -1000, -300*time.Millisecond, -30*time.Second)
	}
	for range rapid.IntRange(5, 60).Draw(rt, "length") {
		switch op := rapid.IntRange(0, 19).Draw(rt, "op"); {
		case op < 9:
			w.acquire()
		case op < 13:
			w.now = w.now.Add(rapid.SampledFrom(steps).Draw(rt, "time"))
			setTime(w.now)
		case op < 15:
			w.cancel()
		case op == 15:
			w.check()
		case op == 16:
			w.toTheInstant(setTime)
		case op == 17 && back:
			w.change(kind)
		case op == 18 && rapid.IntRange(0, 4).Draw(rt, "lose") == 0:
			w.lose()
		}
		w.peek()
		w.lives()
	}
}

func (w *twin) numbers() luascripts.Numbers {
	n := w.n
	n.Version = w.version
	if rapid.IntRange(0, 30).Draw(w.T, "not heard yet") == 0 {
		n.Version--
	}
	if n.Kind == luascripts.Calendar {
		i, _ := slices.BinarySearchFunc(civil, w.now, func(a, b time.Time) int { return a.Compare(b.Add(1)) })
		i += rapid.SampledFrom([]int{-2, -2, -2, -1, -3, -30}).Draw(w.T, "skew")
		n.Bounds = civil[max(0, i):min(i+8, len(civil))]
	}
	return n
}

func (w *twin) change(kind limitKind) {
	w.n = kind.draw(w.T)
	w.version++
}

func (w *twin) same(what string, got, want any) {
	w.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		w.Fatalf("%s at %d us under %+v, the ledger is %q: the script (+) and the store (-) differ:\n%s",
			what, w.now.UnixMicro(), w.n, w.raw.Get(w.ctx, w.key.Ledger()).Val(), diff)
	}
}

func (w *twin) acquire() {
	a := luascripts.AcquireArgs{
		Numbers: w.numbers(), Cost: rapid.IntRange(1, min(4, most(w.n))).Draw(w.T, "cost"), MaxWait: -1,
		Mode:   rapid.SampledFrom([]luascripts.Mode{luascripts.Try, luascripts.Grant, luascripts.Grant, luascripts.Grant, luascripts.Book}).Draw(w.T, "mode"),
		Inline: rapid.SampledFrom([]time.Duration{0, 50 * time.Millisecond}).Draw(w.T, "inline"),
	}
	if a.Mode != luascripts.Try {
		a.Job = rapid.SampledFrom(w.jobs).Draw(w.T, "job")
		if rapid.Bool().Draw(w.T, "equal costs") {
			a.Cost = 1
		}
		if rapid.IntRange(0, 5).Draw(w.T, "max") == 0 {
			a.MaxWait = rapid.SampledFrom([]time.Duration{0, time.Second, time.Minute}).Draw(w.T, "wait")
		}
	}
	w.tokens++
	a.Token = w.tokens
	if len(w.held) > 0 && rapid.IntRange(0, 5).Draw(w.T, "again") == 0 { // the same call delivered twice
		h := rapid.SampledFrom(w.held).Draw(w.T, "held")
		a.Token, a.Cost = h.token, h.cost
		if a.Mode != luascripts.Try {
			a.Job = h.job
		}
		if a.Mode != luascripts.Try && a.Job == "" {
			a.Job = "a"
		}
	}
	got, err := luascripts.Acquire(w.ctx, w.rdb, w.key, a)
	if err != nil {
		w.Fatal(err)
	}
	w.same(fmt.Sprintf("acquire %+v", a), got, w.store.Acquire(w.key, a))
	if got.Status == luascripts.Granted {
		w.held = append(w.held, held{a.Token, a.Job, a.Cost, got.Worth})
	}
}

func (w *twin) cancel() {
	a := luascripts.CancelArgs{Numbers: w.numbers(), Cost: 1, Job: rapid.SampledFrom(w.jobs).Draw(w.T, "job")}
	if len(w.held) > 0 && rapid.IntRange(0, 2).Draw(w.T, "a grant") > 0 {
		h := rapid.SampledFrom(w.held).Draw(w.T, "held")
		a.Token, a.Cost, a.Worth = h.token, h.cost, h.worth
		if rapid.IntRange(0, 3).Draw(w.T, "not known") == 0 {
			a.Worth = 0
		}
		if h.job != "" {
			a.Job, a.Back = h.job, rapid.Bool().Draw(w.T, "back")
		}
	}
	got, err := luascripts.Cancel(w.ctx, w.rdb, w.key, a)
	if err != nil {
		w.Fatal(err)
	}
	w.same(fmt.Sprintf("cancel %+v", a), got, w.store.Cancel(w.key, a))
}

func (w *twin) check() {
	a := luascripts.CheckArgs{Limit: w.key, Numbers: w.numbers(), Member: luascripts.Member{Job: rapid.SampledFrom(w.jobs).Draw(w.T, "job"), Cost: 1}}
	w.same("check", luascripts.Check(w.ctx, w.rdb, []luascripts.CheckArgs{a})[0], w.store.Check(a))
}

func (w *twin) peek() luascripts.PeekReply {
	a := luascripts.PeekArgs{Numbers: w.numbers(), Cost: rapid.IntRange(1, most(w.n)).Draw(w.T, "newcomer"), Most: 250}
	got, err := luascripts.Peek(w.ctx, w.rdb, w.key, a)
	if err != nil {
		w.Fatal(err)
	}
	want := w.store.Peek(w.key, a)
	got.Life, want.Life = 0, 0 // by another clock
	w.same("peek", got, want)
	return got
}

// toTheInstant goes to when a newcomer would go, and 1 us before: a wait is
// tight.
func (w *twin) toTheInstant(setTime func(time.Time)) {
	cost := rapid.IntRange(1, min(4, most(w.n))).Draw(w.T, "cost")
	n := w.numbers()
	look := func() time.Time {
		r, err := luascripts.Peek(w.ctx, w.rdb, w.key, luascripts.PeekArgs{Numbers: n, Cost: cost})
		if err != nil {
			w.Fatal(err)
		}
		if r.Status != 1 || r.Waiting > 0 {
			return time.Time{}
		}
		return r.Next
	}
	at := look()
	if !at.After(w.now) || at.Sub(w.now) > time.Hour || n.Bounds != nil && !at.Before(n.Bounds[len(n.Bounds)-1]) {
		return
	}
	try := func(want luascripts.Status) {
		w.tokens++
		a := luascripts.AcquireArgs{Numbers: n, Cost: cost, Token: w.tokens, Mode: luascripts.Try, MaxWait: -1}
		got, err := luascripts.Acquire(w.ctx, w.rdb, w.key, a)
		if err != nil {
			w.Fatal(err)
		}
		w.same("try at the instant", got, w.store.Acquire(w.key, a))
		if got.Status != want {
			w.Fatalf("at %d us under %+v, %d us after the instant %d: status %d, want %d",
				w.now.UnixMicro(), n, w.now.Sub(at).Microseconds(), at.UnixMicro(), got.Status, want)
		}
	}
	w.now = at.Add(-time.Microsecond)
	setTime(w.now)
	before, err := w.raw.Get(w.ctx, w.key.Ledger()).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		w.Fatal(err)
	}
	try(luascripts.Refused)
	if after := w.raw.Get(w.ctx, w.key.Ledger()).Val(); after != before {
		w.Fatalf("a refusal wrote %q over %q", after, before)
	}
	w.now = at
	setTime(w.now)
	try(luascripts.Granted)
}

func (w *twin) lose() {
	if rapid.Bool().Draw(w.T, "reset") {
		n := w.numbers()
		got, err := luascripts.Reset(w.ctx, w.rdb, w.key, n)
		if err != nil {
			w.Fatal(err)
		}
		w.same("reset", got, w.store.Reset(w.key, n))
		return
	}
	if err := w.raw.Del(w.ctx, w.key.Ledger()).Err(); err != nil {
		w.Fatal(err)
	}
	w.store.Drop(w.key)
}

// lives checks that every key has a TTL.
func (w *twin) lives() {
	keys, err := w.raw.Keys(w.ctx, "hw:*").Result()
	if err != nil {
		w.Fatal(err)
	}
	for _, k := range keys {
		if ttl := w.raw.PTTL(w.ctx, k).Val(); ttl == -1 {
			w.Fatalf("%s has no TTL", k)
		}
	}
}

// TestTwinRefundOfWhatWasWrittenOver: a refund that finds nothing to take out
// writes nothing, so the ledger stays one of the limit that it was written under.
func TestTwinRefundOfWhatWasWrittenOver(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	store := memory.New(nil)
	key := luascripts.LimitKeys("hw", "rule", "id")
	limit := luascripts.Numbers{Version: 1, Kind: luascripts.Sliding, Permits: 1, Window: time.Millisecond}
	heard := limit
	heard.Version = 2
	for token := range uint64(2) {
		a := luascripts.AcquireArgs{Numbers: limit, Cost: 1, Token: token + 1, Job: "a", Mode: luascripts.Grant, Inline: time.Minute, MaxWait: -1}
		got, err := luascripts.Acquire(t.Context(), rdb, key, a)
		if err != nil {
			t.Fatal(err)
		}
		if memo := store.Acquire(key, a); got.Status != luascripts.Granted || memo.Status != got.Status {
			t.Fatalf("acquire %d: status %d in Redis, %d in memory, want %d", token, got.Status, memo.Status, luascripts.Granted)
		}
	}
	back := luascripts.CancelArgs{Numbers: heard, Cost: 1, Token: 1}
	if _, err := luascripts.Cancel(t.Context(), rdb, key, back); err != nil {
		t.Fatal(err)
	}
	store.Cancel(key, back)
	ask := luascripts.AcquireArgs{Numbers: limit, Cost: 1, Token: 3, Mode: luascripts.Grant, Job: "b", Inline: time.Minute, MaxWait: -1}
	got, err := luascripts.Acquire(t.Context(), rdb, key, ask)
	if err != nil {
		t.Fatal(err)
	}
	if memo := store.Acquire(key, ask); got.Status != luascripts.Granted || memo.Status != got.Status {
		t.Fatalf("under the limit that wrote the ledger: status %d in Redis, %d in memory, want %d", got.Status, memo.Status, luascripts.Granted)
	}
}
