package throttle

import (
	"context"
	"reflect"
	"time"
)

// LimitStatus is the limit by which a rule goes at a moment.
type LimitStatus struct {
	Limit   Limit
	Stored  bool      // it goes before the one in code
	Version int64     // grows with each change of what is stored, and of the closing; 0 when nothing is
	Closed  time.Time // until when the rule is closed on all keys; zero for not
	Err     error     // why it is not known; nothing is granted then
}

// LimitStatuses asks for the limits in force of many limiters, in order, with
// one round trip for those that share a client and a prefix. Each limiter goes
// by the answer from then on.
func LimitStatuses(ctx context.Context, limiters []*Limiter) []LimitStatus {
	out := make([]LimitStatus, len(limiters))
	together := make(map[redisLimits][]int)
	for i, l := range limiters {
		if s, ok := l.limits.(redisLimits); ok && reflect.ValueOf(s.rdb).Comparable() { // else it is no key of a map
			together[s] = append(together[s], i)
			continue
		}
		out[i] = l.readLimit(ctx).status()
	}
	for s, indices := range together {
		rules := make([]string, len(indices))
		for n, i := range indices {
			rules[n] = limiters[i].rule
		}
		began := time.Now()
		for n, stored := range s.storedOf(ctx, rules) {
			i := indices[n]
			out[i] = limiters[i].heard(began, stored).status()
		}
	}
	return out
}

func (k knownLimit) status() LimitStatus {
	return LimitStatus{Limit: k.limit, Stored: k.stored, Version: k.changed, Closed: k.closed, Err: k.err}
}
