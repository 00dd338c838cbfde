// Package throttle decides when work may run: limits, kept in Redis, that hold
// over any number of processes.
//
// A [Limit] is an algorithm with its numbers; [ParseLimit] reads one, and
// docs/algorithms.md compares them. A [Limiter] is a named limit on a Redis
// server; it counts permits per key (a phone number, a tenant). A [Policy] is
// several of them that are decided together. What may not run yet gets a
// booking, a place of its own in the key's line, and the instant that follows from
// that place. So no job has to ask again and again:
//
//	sms, err := throttle.New(rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
//	...
//	if err := sms.Acquire(ctx, phone, 1); err != nil {
//		return err
//	}
//
// Redis must not evict keys (maxmemory-policy noeviction): a limit whose state is evicted
// grants too much. [New] asks Redis nothing and can't tell; `headway doctor` does, and so does
// a pool of package worker when it starts.
//
// # Which call
//
//	[Limiter.TryAcquire]     answers now, books nothing, never passes jobs that wait
//	[Limiter.Acquire]        blocks until granted; inside a worker it defers the task instead
//	[Limiter.Reserve]        takes a place in line for the caller, to be asked about later
//	[Limiter.Peek]           reads the state of a key, and changes nothing
//	[Limiter.Available]      how many permits there are now
//	[Limiter.TimeUntil]      how long until a new job could have n
//	[Limiter.Reset]          forgets what was spent
//	[Limiter.SetLimit]       changes the limit for every process, while they run
//	[Limiter.CloseKey]       lets nothing through on a key for a while; [Limiter.CloseRule] on all of them
//	[Limiter.OpenKey]        ends that before its time, as [Limiter.OpenRule] does
//
// and with a [Request], of one rule ([Limiter.Policy]) or of several that are decided together
//
//	[NewPolicy]              puts them together: phone, then tenant, then provider
//	[Policy.TryAcquire]      takes from all of them or from none
//	[Policy.Acquire]         blocks until granted, or fails at once when [Request.MaxWait] would be exceeded
//	[Policy.Reserve]         takes a place, or books nothing when MaxWait would be exceeded
//	[Policy.Book]            joins the line on behalf of a job and returns its instant
//	[Policy.Redeem]          grants the permits of a job, or books it; asked again, it grants them or returns the new instant
//	[Policy.Cancel]          leaves the line
//	[Policy.Refund]          gives a grant back that was not used
//	[Policy.Renew]           keeps the leases of grants by a rule of [Concurrent]
//	[Policy.Release]         ends them: the work is done; it returns the jobs that are next
//
// What only a program that runs jobs needs is behind [ForWorkers].
//
// # The algorithm
//
// One ledger per key holds what was spent and alone decides. One line per key
// holds the jobs that wait, as ticket numbers and not as instants: an instant is computed
// from the ledger and the permits ahead whenever it is asked for, so a late
// grant or a cancel re-plans the whole line for free. Each kind of limit has a
// formula for it, see its constructor. That of [Sliding], n permits in any window W, is
//
//	instant(k) = max(now, (n-k+1)-th newest grant + W)         for k <= n
//	instant(k) = instant((k-1) mod n + 1) + W*floor((k-1)/n)   for k > n
//
// for the instant of the k-th permit from now. A job's instant is
// instant(permits ahead of it + its cost). Windows are half open: a grant exactly
// W after another is allowed. Nothing is granted before the newest grant, so a
// clock that goes backwards credits nothing. A refunded grant frees its permits
// from its own instant on.
//
// # Several rules
//
// A [Policy] asks its rules in one step, narrowest key first. A job that may
// not run yet waits in the line of the first key that holds it up, and the wider keys know
// nothing of it. In the narrower keys, which admitted it, it keeps its order among the
// jobs of the same policy. A rule that is written in another order, or with others, is
// another policy.
//
// A rule of [Concurrent] counts what runs and not what went: a grant holds a
// lease, renews it in time, and releases it. The lease of one that died ends by
// itself, and [Policy.Renew] returns [ErrLeaseLost] to a holder that stood still for so
// long. A holder that writes to a system which must not see two holders passes on
// [Decision.Fence].
//
// # Closing
//
// A key or a rule that is closed grants nothing until an instant that Redis knows,
// in every process, also in those that start later. Jobs that wait keep their places and
// go at the limit's pace from then on. Closing a rule takes effect as a change of its
// limit does: at once in the limiter that did it, and within a second in others.
//
// # Changing a limit at run time
//
// A limit that is stored in Redis ([Limiter.SetLimit]) goes before the one in code until it is taken away
// ([Limiter.UnsetLimit]); nothing has to be stored, and without it the one in
// code counts. [Limiter.LimitStatus] and [Limiter.WatchLimit] tell which it is.
//
// What is spent stays spent: the ledger is that of the key, not of the limit, so
// no key gets more than the new limit allows, counting what went under the old,
// also when the new one is of another kind. It counts what the old limit still
// knows, which is all of its last window: a limit with a longer window can't
// count what the shorter one has forgotten. Where a kind keeps no single grants
// (all but sliding), what went before the change can't be refunded any more.
// A booking keeps its place in the line, and gets a new instant: a caller that
// blocks in Acquire hears of it within a second, and a worker plans the deferred
// tasks anew, earlier or later. A job that waits for more permits than the new limit
// holds gets an [ExceedsLimitError] and leaves the line.
//
// A limiter looks at what is stored at most half a second before it decides, or
// up to a second while Redis is slow: for so long a process that has not heard
// yet goes by the old limit, on keys that no call has used under the new one.
// A ledger knows the version of the limit that it was written under, and makes a
// call with an older one read the limit again. (A call that is held up on its way
// is decided by the limit with which it was sent, on such keys, however late it
// arrives.) When a limiter can't read it refuses with
// [ErrUnavailable]; a stored limit that this version can't read is an
// [ErrStoredLimit], and nothing is granted. A client that reads from replicas of
// a Redis Cluster hears of a change when its replica has.
//
// # Time, Redis, concurrency
//
// The clock of the Redis server decides about grants and instants; the clock of
// the client decides about nothing, but for [NewLocal] and [FailLocal]. When
// Redis is unavailable every call returns its error and nothing is granted, unless
// [Config.OnUnavailable] or [Config.Shadow] say otherwise. A call of TryAcquire,
// Acquire or Reserve whose answer was lost is taken back with its token, so that
// it is charged once or not at all; one of Redeem is repeated, or refunded, by
// the holder of the token. All methods are safe for concurrent use. This package
// knows of tasks and queues only as names in events.
//
// # Where to read
//
//	limit.go        Limit; limit_kinds.go its kinds, limit_text.go its text
//	limiter.go      Limiter: a named limit on a server
//	policy.go       Policy: several limiters that decide together; rules.go checks them
//	config.go       Config, and what New refuses; errors.go the errors
//	request.go      Request and Decision; when the gates of a request are open
//	decide.go       one decision, from the check of the request to the count of the answer; tokens that are given back
//	limitinforce.go the limit in force: stored, read, changed, watched
//	waiter.go       callers that block in Acquire
//	reserve.go      Reserve
//	refund.go       what is given back: Cancel, Refund, calls whose answers were lost
//	charge.go       Adjust: a charge that is corrected after the work
//	lease.go        leases that are renewed while their holder works
//	fallback.go     what decides while Redis is away
//	store.go        where permits are counted, and calls of it that are repeated: cluster.go is for Redis Cluster,
//	                memory.go for this process
//	coalesce.go     calls of several goroutines in one script
//	workers.go      ForWorkers, for those who write a worker; bookmany.go books for many jobs
//	observer.go     what happens to permits, told to an observer
package throttle
