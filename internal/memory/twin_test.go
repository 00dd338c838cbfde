package memory_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/headwayq/headway/internal/limitscripts"
	"github.com/headwayq/headway/internal/memory"
	"github.com/headwayq/headway/internal/redistest"
)

// The scripts and the store in memory, written apart from one text, are asked
// the same, and must answer the same: every field, to the microsecond.

var start = time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)

// On a real Redis the clock goes forward and backward, and no key expires. Most traces call the
// functions of the library, which keep what they read of texts from one trace to the next; the
// others run scripts.
func TestTwinOnRedis(t *testing.T) {
	t.Parallel()
	for _, world := range worlds(true) {
		t.Run(world.name, func(t *testing.T) {
			t.Parallel()
			raw := redistest.Start(t, redistest.Own()).Client(t)
			if world.name == "several" || !testing.Short() { // to read all that is called takes as long again
				redistest.DeclaredKeys(t, raw)
			}
			rdb := redistest.NewTimedForLong(raw, start)
			functions := redis.NewClient(raw.Options())
			t.Cleanup(func() { _ = functions.Close() })
			clock := redistest.TimedLibrary(functions, start)
			calls := 0
			rapid.Check(t, func(rt *rapid.T) {
				var by redis.UniversalClient = functions
				setTime := clock.SetTime
				if rapid.IntRange(0, 3).Draw(rt, "by scripts") == 0 {
					by, setTime = rdb, rdb.SetTime
				}
				calls += runTwin(rt, world, by, raw, true, setTime)
			})
			t.Logf("%d calls had the same answer from both", calls)
		})
	}
}

// On miniredis keys expire by the clock of the test, which goes forward only.
// The limit stays: a ledger lives as long as the limit that wrote it needs, and
// miniredis cuts each life to whole milliseconds of its own. For the same reason
// all have heard of it: a ledger refuses an older limit for as long as it lives.
func TestTwinOnMiniredis(t *testing.T) {
	t.Parallel()
	for _, world := range worlds(false) {
		t.Run(world.name, func(t *testing.T) {
			t.Parallel()
			m := miniredis.NewMiniRedis()
			m.ClockTTL(true)
			t.Cleanup(m.Close)
			rdb := redis.NewClient(redistest.MiniOptions(m))
			t.Cleanup(func() { _ = rdb.Close() })
			calls := 0
			rapid.Check(t, func(rt *rapid.T) { calls += runTwin(rt, world, rdb, rdb, false, m.SetTime) })
			t.Logf("%d calls had the same answer from both", calls)
		})
	}
}

// twin asks both.
type twin struct {
	*rapid.T
	templates limitscripts.CallTemplates
	ctx       context.Context
	rdb       redis.UniversalClient
	raw       *redis.Client
	store     *memory.Store
	setTime   func(time.Time)
	now       time.Time
	latest    time.Time // that the clock was
	changing  bool      // limits change, the clock goes backwards, and no key expires
	rules     []*rule
	policies  [][]*rule
	alone     bool // policies of one rule have no turns
	mixed     bool // several policies ask for one job
	calm      bool // nobody waits and nothing is closed: calls of one rule go the short ways
	held      []*held
	lost      []*held // tokens that were withdrawn before their calls arrived
	adjusted  []adjustment
	jobs      []string
	tokens    uint64
	calls     int // whose answers were compared
}

type held struct {
	token  uint64
	job    string
	policy int
	costs  []int
	paid   []int // after all adjustments
	worth  []int64
	at     time.Time
}

// adjustment is one call of Adjust, which may be delivered again.
type adjustment struct {
	of    *held
	token uint64
	costs []int
	at    time.Time
}

// runTwin plays one trace, and returns how many of its calls had the same answer from both.
func runTwin(rt *rapid.T, world world, rdb redis.UniversalClient, raw *redis.Client, back bool, setTime func(time.Time)) int {
	w := &twin{
		T: rt, ctx: context.Background(), rdb: rdb, raw: raw, setTime: setTime, now: start, changing: back,
		rules: world.rules(rt), jobs: []string{"a", "b", "c", "d", "e"},
	}
	raw.FlushDB(w.ctx)
	w.store = memory.New(func() time.Time { return w.now })
	if back {
		w.store.Keep(1000000 * time.Hour)
	}
	setTime(w.now)
	for _, r := range w.rules {
		r.change(rt)
	}
	w.drawPolicies()
	w.calm = rapid.Bool().Draw(rt, "calm")
	w.alone, w.mixed = rapid.Bool().Draw(rt, "alone"), rapid.Bool().Draw(rt, "mixed")
	if w.mixed {
		w.calm, w.jobs = false, w.jobs[:3] // few, so that each is asked for often
	}
	for i := range rapid.SampledFrom([]int{0, 0, 7}).Draw(rt, "more jobs") { // a long line
		w.jobs = append(w.jobs, fmt.Sprint("job ", i))
	}
	// no steps and windows make a life to the millisecond: miniredis drops what has none left, Redis what is past it
	steps := []time.Duration{0, 0, 1000, 333 * time.Microsecond, 200 * time.Millisecond, time.Second, 1000003 * time.Microsecond, 20 * time.Second, 70 * time.Second, 3 * time.Minute}
	if back {
		steps = append(steps, -1000, -300*time.Millisecond, -30*time.Second)
	}
	for range rapid.IntRange(5, 60).Draw(rt, "length") {
		if rapid.IntRange(0, 19).Draw(rt, "two keys are seen") == 0 {
			for i, r := range w.rules {
				r.oneKey = i
			}
		}
		w.step(steps, back)
		for _, r := range w.rules {
			w.peek(r)
			w.places(r)
		}
		w.lives()
	}
	return w.calls
}

// logs says that a rule may keep a log, as sliding.lua does.
func (w *twin) logs() bool {
	return slices.ContainsFunc(w.rules, func(r *rule) bool { return r.kind.name == "sliding" || r.kind.name == "changing" })
}

func (w *twin) step(steps []time.Duration, back bool) {
	r := rapid.SampledFrom(w.rules).Draw(w.T, "rule")
	switch op := rapid.IntRange(0, 26).Draw(w.T, "op"); {
	case op < 9:
		w.acquire()
	case op < 13:
		w.moveTo(w.now.Add(rapid.SampledFrom(steps).Draw(w.T, "time")))
	case op < 15:
		w.cancel()
	case op == 15 || op == 19:
		w.check()
	case op == 16:
		w.toTheInstant(r)
	case op == 17 && back:
		r.change(w.T)
	case op == 18 && rapid.IntRange(0, 4).Draw(w.T, "lose") == 0:
		w.lose(r)
	case op == 20 && !w.calm && rapid.IntRange(0, 2).Draw(w.T, "close") == 0:
		w.close()
	case op > 24:
		w.anew()
	case op > 22:
		w.adjust()
	case op > 20 && r.n.Kind == limitscripts.Leases:
		w.useLease(r)
	}
}

func (w *twin) moveTo(at time.Time) {
	w.now = at
	w.setTime(at)
	if at.After(w.latest) {
		w.latest = at
	}
}

func (w *twin) fail(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// same compares the answers to one call.
func (w *twin) same(what string, got, want any) {
	w.Helper()
	w.equal(what, got, want)
	w.calls++
}

func (w *twin) equal(what string, got, want any) {
	w.Helper()
	w.Logf("%s at %d us", what, w.now.UnixMicro())
	if diff := cmp.Diff(want, got); diff != "" {
		text := ""
		for _, r := range w.rules {
			text += fmt.Sprintf("%s under %+v is %q\n", r.key.Ledger(), r.n, w.raw.Get(w.ctx, r.key.Ledger()).Val())
		}
		w.Fatalf("%s at %d us: the script (+) and the store (-) differ:\n%s%s", what, w.now.UnixMicro(), diff, text)
	}
}

func (w *twin) lose(r *rule) {
	if rapid.Bool().Draw(w.T, "reset") {
		n := w.numbers(r)
		got, err := limitscripts.Reset(w.ctx, w.rdb, r.key, n)
		w.fail(err)
		w.same("reset", got, w.store.Reset(r.key, n))
		return
	}
	w.fail(w.raw.Del(w.ctx, r.key.Ledger()).Err())
	w.store.Drop(r.key)
}

// onMini are a miniredis and a store in memory with one clock, which `at` sets to an instant after the start.
func onMini(t *testing.T) (rdb *redis.Client, store *memory.Store, at func(time.Duration)) {
	t.Helper()
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	t.Cleanup(m.Close)
	rdb = redis.NewClient(redistest.MiniOptions(m))
	t.Cleanup(func() { _ = rdb.Close() })
	now := start
	at = func(d time.Duration) {
		now = start.Add(d)
		m.SetTime(now)
	}
	at(0)
	return rdb, memory.New(func() time.Time { return now }), at
}

// TestTwinParkedAreKept: a call that parks a job keeps its place for an hour from then on.
func TestTwinParkedAreKept(t *testing.T) {
	t.Parallel()
	rdb, store, at := onMini(t)
	rules := []limitscripts.RuleCall{{
		LimitKeys: limitscripts.NewLimitKeys("hw", "rule", "id"),
		Numbers:   limitscripts.Numbers{Kind: limitscripts.Sliding, Permits: 1, Window: time.Minute}, Cost: 1,
	}}
	for i, step := range []struct {
		at   time.Duration
		mode limitscripts.Mode
		job  string
		want limitscripts.Status
	}{
		{0, limitscripts.GrantOrBook, "a", limitscripts.Granted},
		{0, limitscripts.GrantOrBook, "b", limitscripts.Booked},
		{time.Hour, limitscripts.Try, "", limitscripts.Granted}, // b is an hour late
	} {
		at(step.at)
		a := limitscripts.AcquireArgs{Rules: rules, Token: uint64(i + 1), Job: step.job, Mode: step.mode, MaxWait: -1}
		got, err := limitscripts.Acquire(t.Context(), rdb, a)
		if memo := store.Acquire(a); err != nil || got.Status != step.want || memo.Status != step.want {
			t.Fatalf("step %d: status %d, %v in Redis, %d in memory, want %d", i, got.Status, err, memo.Status, step.want)
		}
	}
	at(time.Hour + 10*time.Minute)
	place := limitscripts.RefreshArgs{Rules: rules, Job: "b"}
	got := limitscripts.Refresh(t.Context(), rdb, []limitscripts.RefreshArgs{place})[0]
	if memo := store.Refresh(place); got.Err != nil || got.Status != limitscripts.Booked || memo.Status != limitscripts.Booked {
		t.Errorf("b has status %d, %v in Redis, %d in memory, want its place: %d", got.Status, got.Err, memo.Status, limitscripts.Booked)
	}
}

// TestTwinForgetsMixedCosts: when nobody waits any more, what is noted of those who did is gone, also
// of a job that was postponed on a young line, whose ticket is below 0.
func TestTwinForgetsMixedCosts(t *testing.T) {
	t.Parallel()
	rdb, store, at := onMini(t)
	rules := func(cost int) []limitscripts.RuleCall {
		return []limitscripts.RuleCall{{
			LimitKeys: limitscripts.NewLimitKeys("hw", "rule", "id"),
			Numbers:   limitscripts.Numbers{Kind: limitscripts.Sliding, Permits: 3, Window: time.Minute}, Cost: cost,
		}}
	}
	token := uint64(0)
	ask := func(mode limitscripts.Mode, job string, cost int, want limitscripts.Status, goes time.Duration) {
		t.Helper()
		token++
		a := limitscripts.AcquireArgs{Rules: rules(cost), Token: token, Job: job, Mode: mode, MaxWait: -1}
		got, err := limitscripts.Acquire(t.Context(), rdb, a)
		memo := store.Acquire(a)
		if err != nil || got.Status != want || !got.At.Equal(start.Add(goes)) || memo.Status != want || !memo.At.Equal(got.At) {
			t.Fatalf("%q: status %d at %v, %v in Redis, %d at %v in memory, want %d at %v",
				job, got.Status, got.At.Sub(start), err, memo.Status, memo.At.Sub(start), want, goes)
		}
	}
	do := func(in limitscripts.CloseArgs) {
		t.Helper()
		in.Rule = 1
		if got, err := limitscripts.Close(t.Context(), rdb, in); err != nil || got.Status != limitscripts.Granted || store.Close(in).Status != limitscripts.Granted {
			t.Fatalf("Close(%+v) = %+v, %v", in, got, err)
		}
	}
	cancel := func(job string, cost int) {
		t.Helper()
		in := limitscripts.CancelArgs{Rules: rules(cost), Job: job}
		if _, err := limitscripts.Cancel(t.Context(), rdb, in); err != nil {
			t.Fatal(err)
		}
		store.Cancel(in)
	}
	ask(limitscripts.Try, "", 3, limitscripts.Granted, 0)
	ask(limitscripts.GrantOrBook, "b", 1, limitscripts.Booked, time.Minute)
	do(limitscripts.CloseArgs{Rules: rules(2), Job: "c", For: time.Minute})
	cancel("c", 2)
	cancel("b", 1)
	at(61 * time.Second)
	ask(limitscripts.Try, "", 3, limitscripts.Granted, 61*time.Second)
	do(limitscripts.CloseArgs{Rules: rules(1), For: 10 * time.Minute})
	ask(limitscripts.GrantOrBook, "d", 2, limitscripts.Booked, 661*time.Second)
	ask(limitscripts.GrantOrBook, "e", 2, limitscripts.Booked, 721*time.Second)
	at(62 * time.Second)
	do(limitscripts.CloseArgs{Rules: rules(1)})
	at(70 * time.Second)
	ask(limitscripts.GrantOrBook, "e", 2, limitscripts.Booked, 181*time.Second) // all costs are the same
}

// TestTwinChangesFromManyPermits: a log takes over no more of a limit in bytes than it may need, and what it tells
// the kind after it is the same.
func TestTwinChangesFromManyPermits(t *testing.T) {
	t.Parallel()
	rdb, store, _ := onMini(t)
	for version, n := range []limitscripts.Numbers{
		{Kind: limitscripts.Fixed, Permits: 1 << 40, Window: time.Minute},
		{Kind: limitscripts.Sliding, Permits: 2, Window: time.Minute},
		{Kind: limitscripts.WarmUp, Permits: 7, Window: time.Second, Warm: time.Minute, ColdMilli: 10_000},
	} {
		n.Version = int64(version)
		cost := 1
		if version == 0 {
			cost = 1 << 40
		}
		a := limitscripts.AcquireArgs{
			Rules: []limitscripts.RuleCall{{LimitKeys: limitscripts.NewLimitKeys("hw", "rule", "id"), Numbers: n, Cost: cost}},
			Token: uint64(version + 1), Job: "a", Mode: limitscripts.GrantOrBook, Inline: 24 * time.Hour, MaxWait: -1,
		}
		got, err := limitscripts.Acquire(t.Context(), rdb, a)
		if memo := store.Acquire(a); err != nil || got.Status != limitscripts.Granted || memo.Status != got.Status || !memo.At.Equal(got.At) {
			t.Fatalf("under %+v: status %d at %v, %v in Redis, %d at %v in memory, want it granted at one instant",
				n, got.Status, got.At.Sub(start), err, memo.Status, memo.At.Sub(start))
		}
	}
}

// TestTwinChargesManyPermits: a log takes as long for 2^40 permits as for those that it holds.
func TestTwinChargesManyPermits(t *testing.T) {
	t.Parallel()
	rdb, store, _ := onMini(t)
	rules := func(cost int) []limitscripts.RuleCall {
		return []limitscripts.RuleCall{{
			LimitKeys: limitscripts.NewLimitKeys("hw", "rule", "id"),
			Numbers:   limitscripts.Numbers{Kind: limitscripts.Sliding, Permits: 3, Window: time.Minute}, Cost: cost,
		}}
	}
	ask := limitscripts.AcquireArgs{Rules: rules(1), Token: 1, Job: "a", Mode: limitscripts.GrantOrBook, MaxWait: -1}
	got, err := limitscripts.Acquire(t.Context(), rdb, ask)
	if memo := store.Acquire(ask); err != nil || got.Status != limitscripts.Granted || memo.Status != limitscripts.Granted {
		t.Fatalf("status %d, %v in Redis, %d in memory, want %d", got.Status, err, memo.Status, limitscripts.Granted)
	}
	more := limitscripts.AdjustArgs{Rules: rules(1 << 40), Token: 1, Charge: 2}
	charged, err := limitscripts.Adjust(t.Context(), rdb, more)
	if memo := store.Adjust(more); err != nil || charged.Status != limitscripts.Granted || memo.Status != limitscripts.Granted {
		t.Fatalf("adjusted: status %d, %v in Redis, %d in memory, want %d", charged.Status, err, memo.Status, limitscripts.Granted)
	}
	ask.Token, ask.Job = 3, "b"
	got, err = limitscripts.Acquire(t.Context(), rdb, ask)
	if memo := store.Acquire(ask); err != nil || !got.At.Equal(start.Add(time.Minute)) || !memo.At.Equal(got.At) {
		t.Errorf("the next comes at %v, %v in Redis, at %v in memory, want a minute", got.At.Sub(start), err, memo.At.Sub(start))
	}
}

// TestTwinRefundOfWhatWasWrittenOver: a refund that finds nothing to take out
// writes nothing, so the ledger stays one of the limit that it was written under.
func TestTwinRefundOfWhatWasWrittenOver(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	store := memory.New(nil)
	one := func(n limitscripts.Numbers) []limitscripts.RuleCall {
		return []limitscripts.RuleCall{{LimitKeys: limitscripts.NewLimitKeys("hw", "rule", "id"), Numbers: n, Cost: 1}}
	}
	limit := limitscripts.Numbers{Version: 1, Kind: limitscripts.Sliding, Permits: 1, Window: time.Millisecond}
	heard := limit
	heard.Version = 2
	for token := range uint64(2) {
		a := limitscripts.AcquireArgs{Rules: one(limit), Token: token + 1, Job: "a", Mode: limitscripts.GrantOrBook, Inline: time.Minute, MaxWait: -1}
		got, err := limitscripts.Acquire(t.Context(), rdb, a)
		if err != nil {
			t.Fatal(err)
		}
		if memo := store.Acquire(a); got.Status != limitscripts.Granted || memo.Status != got.Status {
			t.Fatalf("acquire %d: status %d in Redis, %d in memory, want %d", token, got.Status, memo.Status, limitscripts.Granted)
		}
	}
	back := limitscripts.CancelArgs{Rules: one(heard), Token: 1}
	if _, err := limitscripts.Cancel(t.Context(), rdb, back); err != nil {
		t.Fatal(err)
	}
	store.Cancel(back)
	ask := limitscripts.AcquireArgs{Rules: one(limit), Token: 3, Mode: limitscripts.GrantOrBook, Job: "b", Inline: time.Minute, MaxWait: -1}
	got, err := limitscripts.Acquire(t.Context(), rdb, ask)
	if err != nil {
		t.Fatal(err)
	}
	if memo := store.Acquire(ask); got.Status != limitscripts.Granted || memo.Status != got.Status {
		t.Fatalf("under the limit that wrote the ledger: status %d in Redis, %d in memory, want %d", got.Status, memo.Status, limitscripts.Granted)
	}
}
