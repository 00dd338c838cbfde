package throttle

import "time"

// Bucket is the token bucket: it holds up to burst permits, is full at the
// start, and gains n permits per window, evenly, one each per/n. A job goes when
// all its permits are there.
//
//	instant = max(now, full - (burst-k)*per/n)   for the k-th permit from now,
//	          full being the instant at which the bucket is full again
//
// With Bucket(10, time.Second, 3) and 3 permits taken at 0, a call at 99 ms is
// told to wait 1 ms. Its excess: burst-1, so any window of length per holds up
// to n+burst-1. per/n is never rounded; only an instant is, up to the next
// microsecond.
//
// n and burst are 1 to [PermitsMax], per is [WindowMin] to [WindowMax], and the
// time to fill it, burst*per/n, at most [WindowMax]. In text, a missing burst is
// n. A key costs one small Redis string. Choose it when bursts are welcome and
// the mean counts.
//
// Bucket and [GCRA] with the same numbers admit exactly the same: they are two
// names of one algorithm, and differ in what their text form means without a
// burst. The token bucket is that of Redis with Lua, but it fills continuously;
// see [SteppedBucket] for that which does not.
func Bucket(n int, per time.Duration, burst int) Limit {
	return Limit{kind: kindBucket, permits: n, window: per, burst: burst}
}

// SteppedBucket is the token bucket that gains its n permits at once, every
// per. It is full at the start, and the interval starts with the first permit
// taken from a full bucket.
//
//	instant = now, or the start of the interval + per*ceil((k-left)/n)   for the k-th permit from now
//
// With SteppedBucket(10, time.Second, 10) and 10 permits taken at 0, a call at
// 999 ms is told to wait 1 ms, and at 1 s ten go at once. Its excess: burst-1,
// as with [Bucket].
//
// Bounds as with [Bucket], but burst is at least n (what does not fit would be
// lost at every tick), and the time to fill is ceil(burst/n)*per. In text it is
// a bucket with the word "step". Choose it when a provider refills like this. It
// is the token bucket of Redis with Lua, which keeps the rest of an interval too.
func SteppedBucket(n int, per time.Duration, burst int) Limit {
	return Limit{kind: kindStepped, permits: n, window: per, burst: burst}
}

// GCRA is the generic cell rate algorithm: permits come evenly, one each per/n,
// and up to burst of them may come at once after a pause.
//
//	instant = max(now, TAT + (k-burst)*per/n)   for the k-th permit from now,
//	          TAT being the newest grant's theoretical time plus that of its permits
//
// With GCRA(10, time.Second, 1) and a permit at 0, a call at 30 ms is told to
// wait 70 ms. Its excess: burst-1, so none with burst 1.
//
// Bounds as with [Bucket]; a cost above burst is never granted. In text, a
// missing burst is 1: even spacing. That is its only difference from [Bucket],
// whose missing burst is n; with the same numbers the two admit exactly the
// same. Choose it for even spacing, or for a large n. It comes from ITU-T I.371,
// where it polices telecom cells, and is known on Redis from redis-cell.
func GCRA(n int, per time.Duration, burst int) Limit {
	return Limit{kind: kindGCRA, permits: n, window: per, burst: burst}
}
