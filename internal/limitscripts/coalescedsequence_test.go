package limitscripts

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/redistest"
)

// Coalesced calls answer and leave behind what the same calls do one after another: of two
// keys one is asked by coalesced calls, and the other by one call after another.
func TestCoalescedCallsAreAsOneAfterAnother(t *testing.T) {
	t.Parallel()
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		raw := redistest.Start(t).Client(t)
		rdb := redistest.NewTimedForLong(raw, start)
		rapid.Check(t, func(rt *rapid.T) { runSequence(rt, rdb, raw, true, rdb.SetTime) })
	})
	t.Run("miniredis", func(t *testing.T) {
		t.Parallel()
		m := miniredis.NewMiniRedis()
		m.ClockTTL(true)
		t.Cleanup(m.Close)
		rdb := redis.NewClient(redistest.MiniOptions(m))
		t.Cleanup(func() { _ = rdb.Close() })
		rapid.Check(t, func(rt *rapid.T) { runSequence(rt, rdb, rdb, false, m.SetTime) })
	})
}

// sequence is a trace on the keys of both.
type sequence struct {
	*rapid.T
	ctx       context.Context
	rdb       redis.UniversalClient
	raw       *redis.Client
	now       time.Time
	setTime   func(time.Time)
	coalesced LimitKeys
	single    LimitKeys
	limits    []Numbers // of processes that are not all of one release
	tokens    uint64
	held      []grant
	latest    int64 // that the clock was
}

type grant struct {
	token uint64
	cost  int
	at    int64
}

func runSequence(rt *rapid.T, rdb redis.UniversalClient, raw *redis.Client, back bool, setTime func(time.Time)) {
	w := &sequence{
		T: rt, ctx: context.Background(), rdb: rdb, raw: raw, now: start, setTime: setTime,
		coalesced: NewLimitKeys("hw", "coalesced", "id"), single: NewLimitKeys("hw", "single", "id"),
	}
	raw.FlushDB(w.ctx)
	setTime(w.now)
	window := rapid.SampledFrom([]time.Duration{1100 * time.Microsecond, time.Second, time.Minute, 100 * time.Second}).Draw(rt, "window")
	for range rapid.SampledFrom([]int{1, 1, 2, 3}).Draw(rt, "limits") {
		n := rapid.OneOf(rapid.IntRange(1, 9), rapid.IntRange(1, 3), rapid.IntRange(50, 130), rapid.IntRange(2100, 2500)).Draw(rt, "n")
		w.limits = append(w.limits, Numbers{Kind: Sliding, Permits: n, Window: window})
		if back && rapid.IntRange(0, 3).Draw(rt, "another window") == 0 { // a life is that of the limit that wrote
			w.limits[len(w.limits)-1].Window *= 3
		}
	}
	steps := []time.Duration{0, time.Microsecond, window / 3, window - time.Microsecond, window, window + time.Millisecond, 3 * window}
	if back {
		steps = append(steps, -window/3, -2*window)
	}
	for range rapid.IntRange(5, 40).Draw(rt, "length") {
		switch op := rapid.IntRange(0, 15).Draw(rt, "op"); {
		case op < 9:
			w.acquire()
		case op < 13:
			w.now = w.now.Add(rapid.SampledFrom(steps).Draw(rt, "time"))
			w.setTime(w.now)
		default:
			w.correct(op)
		}
		w.compare()
	}
}

// forget leaves those grants whose tokens neither key may have forgotten: when older
// ones go is not told.
func (w *sequence) forget() {
	w.latest = max(w.latest, w.now.UnixMicro())
	w.held = slices.DeleteFunc(w.held, func(h grant) bool { return h.at <= w.latest-time.Minute.Microseconds() })
}

func (w *sequence) acquire() {
	w.forget()
	var calls []*Call
	a := w.args()
	for range rapid.SampledFrom([]int{1, 1, 1, 1, 1, 2, 5, 20}).Draw(w.T, "at once") {
		if rapid.IntRange(0, 9).Draw(w.T, "another template") == 0 {
			a = w.args()
		}
		w.tokens++
		a.Token = w.tokens
		if len(w.held) > 0 && rapid.IntRange(0, 9).Draw(w.T, "again") == 0 {
			a.Token = rapid.SampledFrom(w.held).Draw(w.T, "held").token
		}
		b := a
		b.Rules = one(w.coalesced, a.Rules[0].Numbers, a.Rules[0].Cost)
		calls = append(calls, &Call{AcquireArgs: b})
	}
	if err := AcquireMany(w.ctx, w.rdb, calls); err != nil {
		w.Fatal(err)
	}
	for i, b := range calls {
		c := b.AcquireArgs
		c.Rules, c.WantLeft = one(w.single, b.Rules[0].Numbers, b.Rules[0].Cost), true
		want, err := Acquire(w.ctx, w.rdb, c)
		if err != nil || b.Err != nil {
			w.Fatal(err, b.Err)
		}
		want.Left = []int{0}
		if diff := gocmp.Diff(want, b.AcquireReply); diff != "" {
			w.Fatalf("call %d of %d, %+v, at %d us: coalesced (+) and alone (-) differ:\n%s", i+1, len(calls), c, w.now.UnixMicro(), diff)
		}
		if want.Status == Granted {
			w.held = slices.DeleteFunc(w.held, func(h grant) bool { return h.token == b.Token }) // one that was lost with the ledger
			w.held = append(w.held, grant{b.Token, b.Rules[0].Cost, want.At.UnixMicro()})
		}
	}
}

func (w *sequence) args() AcquireArgs {
	n := rapid.SampledFrom(w.limits).Draw(w.T, "limit")
	cost := rapid.OneOf(rapid.Just(1), rapid.IntRange(1, min(4, n.Permits)), rapid.IntRange(1, n.Permits)).Draw(w.T, "cost")
	a := AcquireArgs{
		Rules: one(w.coalesced, n, cost), MaxWait: -1, Mode: rapid.SampledFrom([]Mode{Try, GrantOrBook}).Draw(w.T, "mode"),
		Inline: rapid.SampledFrom([]time.Duration{0, 50 * time.Millisecond, time.Hour}).Draw(w.T, "inline"),
	}
	if a.Mode == GrantOrBook {
		a.Job = "a"
		if rapid.IntRange(0, 5).Draw(w.T, "may wait") > 0 {
			a.MaxWait = rapid.SampledFrom([]time.Duration{0, 30 * time.Millisecond, time.Second}).Draw(w.T, "longest")
		}
	}
	return a
}

// correct gives back, adjusts, leaves the line, closes or opens the key, or loses the ledger.
func (w *sequence) correct(op int) {
	n := rapid.SampledFrom(w.limits).Draw(w.T, "limit")
	w.tokens++
	token, cost, adjustment := w.tokens, 1, w.tokens
	if w.forget(); len(w.held) > 0 {
		h := rapid.SampledFrom(w.held).Draw(w.T, "held")
		token, cost = h.token, h.cost
	}
	differs := rapid.IntRange(-cost, 9).Draw(w.T, "difference")
	if differs < 0 { // what is given back counts as spent before: its token may go with it
		w.held = slices.DeleteFunc(w.held, func(h grant) bool { return h.token == token })
	}
	closed := rapid.SampledFrom([]time.Duration{0, n.Window / 3, n.Window}).Draw(w.T, "closed for")
	lose := rapid.IntRange(0, 5).Draw(w.T, "lose") == 0
	var answers []string
	for _, k := range []LimitKeys{w.coalesced, w.single} {
		var got any
		var err error
		switch {
		case lose:
			got, err = Reset(w.ctx, w.rdb, k, n)
		case op == 13:
			got, err = Adjust(w.ctx, w.rdb, AdjustArgs{Rules: one(k, n, differs), Token: token, Charge: adjustment})
		case op == 15:
			got, err = Close(w.ctx, w.rdb, CloseArgs{Rules: one(k, n, 1), Rule: 1, For: closed})
		default:
			a := CancelArgs{Rules: one(k, n, cost), Job: "a"}
			if op == 14 {
				a.Token = token
			}
			got, err = Cancel(w.ctx, w.rdb, a)
		}
		if err != nil {
			w.Fatal(err)
		}
		answers = append(answers, fmt.Sprintf("%+v", got))
	}
	if answers[0] != answers[1] {
		w.Fatalf("a correction answers %s on the key of coalesced calls, %s on that of single ones", answers[0], answers[1])
	}
}

// compare looks at the ledgers, at who holds grants that a copy may still ask for,
// and at the lives of all keys.
func (w *sequence) compare() {
	if short, long := w.raw.Get(w.ctx, w.coalesced.ledger).Val(), w.raw.Get(w.ctx, w.single.ledger).Val(); short != long {
		w.Fatalf("at %d us the ledgers are\n%q by coalesced calls,\n%q by single ones", w.now.UnixMicro(), short, long)
	}
	w.forget()
	if len(w.held) > 0 {
		var tokens []string
		for _, h := range w.held {
			tokens = append(tokens, luascripts.TokenText(h.token))
		}
		short, long := w.raw.ZMScore(w.ctx, w.coalesced.tokens, tokens...).Val(), w.raw.ZMScore(w.ctx, w.single.tokens, tokens...).Val()
		if diff := gocmp.Diff(long, short); diff != "" {
			w.Fatalf("at %d us the scores of %+v of coalesced calls (+) and single ones (-) differ:\n%s", w.now.UnixMicro(), w.held, diff)
		}
	}
	for _, k := range w.raw.Keys(w.ctx, "hw:*").Val() {
		if ttl := w.raw.PTTL(w.ctx, k).Val(); ttl == -1 {
			w.Fatalf("%s has no TTL", k)
		}
	}
}
