package throttle_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/headwayq/headway/internal/judge"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// Whatever a limit is changed to, no grant under the new one breaks it, counting
// what was granted under the old one.
func TestChangedLimitIsNeverExceeded(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	rapid.Check(t, func(rt *rapid.T) {
		ctx := context.Background()
		redistest.Flush(t, s.raw)
		before := drawLimit(rt, "before", 2*time.Minute)
		after := drawLimit(rt, "after", before.Window())
		now := int64(0)
		// take tries at a random later time, and again at the instant it is told.
		take := func(l *throttle.Limiter, window time.Duration) (judge.Spent, bool) {
			now += rapid.Int64Range(0, window.Microseconds()/2).Draw(rt, "later")
			cost := rapid.IntRange(1, min(2*l.Limit().Permits(), l.Limit().MaxCost())).Draw(rt, "cost")
			for range 2 {
				s.at(time.Duration(now) * us)
				d, err := l.TryAcquire(ctx, key, cost)
				if err != nil {
					rt.Fatal(err)
				}
				if d.Granted {
					return judge.Spent{At: now, Cost: cost}, true
				}
				if now = d.At.Sub(start).Microseconds(); rapid.Bool().Draw(rt, "go on") {
					return judge.Spent{}, false
				}
			}
			rt.Fatalf("%v: refused at the instant it was told", l.Limit())
			return judge.Spent{}, false
		}
		var h history
		old, err := throttle.New(s.rdb, "rule", before, throttle.Config{})
		if err != nil {
			rt.Skip("these numbers go together in no limit")
		}
		changed, err := throttle.New(s.rdb, "rule", after, throttle.Config{})
		if err != nil {
			rt.Skip("these numbers go together in no limit")
		}
		for range rapid.IntRange(1, 8).Draw(rt, "grants before") {
			if g, ok := take(old, before.Window()); ok {
				h.old = append(h.old, g)
			}
		}
		if len(h.old) == 0 {
			return
		}
		// A refusal moved the clock: the change comes at any time after the newest grant.
		now = h.old[len(h.old)-1].At + rapid.Int64Range(0, after.Window().Microseconds()).Draw(rt, "change")
		s.at(time.Duration(now) * us)
		owed, err := old.Peek(ctx, key, 0)
		if err != nil {
			rt.Fatal(err)
		}
		paced := family(after) == family(before) && (family(after) == "smooth" || family(after) == "warmup")
		if paced { // the pace that was kept before the change is no debt
			next, err := changed.Peek(ctx, key, 0)
			if err != nil {
				rt.Fatal(err)
			}
			if latest := latestOf(owed.Next, s.now).Add(us); next.Next.After(latest) {
				rt.Fatalf("%v, then %v: the next goes at %v, want it when the old debt is paid, at %v", before, after, next.Next, latest)
			}
			h.old = nil
		}
		for range 8 {
			g, ok := take(changed, after.Window())
			if !ok {
				continue
			}
			h.new = append(h.new, g)
			if breach := h.breach(after); breach != "" {
				rt.Fatalf("%v, then %v: the grant of %d at %d: %s\nbefore %v\nafter %v", before, after, g.Cost, g.At, breach, h.old, h.new)
			}
			if paced && g.At < owed.Next.Sub(start).Microseconds() {
				rt.Fatalf("%v, then %v: a grant at %d before the old debt was paid", before, after, g.At)
			}
		}
	})
}

func latestOf(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// history is what was granted on a key: the instants in microseconds.
type history struct {
	old, new []judge.Spent // under the limit before, and the one after the change
}

// permitsIn counts those in from < at <= to.
func permitsIn(grants []judge.Spent, from, to int64) int {
	n := 0
	for _, g := range grants {
		if from < g.At && g.At <= to {
			n += g.Cost
		}
	}
	return n
}

// breach says in which way the last grant breaks the limit in force, given all
// that was granted in its window before the change.
func (h history) breach(limit throttle.Limit) string {
	n, window, burst := limit.Permits(), limit.Window().Microseconds(), limit.Burst()
	all := slices.Concat(h.old, h.new)
	switch limit.Kind() {
	case "sliding":
		if last := len(all) - 1; slices.Contains(judge.Windows(all, n, limit.Window()), last) {
			return fmt.Sprintf("more than %d permits in its window", n)
		}
	case "fixed":
		if len(h.old) == 0 { // a window may begin with a permit that was given back
			if over := judge.Windows(all, 2*n, limit.Window()); len(over) > 0 {
				return fmt.Sprintf("more than %d permits in a window", 2*n)
			}
		} else if !h.fixedHolds(n, window) {
			return "no window of its own holds it"
		}
	case "calendar":
		civil := func(us int64) string { return fmt.Sprint(us / window) } // windows of UTC
		if last := len(all) - 1; slices.Contains(judge.NamedWindows(all, n, civil), last) {
			return fmt.Sprintf("more than %d permits in its civil window", n)
		}
	case "bucket", "gcra":
		refill := func(d int64) int { return int((d + 1) * int64(n) / window) } // a window in whole microseconds that holds both is d+1 long
		if stepped(limit) {
			refill = func(d int64) int { return n * int(d/window+1) }
		}
		return h.bucketBreach(burst, window, refill)
	default:
		return h.smoothBreach(burst, float64(window)/float64(n), window)
	}
	return ""
}

func stepped(limit throttle.Limit) bool { return strings.HasSuffix(limit.String(), " step") }

// since are the instants from which permits are counted: those of the grants
// in the last window before the change, and since.
func (h history) since(window int64) []int64 {
	var out []int64
	for _, g := range h.old {
		if g.At > h.old[len(h.old)-1].At-window {
			out = append(out, g.At)
		}
	}
	for _, g := range h.new {
		out = append(out, g.At)
	}
	return out
}

// bucketBreach: what was spent before the change can empty a bucket, but not
// more than that.
func (h history) bucketBreach(burst int, window int64, refill func(int64) int) string {
	last := h.new[len(h.new)-1]
	for _, from := range h.since(window) {
		spent := min(burst, permitsIn(h.old, from-1, last.At)) + permitsIn(h.new, from-1, last.At)
		if most := burst + refill(last.At-from); spent > most {
			return fmt.Sprintf("%d permits within %d µs, want at most %d", spent, last.At-from, most)
		}
	}
	return ""
}

// smoothBreach: all permits before it are paid, but for what was stored.
func (h history) smoothBreach(stored int, each float64, window int64) string {
	last := h.new[len(h.new)-1]
	for _, from := range h.since(window) {
		if from == last.At {
			continue
		}
		owed := permitsIn(h.old, from-1, last.At) + permitsIn(h.new, from-1, last.At) - last.Cost
		if paid := from + int64(math.Floor(float64(owed-stored)*each)); last.At < paid {
			return fmt.Sprintf("%d permits since %d are paid at %d", owed, from, paid)
		}
	}
	return ""
}

// fixedHolds looks for a way to lay the window in which the change fell, such
// that no window holds more than n.
func (h history) fixedHolds(n int, window int64) bool {
	newest := h.old[len(h.old)-1].At
	for _, g := range h.old {
		begin := g.At
		if begin <= newest-window {
			continue
		}
		used, ok := permitsIn(h.old, begin-1, newest), true
		for _, b := range h.new {
			if b.At >= begin+window {
				begin, used = b.At, 0
			}
			used += b.Cost
			ok = ok && used <= n
		}
		if ok {
			return true
		}
	}
	return false
}

// drawLimit draws a limit of any kind with a window of at most `longest`.
func drawLimit(rt *rapid.T, label string, longest time.Duration) throttle.Limit {
	n := rapid.OneOf(rapid.IntRange(1, 8), rapid.IntRange(1, 80)).Draw(rt, label+" n")
	window := time.Duration(rapid.Int64Range(1000, longest.Microseconds()).Draw(rt, label+" window")) * us
	burst := rapid.IntRange(0, n+2).Draw(rt, label+" burst")
	kinds := []throttle.Limit{
		throttle.Sliding(n, window), throttle.Fixed(n, window), throttle.Bucket(n, window, max(1, burst)), throttle.SteppedBucket(n, window, n+burst),
		throttle.GCRA(n, window, max(1, burst)), throttle.Leaky(n, window), throttle.Smooth(n, window, burst),
		throttle.WarmUp(n, window, time.Duration(rapid.Int64Range(1000, 2*longest.Microseconds()).Draw(rt, label+" over"))*us, float64(1+burst%8)),
	}
	if longest >= time.Minute {
		kinds = append(kinds, throttle.Calendar(n, throttle.Minute, "UTC"))
	}
	return rapid.SampledFrom(kinds).Draw(rt, label)
}

// family is which kinds keep their state over a change.
func family(limit throttle.Limit) string {
	switch k := limit.Kind(); k {
	case "leaky":
		return "smooth"
	case "bucket":
		if stepped(limit) {
			return "step"
		}
		return "gcra"
	default:
		return k
	}
}
