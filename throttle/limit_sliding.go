package throttle

import "time"

// Sliding is the exact sliding-window log: at most n permits in any window of
// length per, however the window is laid. Its excess over n is 0. Windows are
// half open: with Sliding(1, time.Minute) a permit at 8:00:00 lets the next one
// go at 8:01:00 sharp, and a call at 8:00:30 is told to wait 30 s.
//
//	instant = max(now, (n-k+1)-th newest grant + per)   for the k-th permit from now, k <= n
//
// n is 1 to [PermitsMax], per is [WindowMin] to [WindowMax] in whole
// microseconds; [Limit.Validate] says what is wrong with others. An idle key
// costs one small Redis string, and each further permit in the window 7 bytes.
//
// Choose it when the limit is a promise; choose [GCRA] when n is so large that a
// record per permit is too much. The algorithm is that of Redisson's
// RRateLimiter, with an exact wait for n permits and a place in line instead of
// one delay for all.
func Sliding(n int, per time.Duration) Limit {
	return Limit{kind: kindSliding, permits: n, window: per}
}

// Fixed is the counter: a window of length per starts with the first permit
// that falls into none, and holds n permits.
//
//	instant = now, or the end of the window + per*floor((j-1)/n)   for the j-th permit beyond it
//
// Its excess: n-1. No window of its own holds more than n, but a window laid
// over the edge of two holds up to 2n-1, or 2n when the permit that began the
// first was given back. With Fixed(10, time.Hour), one permit
// at 8:00 and nine at 8:59, the next call at 8:59 is told to wait 1 m; ten may
// go at 9:00, which makes nineteen in that minute.
//
// Bounds as with [Sliding]. A key costs one small Redis string, however large n
// is. Choose it for quotas where the edge does not matter. It is the counter of
// Redis with Lua (INCR with an expiry, @CountLimit), without its lost expiries.
func Fixed(n int, per time.Duration) Limit {
	return Limit{kind: kindFixed, permits: n, window: per}
}
