// Package bounded waits for calls of Redis for a bounded time. go-redis heeds no deadline of a context while it reads an answer, unless
// its ContextTimeoutEnabled is set. So at a server that stands still a call takes as long as all time-outs of the client.
package bounded

import "context"

// Call makes a call in a goroutine of its own and returns its result. When ctx ends first, ok is false: nobody waits any longer, and the
// call may be under way still. It ends with the client's time-outs. A panic of the call goes on to the caller of Call, if that still waits.
func Call[T any](ctx context.Context, call func() T) (got T, ok bool) {
	type result struct {
		got      T
		panicked any
	}
	results := make(chan result, 1)
	go func() {
		var r result
		defer func() {
			r.panicked = recover()
			results <- r
		}()
		r.got = call()
	}()
	var r result
	select {
	case r = <-results:
	case <-ctx.Done():
		select {
		case r = <-results: // both came at once
		default:
			return got, false
		}
	}
	if r.panicked != nil {
		panic(r.panicked)
	}
	return r.got, true
}
