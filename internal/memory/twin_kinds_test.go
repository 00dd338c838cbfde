package memory_test

import (
	"time"

	"pgregory.net/rapid"

	"github.com/headwayq/headway/internal/limitscripts"
)

// kinds draw the numbers of a limit; the last draws those of any.
var kinds = []limitKind{
	{"sliding", func(t *rapid.T) limitscripts.Numbers { return numbers(t, limitscripts.Sliding) }},
	{"fixed", func(t *rapid.T) limitscripts.Numbers { return numbers(t, limitscripts.Fixed) }},
	{"calendar", func(t *rapid.T) limitscripts.Numbers { return numbers(t, limitscripts.Calendar) }},
	{"gcra", func(t *rapid.T) limitscripts.Numbers { return numbers(t, limitscripts.GCRA) }},
	{"step", func(t *rapid.T) limitscripts.Numbers { return numbers(t, limitscripts.Step) }},
	{"smooth", func(t *rapid.T) limitscripts.Numbers { return numbers(t, limitscripts.Smooth) }},
	{"warmup", func(t *rapid.T) limitscripts.Numbers { return numbers(t, limitscripts.WarmUp) }},
	{"leases", func(t *rapid.T) limitscripts.Numbers { return numbers(t, limitscripts.Leases) }},
	{"changing", func(t *rapid.T) limitscripts.Numbers {
		return numbers(t, rapid.SampledFrom([]limitscripts.Kind{
			limitscripts.Sliding, limitscripts.Fixed, limitscripts.Calendar, limitscripts.GCRA, limitscripts.Step, limitscripts.Smooth, limitscripts.WarmUp,
			limitscripts.Leases,
		}).Draw(t, "kind"))
	}},
}

type limitKind struct {
	name string
	draw func(*rapid.T) limitscripts.Numbers
}

func numbers(t *rapid.T, kind limitscripts.Kind) limitscripts.Numbers {
	n := limitscripts.Numbers{
		Kind: kind, Permits: rapid.IntRange(1, 7).Draw(t, "n"),
		Window: rapid.SampledFrom([]time.Duration{1100 * time.Microsecond, 1000003 * time.Microsecond, time.Second, time.Minute, 5 * time.Minute}).Draw(t, "window"),
	}
	spare := 9
	if kind != limitscripts.Sliding && kind != limitscripts.Leases && kind != limitscripts.WarmUp && rapid.IntRange(0, 4).Draw(t, "large") == 0 { // as of bytes
		n.Permits = rapid.SampledFrom([]int{1 << 40, 1<<33 + 7, 3_000_000_019, 1 << 21, 1<<20 + 1}).Draw(t, "of")
		spare = n.Permits
	}
	switch kind {
	case limitscripts.Sliding: // a long ring is not read at once
		n.Permits = rapid.OneOf(rapid.Just(n.Permits), rapid.Just(n.Permits), rapid.IntRange(50, 90)).Draw(t, "ring")
	case limitscripts.GCRA:
		n.Burst = rapid.IntRange(1, spare).Draw(t, "burst")
	case limitscripts.Step:
		n.Burst = n.Permits + rapid.IntRange(0, 5).Draw(t, "more burst")
	case limitscripts.Smooth:
		n.Burst = rapid.IntRange(0, 6).Draw(t, "stored")
	case limitscripts.WarmUp:
		n.Warm = rapid.SampledFrom([]time.Duration{time.Millisecond, 4 * time.Second, time.Minute}).Draw(t, "over")
		n.ColdMilli = rapid.SampledFrom([]int{1000, 2500, 3000, 10000}).Draw(t, "cold")
	case limitscripts.Calendar:
		n.Window, n.Short = time.Minute, 20*time.Second
	}
	return n
}

// most is the largest cost that a limit can grant.
func most(n limitscripts.Numbers) int {
	switch n.Kind {
	case limitscripts.GCRA, limitscripts.Step:
		return n.Burst
	case limitscripts.Smooth, limitscripts.WarmUp:
		return n.Permits + 3
	case limitscripts.Leases:
		return 1
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
