package memory_test

import (
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/headwayq/headway/internal/limitscripts"
)

func (w *twin) peek(r *rule) {
	p := w.ruleCall(r, rapid.IntRange(1, most(r.n)).Draw(w.T, "newcomer"))
	a := limitscripts.PeekArgs{Numbers: p.Numbers, Cost: p.Cost, Most: 250, Closed: p.Closed}
	got, err := limitscripts.Peek(w.ctx, w.rdb, r.key, a)
	w.fail(err)
	want := w.store.Peek(r.key, a)
	got.Life, want.Life = 0, 0 // by another clock
	w.same("peek", got, want)
}

// places compares the tickets and promises, which decide later on.
func (w *twin) places(r *rule) {
	got, want := map[string]map[string]int64{}, w.store.Places(r.key)
	const told = 1 << 51 // in one set with the tickets, so much higher
	kinds := []string{":line", ":turns:p0", ":turns:p1", ":turns:p2"}
	sets := make([]*redis.ZSliceCmd, len(kinds))
	_, err := w.raw.Pipelined(w.ctx, func(pipe redis.Pipeliner) error {
		for i, kind := range kinds {
			sets[i] = pipe.ZRangeWithScores(w.ctx, r.key.Ledger()+kind, 0, -1)
		}
		return nil
	})
	w.fail(err)
	for i, kind := range kinds {
		for _, z := range sets[i].Val() {
			name, score := r.key.Ledger()+kind, int64(z.Score)
			member := z.Member.(string)
			switch {
			case member[0] == '#':
				name, score = r.key.Ledger()+":kept", score/8-1<<52
			case member[0] == '~':
				name, score = r.key.Ledger()+":granted", score/64-1<<52
			case score >= told:
				name, score = r.key.Ledger()+":promised", score-told
			}
			if got[name] == nil {
				got[name] = map[string]int64{}
			}
			got[name][strings.TrimLeft(member, "@#~")] = score
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
	w.equal("places", got, want)
}

// toTheInstant goes to when a newcomer would go, and 1 us before: a wait is
// tight.
func (w *twin) toTheInstant(r *rule) {
	n := w.numbers(r)
	cost := rapid.IntRange(1, min(4, most(r.n))).Draw(w.T, "cost")
	look, err := limitscripts.Peek(w.ctx, w.rdb, r.key, limitscripts.PeekArgs{Numbers: n, Cost: cost})
	w.fail(err)
	at := look.Next
	if look.Status != 1 || look.Waiting > 0 || !at.After(w.now) || at.Sub(w.now) > time.Hour || n.Bounds != nil && !at.Before(n.Bounds[len(n.Bounds)-1]) {
		return
	}
	try := func(want limitscripts.Status) {
		w.tokens++
		a := limitscripts.AcquireArgs{
			Rules: []limitscripts.RuleCall{{LimitKeys: r.key, Numbers: n, Cost: cost}}, Token: w.tokens, Mode: limitscripts.Try, MaxWait: -1,
		}
		got, err := limitscripts.Acquire(w.ctx, w.rdb, a)
		w.fail(err)
		w.same("try at the instant", got, w.store.Acquire(a))
		if got.Status != want {
			w.Fatalf("at %d us under %+v, %d us after the instant %d: status %d, want %d",
				w.now.UnixMicro(), n, w.now.Sub(at).Microseconds(), at.UnixMicro(), got.Status, want)
		}
	}
	w.moveTo(at.Add(-time.Microsecond))
	before, err := w.raw.Get(w.ctx, r.key.Ledger()).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		w.Fatal(err)
	}
	try(limitscripts.Refused)
	if after := w.raw.Get(w.ctx, r.key.Ledger()).Val(); after != before {
		w.Fatalf("a refusal wrote %q over %q", after, before)
	}
	w.moveTo(at)
	try(limitscripts.Granted)
}

// lives checks that every key has a TTL.
func (w *twin) lives() {
	keys, err := w.raw.Keys(w.ctx, "hw:*").Result()
	w.fail(err)
	lives := make([]*redis.DurationCmd, len(keys))
	_, err = w.raw.Pipelined(w.ctx, func(pipe redis.Pipeliner) error {
		for i, k := range keys {
			lives[i] = pipe.PTTL(w.ctx, k)
		}
		return nil
	})
	w.fail(err)
	for i, k := range keys {
		if lives[i].Val() == -1 {
			w.Fatalf("%s has no TTL", k)
		}
	}
}
