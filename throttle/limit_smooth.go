package throttle

import (
	"math"
	"time"
)

// Leaky is the leaky bucket as a queue: one permit each per/n, nothing stored.
// A job pays for the one before it: it waits until that one's permits have
// leaked out, whatever it costs itself.
//
//	instant = max(now, the grant before + its cost*per/n)
//
// With Leaky(10, time.Second) and one permit at 0, a call at 30 ms is told to
// wait 70 ms; when it takes 5 permits at 100 ms, the next goes at 600 ms. Its
// excess is the cost of one job less 1: none when each costs 1.
//
// n is 1 to [PermitsMax], per [WindowMin] to [WindowMax]. Choose it when jobs of
// any cost must go, evenly; [GCRA] with burst 1 refuses a cost above 1.
func Leaky(n int, per time.Duration) Limit {
	return Limit{kind: kindLeaky, permits: n, window: per}
}

// Smooth is [Leaky] that stores up to burst permits while nobody comes. It
// starts empty. A job pays for the one before it, and stored permits pay first.
//
//	instant = max(now, V)   V = max(V before, now - burst*per/n), then + cost*per/n
//
// With Smooth(1, time.Second, 1) callers that ask for 1, 2, 3, 4, 5 permits one
// after another wait 0, 1, 2, 3, 4 s. With Smooth(5, time.Second, 5), after a
// second or more of silence, 1, 1, 3 and 1 permits go at once, the next waits
// 200 ms. Its excess: burst, and the cost of one job less 1.
//
// Bounds as with [Leaky]; burst is 0 to [PermitsMax] and must be stored within
// [WindowMax]. In text, a missing burst is n. It is Guava's SmoothBursty, exact
// to the microsecond at any rate. Choose it when a large job must not wait for
// its own size.
func Smooth(n int, per time.Duration, burst int) Limit {
	return Limit{kind: kindSmooth, permits: n, window: per, burst: burst}
}

// WarmUp is [Leaky] whose permits take longer while it is cold: up to cold
// times per/n. It is cold at the start and after a pause of over; in use it
// warms up within over.
//
//	s = per/n          warm = over/(2s)     most = warm + 2*over/(s + cold*s)
//	a permit with x stored takes s for x <= warm, else s + (x-warm)*(cold-1)*s/(most-warm)
//	while nobody comes, x grows by most/over per unit of time
//
// With WarmUp(2, time.Second, 4*time.Second, 3) callers one after another wait
// 0, 1.375, 1.125, 0.875, 0.625, 0.5, 0.5 s. Its excess is the cost of one job
// less 1: no permit takes less than per/n.
//
// Bounds as with [Leaky]; over is [WindowMin] to [WindowMax] and stores at most
// 10^12 permits; cold is 1 to 1000 in thousandths, and cold*per/n is at most
// [WindowMax]. In text, over is required and a missing cold is 3. It is Guava's
// SmoothWarmingUp, which without an over admits everything: here that is
// refused. Choose it for a server that needs its caches filled first.
func WarmUp(n int, per, over time.Duration, cold float64) Limit {
	l := Limit{kind: kindWarmUp, permits: n, window: per, over: over}
	milli := math.Round(cold * 1000)
	// A factor that was computed, such as 0.1*12, is some 1e-13 off.
	if math.Abs(cold*1000-milli) > 1e-6 || math.Abs(milli) > math.MaxInt32 || math.IsNaN(cold) {
		l.coldBad = math.Float64bits(cold)
	} else {
		l.coldMilli = int(milli)
	}
	return l
}
