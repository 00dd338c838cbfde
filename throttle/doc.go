// Package throttle decides when work may run: limits, kept in Redis, that hold
// over any number of processes.
//
// A [Limit] is a number of permits per window. A [Limiter] is a named limit on
// a Redis server; it counts permits per key (a phone number, a tenant). What
// may not run yet gets a booking, a place of its own in the key's line, and the
// instant that follows from that place, so nobody has to ask twice:
//
//	sms, err := throttle.New(rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
//	...
//	if err := sms.Acquire(ctx, phone, 1); err != nil {
//		return err
//	}
//
// # Which call
//
//	[Limiter.TryAcquire]     answers now, books nothing, never passes those who wait
//	[Limiter.Acquire]        blocks until granted; inside a worker it defers the task instead
//	[Limiter.AcquireWithin]  the same, but fails at once when the wait would exceed a bound
//	[Limiter.Book]           joins the line on behalf of a job and tells its instant
//	[Limiter.Redeem]         turns a booking into a grant, or tells its instant anew
//	[Limiter.Cancel]         leaves the line
//	[Limiter.Refund]         gives a grant back that was not used
//	[Limiter.Peek]           looks, and changes nothing
//	[Limiter.Reset]          forgets what was spent
//
// # The algorithm
//
// One ledger per key holds the instants of the grants and alone decides. One
// line per key holds who waits, as ticket numbers and not as instants: an
// instant is computed from the ledger and the permits ahead whenever it is
// asked for, so a late grant or a cancel re-plans the whole line for free. For
// n permits in any window W,
//
//	slot(k) = max(now, (n-k+1)-th newest grant + W)         for k <= n
//	slot(k) = slot((k-1) mod n + 1) + W*floor((k-1)/n)      for k > n
//
// is the instant of the k-th permit from now, and a job's instant is
// slot(permits ahead of it + its cost). Windows are half open: a grant exactly
// W after another is allowed. Nothing is granted before the newest grant, so a
// clock that goes backwards credits nothing. A refunded grant frees its permits
// from its own instant on.
//
// # Time, Redis, concurrency
//
// The clock of the Redis server decides about grants and instants; the clock of
// the client decides about nothing. When Redis is away every call returns its
// error and nothing is granted. A call of TryAcquire or Acquire whose answer was
// lost is taken back with its token, so that it is charged once or not at all;
// one of Redeem is repeated, or refunded, by whoever holds the token. All methods are safe for
// concurrent use. This package does not know about tasks or queues.
package throttle
