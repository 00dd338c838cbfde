// Package throttletest is for the tests of programs that use package throttle,
// and of limiters that stand in for its own. It needs no Redis.
//
// # A fake
//
// A [Fake] is what limiters count on in a test: the real algorithms and the real
// line, in memory, by a clock that the test moves, with faults on demand and a
// record of what was decided.
//
//	fake := throttletest.New(t)
//	sms := fake.Limiter("sms", throttle.Sliding(1, time.Minute), throttle.Config{})
//	sendAll(sms)
//	fake.Advance(time.Minute) // and the next one may go
//	fake.Away()               // and every call is an ErrUnavailable
//
// # Blocking calls
//
// Its clock stands still, so it serves the calls that answer now. What blocks
// (Acquire, the Wait of a reservation) is easiest to test in a bubble of
// testing/synctest, with a limiter of [throttle.NewLocal] that was made there:
// it waits in the bubble's time, which passes at once. On a fake a call may block
// too, until another goroutine moves the clock; not in a bubble, where time that
// passes is not that of the fake.
//
// # A suite for limiters
//
// [Run] and [RunInBubble] hold anything with the methods of a [Limiter] to what
// every limiter here does: the instants of each kind of limit to the microsecond,
// order and places of the line, refunds that count once, typed refusals, looks
// that change nothing, limits that change, and many callers at the same time.
//
//	func TestWrapper(t *testing.T) {
//		throttletest.Run(t, func(t *testing.T, limit throttle.Limit) throttletest.Subject {
//			fake := throttletest.New(t)
//			return throttletest.Subject{
//				Limiter: Wrap(throttletest.Of(fake.Limiter("sms", limit, throttle.Config{}))),
//				Advance: fake.Advance,
//			}
//		})
//	}
//
// The suite starts no server: whoever wants a limiter on Redis tested hands it in.
package throttletest
