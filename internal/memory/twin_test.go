package memory_test

import (
	gocmp "cmp"
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
	for _, world := range worlds(true) {
		t.Run(world.name, func(t *testing.T) {
			t.Parallel()
			raw := redistest.Start(t).Client(t)
			rdb, err := redistest.NewTimed(t.Context(), redistest.LongLived{UniversalClient: raw}, start)
			if err != nil {
				t.Fatal(err)
			}
			rapid.Check(t, func(rt *rapid.T) {
				runTwin(rt, world, rdb, raw, true, func(now time.Time) {
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
			rapid.Check(t, func(rt *rapid.T) { runTwin(rt, world, rdb, rdb, false, m.SetTime) })
		})
	}
}

// twin asks both.
type twin struct {
	*rapid.T
	ctx      context.Context
	rdb      redis.UniversalClient
	raw      *redis.Client
	store    *memory.Store
	setTime  func(time.Time)
	now      time.Time
	changing bool // limits change, the clock goes backwards, and no key expires
	rules    []*rule
	policies [][]*rule
	alone    bool // policies of one rule have no turns
	held     []*held
	bills    []bill
	jobs     []string
	tokens   uint64
}

type held struct {
	token  uint64
	job    string
	policy int
	costs  []int
	paid   []int // after all bills
	worth  []int64
}

// bill is a settling, which may be delivered again.
type bill struct {
	of    *held
	token uint64
	costs []int
}

func runTwin(rt *rapid.T, world world, rdb redis.UniversalClient, raw *redis.Client, back bool, setTime func(time.Time)) {
	w := &twin{
		T: rt, ctx: context.Background(), rdb: rdb, raw: raw, setTime: setTime, now: start, changing: back,
		rules: world.rules(rt), jobs: []string{"a", "b", "c", "d", "e"},
	}
	raw.FlushAll(w.ctx)
	w.store = memory.New(func() time.Time { return w.now })
	if back {
		w.store.Keep(1000000 * time.Hour)
	}
	setTime(w.now)
	for _, r := range w.rules {
		r.change(rt)
	}
	w.drawPolicies()
	w.alone = rapid.Bool().Draw(rt, "alone")
	// no steps and windows make a life to the millisecond: miniredis drops what has none left, Redis what is past it
	steps := []time.Duration{0, 0, 1000, 333 * time.Microsecond, 200 * time.Millisecond, time.Second, 1000003 * time.Microsecond, 20 * time.Second, 3 * time.Minute}
	if back {
		steps = append(steps, -1000, -300*time.Millisecond, -30*time.Second)
	}
	for range rapid.IntRange(5, 60).Draw(rt, "length") {
		w.step(steps, back)
		for _, r := range w.rules {
			w.peek(r)
			w.places(r)
		}
		w.lives()
	}
}

func (w *twin) step(steps []time.Duration, back bool) {
	r := rapid.SampledFrom(w.rules).Draw(w.T, "rule")
	switch op := rapid.IntRange(0, 24).Draw(w.T, "op"); {
	case op < 9:
		w.acquire()
	case op < 13:
		w.now = w.now.Add(rapid.SampledFrom(steps).Draw(w.T, "time"))
		w.setTime(w.now)
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
	case op == 20 && rapid.IntRange(0, 2).Draw(w.T, "close") == 0:
		w.close()
	case op > 22:
		w.settle()
	case op > 20 && r.n.Kind == luascripts.Leases:
		w.useLease(r)
	}
}

func (w *twin) fail(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *twin) same(what string, got, want any) {
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

// acquire asks one or more at once, each as the one before it with another job, or
// as it comes.
func (w *twin) acquire() {
	var calls []*luascripts.AcquireArgs
	var of []int // the policy of each
	for range rapid.SampledFrom([]int{1, 1, 1, 1, 2, 5, 9}).Draw(w.T, "at once") {
		if len(calls) > 0 && rapid.IntRange(0, 3).Draw(w.T, "another form") > 0 {
			a, policy := *calls[len(calls)-1], of[len(of)-1]
			w.tokens++
			a.Token = w.tokens
			if a.Job != "" {
				a.Job = w.job(policy)
			}
			calls, of = append(calls, &a), append(of, policy)
			continue
		}
		a, policy := w.acquireArgs()
		calls, of = append(calls, &a), append(of, policy)
	}
	answers, err := luascripts.AcquireMany(w.ctx, w.rdb, calls)
	w.fail(err)
	for i, got := range answers {
		a := calls[i]
		w.fail(got.Err)
		w.same(fmt.Sprintf("acquire, %d of %d: %+v", i+1, len(calls), *a), got.AcquireReply, w.store.Acquire(*a))
		if got.Status == luascripts.Granted {
			h := &held{token: a.Token, job: a.Job, policy: of[i], worth: got.Worth}
			for _, p := range a.Parts {
				h.costs = append(h.costs, p.Cost)
			}
			h.paid = slices.Clone(h.costs)
			w.held = append(w.held, h)
		}
	}
}

func (w *twin) acquireArgs() (luascripts.AcquireArgs, int) {
	policy, name := w.drawPolicy()
	a := luascripts.AcquireArgs{
		Parts: w.parts(policy), Policy: name, Gate: w.gate(), MaxWait: -1, Tell: rapid.IntRange(0, 2).Draw(w.T, "tell") == 0,
		Mode:   rapid.SampledFrom([]luascripts.Mode{luascripts.Try, luascripts.Grant, luascripts.Grant, luascripts.Grant, luascripts.Book}).Draw(w.T, "mode"),
		Inline: rapid.SampledFrom([]time.Duration{0, 50 * time.Millisecond}).Draw(w.T, "inline"),
	}
	if a.Mode != luascripts.Try {
		a.Job = w.job(policy)
		if rapid.IntRange(0, 5).Draw(w.T, "max") == 0 {
			a.MaxWait = rapid.SampledFrom([]time.Duration{0, time.Second, time.Minute}).Draw(w.T, "wait")
		}
	}
	w.tokens++
	a.Token = w.tokens
	if len(w.held) > 0 && rapid.IntRange(0, 5).Draw(w.T, "again") == 0 { // the same call delivered twice
		h := rapid.SampledFrom(w.held).Draw(w.T, "held")
		policy = h.policy
		a.Token, a.Parts, a.Policy = h.token, w.partsOf(h), w.name(policy)
		if a.Mode != luascripts.Try {
			a.Job = gocmp.Or(h.job, w.job(policy))
		}
	}
	return a, policy
}

func (w *twin) cancel() {
	var a luascripts.CancelArgs
	if len(w.held) > 0 && rapid.IntRange(0, 2).Draw(w.T, "a grant") > 0 {
		h := rapid.SampledFrom(w.held).Draw(w.T, "held")
		a.Token, a.Parts, a.Policy, a.Job = h.token, w.partsOf(h), w.name(h.policy), h.job
		a.Back = h.job != "" && rapid.Bool().Draw(w.T, "back")
	} else {
		policy, name := w.drawPolicy()
		a.Parts, a.Policy, a.Job = w.parts(policy), name, w.job(policy)
	}
	got, err := luascripts.Cancel(w.ctx, w.rdb, a)
	w.fail(err)
	w.same(fmt.Sprintf("cancel %+v", a), got, w.store.Cancel(a))
}

// settle corrects what a grant has paid, also above the limit, or does so again.
func (w *twin) settle() {
	if len(w.held) == 0 {
		return
	}
	var b bill
	if len(w.bills) > 0 && rapid.IntRange(0, 3).Draw(w.T, "the same bill") == 0 {
		b = rapid.SampledFrom(w.bills).Draw(w.T, "bill")
	} else {
		w.tokens++
		b = bill{of: rapid.SampledFrom(w.held).Draw(w.T, "held"), token: w.tokens}
		for _, paid := range b.of.paid {
			b.costs = append(b.costs, rapid.IntRange(-paid, 9).Draw(w.T, "difference"))
		}
		w.bills = append(w.bills, b)
	}
	a := luascripts.SettleArgs{Parts: w.partsOf(b.of), Policy: w.name(b.of.policy), Token: b.of.token, Bill: b.token}
	if a.Parts[0].Kind == luascripts.Leases {
		return // nothing of it is paid
	}
	for i := range a.Parts {
		a.Parts[i].Cost = b.costs[i]
	}
	got, err := luascripts.Settle(w.ctx, w.rdb, a)
	w.fail(err)
	w.same(fmt.Sprintf("settle %+v", a), got, w.store.Settle(a))
	if got.Status == luascripts.Granted {
		for i, cost := range b.costs {
			b.of.paid[i] = max(0, b.of.paid[i]+cost)
		}
	}
}

func (w *twin) check() {
	policy, name := w.drawPolicy()
	a := luascripts.CheckArgs{Parts: w.parts(policy), Policy: name, Job: w.job(policy)}
	w.same(fmt.Sprintf("check %+v", a), luascripts.Check(w.ctx, w.rdb, []luascripts.CheckArgs{a})[0], w.store.Check(a))
}

func (w *twin) close() {
	policy, name := w.drawPolicy()
	parts := w.parts(policy)
	parts = parts[:rapid.IntRange(1, len(parts)).Draw(w.T, "as far as")]
	a := luascripts.CloseArgs{
		Parts: parts, Rule: rapid.IntRange(1, len(parts)).Draw(w.T, "rule"), Policy: name,
		For: rapid.SampledFrom([]time.Duration{0, 0, time.Millisecond, time.Second, 10 * time.Second}).Draw(w.T, "for"),
	}
	if rapid.Bool().Draw(w.T, "goes first") {
		a.Job = w.job(policy)
	}
	got, err := luascripts.Close(w.ctx, w.rdb, a)
	w.fail(err)
	w.same(fmt.Sprintf("close %+v", a), got, w.store.Close(a))
}

// useLease releases or renews one, most often one that was given.
func (w *twin) useLease(r *rule) {
	token := uint64(999_999)
	if len(w.held) > 0 {
		token = rapid.SampledFrom(w.held).Draw(w.T, "held").token
	}
	p := w.part(r, 1)
	if rapid.Bool().Draw(w.T, "renew") {
		got := luascripts.Renew(w.ctx, w.rdb, []luascripts.RenewArgs{{Part: p, Token: token}})[0]
		w.same("renew", got, w.store.Renew(p, token))
		return
	}
	got, err := luascripts.Release(w.ctx, w.rdb, p, token)
	w.fail(err)
	w.same("release", got, w.store.Release(p, token))
}

func (w *twin) peek(r *rule) {
	p := w.part(r, rapid.IntRange(1, most(r.n)).Draw(w.T, "newcomer"))
	a := luascripts.PeekArgs{Numbers: p.Numbers, Cost: p.Cost, Most: 250, Closed: p.Closed}
	got, err := luascripts.Peek(w.ctx, w.rdb, r.key, a)
	w.fail(err)
	want := w.store.Peek(r.key, a)
	got.Life, want.Life = 0, 0 // by another clock
	w.same("peek", got, want)
}

// places compares the tickets and promises, which decide later on.
func (w *twin) places(r *rule) {
	got, want := map[string]map[string]int64{}, w.store.Places(r.key)
	for _, kind := range []string{":line", ":promised", ":turns:p0", ":turns:p1", ":turns:p2"} {
		name := r.key.Ledger() + kind
		for _, z := range w.raw.ZRangeWithScores(w.ctx, name, 0, -1).Val() {
			if got[name] == nil {
				got[name] = map[string]int64{}
			}
			got[name][z.Member.(string)] = int64(min(z.Score, 1<<62))
		}
	}
	for _, sets := range []map[string]map[string]int64{got, want} {
		set := sets[r.key.Ledger()+":promised"]
		if set["mixed"] > 0 {
			set["mixed"] = 1 // it is there or not
		}
		if set["closed"] <= w.now.UnixMicro() {
			delete(set, "closed") // it counts no more
		}
		if len(set) == 0 {
			delete(sets, r.key.Ledger()+":promised")
		}
	}
	w.same("places", got, want)
}

// toTheInstant goes to when a newcomer would go, and 1 us before: a wait is
// tight.
func (w *twin) toTheInstant(r *rule) {
	n := w.numbers(r)
	cost := rapid.IntRange(1, min(4, most(r.n))).Draw(w.T, "cost")
	look, err := luascripts.Peek(w.ctx, w.rdb, r.key, luascripts.PeekArgs{Numbers: n, Cost: cost})
	w.fail(err)
	at := look.Next
	if look.Status != 1 || look.Waiting > 0 || !at.After(w.now) || at.Sub(w.now) > time.Hour || n.Bounds != nil && !at.Before(n.Bounds[len(n.Bounds)-1]) {
		return
	}
	try := func(want luascripts.Status) {
		w.tokens++
		a := luascripts.AcquireArgs{
			Parts: []luascripts.Part{{Limit: r.key, Numbers: n, Cost: cost}}, Token: w.tokens, Mode: luascripts.Try, MaxWait: -1,
		}
		got, err := luascripts.Acquire(w.ctx, w.rdb, a)
		w.fail(err)
		w.same("try at the instant", got, w.store.Acquire(a))
		if got.Status != want {
			w.Fatalf("at %d us under %+v, %d us after the instant %d: status %d, want %d",
				w.now.UnixMicro(), n, w.now.Sub(at).Microseconds(), at.UnixMicro(), got.Status, want)
		}
	}
	w.now = at.Add(-time.Microsecond)
	w.setTime(w.now)
	before, err := w.raw.Get(w.ctx, r.key.Ledger()).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		w.Fatal(err)
	}
	try(luascripts.Refused)
	if after := w.raw.Get(w.ctx, r.key.Ledger()).Val(); after != before {
		w.Fatalf("a refusal wrote %q over %q", after, before)
	}
	w.now = at
	w.setTime(w.now)
	try(luascripts.Granted)
}

func (w *twin) lose(r *rule) {
	if rapid.Bool().Draw(w.T, "reset") {
		n := w.numbers(r)
		got, err := luascripts.Reset(w.ctx, w.rdb, r.key, n)
		w.fail(err)
		w.same("reset", got, w.store.Reset(r.key, n))
		return
	}
	w.fail(w.raw.Del(w.ctx, r.key.Ledger()).Err())
	w.store.Drop(r.key)
}

// lives checks that every key has a TTL.
func (w *twin) lives() {
	keys, err := w.raw.Keys(w.ctx, "hw:*").Result()
	w.fail(err)
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
	one := func(n luascripts.Numbers) []luascripts.Part {
		return []luascripts.Part{{Limit: luascripts.LimitKeys("hw", "rule", "id"), Numbers: n, Cost: 1}}
	}
	limit := luascripts.Numbers{Version: 1, Kind: luascripts.Sliding, Permits: 1, Window: time.Millisecond}
	heard := limit
	heard.Version = 2
	for token := range uint64(2) {
		a := luascripts.AcquireArgs{Parts: one(limit), Token: token + 1, Job: "a", Mode: luascripts.Grant, Inline: time.Minute, MaxWait: -1}
		got, err := luascripts.Acquire(t.Context(), rdb, a)
		if err != nil {
			t.Fatal(err)
		}
		if memo := store.Acquire(a); got.Status != luascripts.Granted || memo.Status != got.Status {
			t.Fatalf("acquire %d: status %d in Redis, %d in memory, want %d", token, got.Status, memo.Status, luascripts.Granted)
		}
	}
	back := luascripts.CancelArgs{Parts: one(heard), Token: 1}
	if _, err := luascripts.Cancel(t.Context(), rdb, back); err != nil {
		t.Fatal(err)
	}
	store.Cancel(back)
	ask := luascripts.AcquireArgs{Parts: one(limit), Token: 3, Mode: luascripts.Grant, Job: "b", Inline: time.Minute, MaxWait: -1}
	got, err := luascripts.Acquire(t.Context(), rdb, ask)
	if err != nil {
		t.Fatal(err)
	}
	if memo := store.Acquire(ask); got.Status != luascripts.Granted || memo.Status != got.Status {
		t.Fatalf("under the limit that wrote the ledger: status %d in Redis, %d in memory, want %d", got.Status, memo.Status, luascripts.Granted)
	}
}
