package memory

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/headwayq/headway/internal/limitscripts"
)

// given is a grant that a trace got.
type given struct {
	at, cost int64
	token    uint64
	worth    int64
	refunded bool
}

// history is a random trace on one key.
type history struct {
	*rapid.T
	*scene
	limit  limitscripts.Numbers
	grants []given
}

// anyLimit draws a limit of a kind with numbers that meet their edges often.
func anyLimit(t *rapid.T, kind limitscripts.Kind) limitscripts.Numbers {
	n := limitscripts.Numbers{Kind: kind, Permits: rapid.SampledFrom([]int{1, 2, 3, 7, 10}).Draw(t, "n")}
	n.Window = rapid.SampledFrom([]time.Duration{10 * ms, time.Second, 13 * time.Second}).Draw(t, "W")
	switch kind {
	case limitscripts.GCRA, limitscripts.Step:
		n.Burst = rapid.SampledFrom([]int{1, 2, 5, 12}).Draw(t, "burst")
	case limitscripts.Smooth:
		n.Burst = rapid.SampledFrom([]int{0, 1, 4}).Draw(t, "burst")
	case limitscripts.WarmUp:
		n.Warm = rapid.SampledFrom([]time.Duration{ms, time.Second, 8 * time.Second}).Draw(t, "warm")
		n.ColdMilli = rapid.SampledFrom([]int{1000, 1500, 3000}).Draw(t, "cold")
	case limitscripts.Calendar:
		n.Short = n.Window - n.Window/10
	}
	return n
}

// costMost is the highest cost that a limit can grant at all.
func costMost(n limitscripts.Numbers) int {
	switch n.Kind {
	case limitscripts.GCRA, limitscripts.Step:
		return n.Burst
	}
	return n.Permits
}

// civilStart is the begin of a calendar's window, long before a trace.
var civilStart = start.Add(-24 * time.Hour)

// civil gives a calendar its windows around now: each third one is shorter.
func (h *history) civil(n limitscripts.Numbers) limitscripts.Numbers {
	if n.Kind != limitscripts.Calendar {
		return n
	}
	round := 2*n.Window + n.Short
	from := civilStart
	from = from.Add(h.now.Sub(from) / round * round).Add(-8 * round)
	n.Bounds = nil
	for range 16 { // the newest grant may be far, where the clock was before
		for _, w := range []time.Duration{n.Window, n.Window, n.Short} {
			n.Bounds = append(n.Bounds, from)
			from = from.Add(w)
		}
	}
	return n
}

// window is the number of a calendar's window.
func (h *history) window(n limitscripts.Numbers, at int64) int64 {
	w, short := n.Window.Microseconds(), n.Short.Microseconds()
	since := at - civilStart.UnixMicro()
	round, rest := since/(2*w+short), since%(2*w+short)
	return 3*round + min(rest/w, 2)
}

func (h *history) move(back bool) {
	w := h.limit.Window
	steps := []time.Duration{0, time.Microsecond, w / 10, w / time.Duration(h.limit.Permits), w - time.Microsecond, w, w / 2, 3 * w, 30 * w}
	if back {
		steps = append(steps, -w/3, -2*w)
	}
	h.now = h.now.Add(rapid.SampledFrom(steps).Draw(h.T, "time").Truncate(time.Microsecond))
}

func (h *history) acquire(cost int, inline time.Duration) limitscripts.AcquireReply {
	h.token++
	r := h.Acquire(limitscripts.AcquireArgs{
		Rules: h.one(h.civil(h.limit), cost), Token: h.token, Mode: limitscripts.GrantOrBook, Inline: inline, MaxWait: inline,
	})
	if r.Status == limitscripts.Granted {
		h.grants = append(h.grants, given{at: r.At.UnixMicro(), cost: int64(cost), token: h.token, worth: r.Worth[0]})
	}
	return r
}

// giveBack refunds any grant, also twice.
func (h *history) giveBack() {
	if len(h.grants) == 0 {
		return
	}
	g := &h.grants[len(h.grants)-1-rapid.IntRange(0, min(6, len(h.grants)-1)).Draw(h.T, "which")]
	worth := g.worth
	if rapid.IntRange(0, 3).Draw(h.T, "blind") == 0 {
		worth = 0
	}
	r := h.refund(h.civil(h.limit), int(g.cost), g.token, worth)
	if r.Status == limitscripts.Granted && g.refunded {
		h.Fatalf("the grant at %d was given back twice", g.at)
	}
	g.refunded = true // when its token is forgotten it counts for less than it did
}

// makeAnew lets one of the newest grants count from now on, if the limit admits that.
func (h *history) makeAnew(inline time.Duration) {
	if len(h.grants) == 0 {
		return
	}
	i := len(h.grants) - 1 - rapid.IntRange(0, min(6, len(h.grants)-1)).Draw(h.T, "which")
	g := h.grants[i]
	rules := h.one(h.civil(h.limit), int(g.cost))
	if rules[0].Worth = g.worth; rapid.IntRange(0, 3).Draw(h.T, "its worth is not known") == 0 {
		rules[0].Worth = 0
	}
	r := h.Acquire(limitscripts.AcquireArgs{Rules: rules, Token: g.token, Mode: limitscripts.Anew, Inline: inline, MaxWait: -1})
	if r.Status != limitscripts.Granted {
		return
	}
	if g.refunded {
		h.Fatalf("a grant that was given back is made anew")
	}
	g.at, g.worth = r.At.UnixMicro(), r.Worth[0]
	h.grants = append(slices.Delete(h.grants, i, i+1), g)
}

// live are the grants that were not given back.
func (h *history) live() []given {
	var out []given
	for _, g := range h.grants {
		if !g.refunded {
			out = append(out, g)
		}
	}
	return out
}

var kinds = []limitscripts.Kind{
	limitscripts.Sliding, limitscripts.Fixed, limitscripts.Calendar, limitscripts.GCRA, limitscripts.Step, limitscripts.Smooth, limitscripts.WarmUp,
}

// eachKind runs a property on random traces of each algorithm.
func eachKind(t *testing.T, run func(*history)) {
	t.Helper()
	t.Parallel()
	for _, kind := range kinds {
		t.Run(string(rune(kind)), func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(rt *rapid.T) {
				h := &history{T: rt, scene: newScene(), limit: anyLimit(rt, kind)}
				h.Keep(100 * time.Hour)
				run(h)
			})
		})
	}
}

// TestNeverOver asks at random, gives back at random, and lets the clock go
// backward: what remains never exceeds what the limit says.
func TestNeverOver(t *testing.T) {
	eachKind(t, func(h *history) {
		cost := rapid.IntRange(0, costMost(h.limit)).Draw(h.T, "equal cost")
		inline := rapid.SampledFrom([]time.Duration{0, h.limit.Window / 20}).Draw(h.T, "inline")
		for range rapid.IntRange(5, 80).Draw(h.T, "length") {
			h.move(true)
			switch rapid.IntRange(0, 6).Draw(h.T, "op") {
			case 0:
				h.giveBack()
				continue
			case 1, 2:
				h.makeAnew(inline)
				continue
			}
			c := cost
			if c == 0 {
				c = rapid.IntRange(1, costMost(h.limit)).Draw(h.T, "cost")
			}
			h.acquire(c, inline)
		}
		h.hold()
	})
}

// TestWaitIsTight: whoever comes at the instant that a refusal told is granted,
// and one who comes a microsecond before is not. Looking changes nothing.
func TestWaitIsTight(t *testing.T) {
	eachKind(t, func(h *history) {
		for range rapid.IntRange(3, 40).Draw(h.T, "length") {
			h.move(true)
			cost := rapid.IntRange(1, costMost(h.limit)).Draw(h.T, "cost")
			if rapid.IntRange(0, 4).Draw(h.T, "op") == 0 {
				h.giveBack()
			}
			r := h.acquire(cost, 0)
			if r.Status == limitscripts.Granted {
				continue
			}
			now := h.now
			h.now = r.At.Add(-time.Microsecond)
			early := h.Peek(h.key, limitscripts.PeekArgs{Numbers: h.civil(h.limit), Cost: cost}).Next
			h.now = r.At
			sharp := h.Peek(h.key, limitscripts.PeekArgs{Numbers: h.civil(h.limit), Cost: cost})
			if !early.Equal(r.At) || !sharp.Next.Equal(r.At) {
				h.Fatalf("cost %d was told %v; 1us before %v, at the instant %v", cost, r.At, early, sharp.Next)
			}
			if free := sharp.Free; free < cost && h.limit.Kind != limitscripts.Smooth && h.limit.Kind != limitscripts.WarmUp {
				h.Fatalf("%d free at the instant at which %d can go", free, cost)
			}
			if rapid.Bool().Draw(h.T, "wait") {
				if r := h.acquire(cost, 0); r.Status != limitscripts.Granted {
					h.Fatalf("cost %d at its instant: %+v", cost, r)
				}
			} else {
				h.now = now
			}
		}
	})
}

// TestWhatIsToldFreeIsFree: exactly as many permits as Peek tells can be had at once.
func TestWhatIsToldFreeIsFree(t *testing.T) {
	eachKind(t, func(h *history) {
		for range rapid.IntRange(3, 40).Draw(h.T, "length") {
			h.move(false)
			h.acquire(rapid.IntRange(1, costMost(h.limit)).Draw(h.T, "cost"), 0)
			if rapid.IntRange(0, 4).Draw(h.T, "op") == 0 {
				h.giveBack()
			}
			look := limitscripts.PeekArgs{Numbers: h.civil(h.limit), Cost: 1}
			free := h.Peek(h.key, look).Free
			look.Cost = max(1, free)
			if next := h.Peek(h.key, look).Next; free > 0 && !next.Equal(h.now) {
				h.Fatalf("%d free, which go at %v and not now", free, next)
			}
			look.Cost = free + 1
			if next := h.Peek(h.key, look).Next; next.Equal(h.now) && h.limit.Kind != limitscripts.Smooth && h.limit.Kind != limitscripts.WarmUp {
				h.Fatalf("%d free, but %d go now", free, free+1)
			}
		}
	})
}

// TestForgottenInTime: a key that expires as soon as it may decides as one that
// is kept.
func TestForgottenInTime(t *testing.T) {
	eachKind(t, func(h *history) {
		short := &history{T: h.T, scene: newScene(), limit: h.limit}
		for range rapid.IntRange(3, 60).Draw(h.T, "length") {
			h.move(false)
			if h.now.Sub(start) > 50*time.Minute && h.limit.Kind == limitscripts.Smooth {
				return // an idle hour later nothing is stored any more
			}
			short.now = h.now
			cost := rapid.IntRange(1, costMost(h.limit)).Draw(h.T, "cost")
			kept, fresh := h.acquire(cost, 0), short.acquire(cost, 0)
			if kept.Status != fresh.Status || !kept.At.Equal(fresh.At) {
				h.Fatalf("kept %+v, else %+v", kept, fresh)
			}
		}
	})
}

// TestWaitIsTightAfterChange: an instant that was told after a change holds,
// although nothing is written until somebody is granted.
func TestWaitIsTightAfterChange(t *testing.T) {
	eachKind(t, func(h *history) {
		switch h.limit.Kind {
		case limitscripts.Fixed, limitscripts.Calendar: // what is over the new limit is told as owed
			return
		}
		h.wander("before")
		h.limit = anyLimit(h.T, h.limit.Kind)
		h.move(false)
		cost := rapid.IntRange(1, costMost(h.limit)).Draw(h.T, "cost")
		r := h.acquire(cost, 0)
		if r.Status == limitscripts.Granted {
			return
		}
		for range 3 {
			h.now = h.now.Add(r.At.Sub(h.now) / 2).Truncate(time.Microsecond)
			if again := h.acquire(cost, 0); again.Status == limitscripts.Granted || !again.At.Equal(r.At) {
				h.Fatalf("told %v, and at %v %+v", r.At, h.now, again)
			}
			if r.At.Sub(h.now) < 2*time.Microsecond {
				break
			}
		}
		h.now = r.At
		if again := h.acquire(cost, 0); again.Status != limitscripts.Granted {
			h.Fatalf("told %v, and then %+v", r.At, again)
		}
	})
}
