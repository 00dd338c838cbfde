package main

import "time"

// FaultStats is what the embedded gateway's [Faults] have come to.
type FaultStats struct {
	TooMany       int // answers 429 that closed a phone number
	EarlyAfter429 int // messages to a closed phone number, 429 too: breaches by a sender that does not heed Retry-After
	UnderWay429   int // such that were granted before the sender could know, 429 too
	Unavailable   int // answers 503
	TimedOut      int // messages that were taken and not answered
}

// hearsWithin is how long a 429 may take until it is heard of where grants are made:
// what is granted up to then was under way, and no breach. It is less than the
// least Retry-After, so that something is left to be judged.
const hearsWithin = faultAfterMin / 2

// faultMaker decides on each message that comes to the gateway. It is not safe
// for concurrent use.
//
// With after=2s a phone number that gets its 429 at 10 s is closed: a message at
// 11.5 s is early, and its 429 says 1 s, the rest rounded up. It does not close it
// for longer: at 12 s the phone number is open. A message at 11.5 s that was granted
// at 10.5 s or before was under way, and is counted apart.
type faultMaker struct {
	faults Faults
	draws  map[string]uint64  // by message id
	closed map[string]closing // by phoneKey
	stats  FaultStats
}

// closing is the time in which a phone number is closed.
type closing struct{ from, until time.Time }

func newFaultMaker(f Faults) *faultMaker {
	return &faultMaker{faults: f, draws: map[string]uint64{}, closed: map[string]closing{}}
}

// next returns the fault of a message that comes at that instant, with the
// Retry-After of a 429 in whole seconds. An early message draws nothing, so that
// what is drawn does not depend on how many came early.
func (m *faultMaker) next(a Arrival, at time.Time) (f fault, after time.Duration) {
	if c, ok := m.closed[a.Key]; ok {
		if at.Before(c.until) {
			if time.UnixMicro(a.GrantedUs).After(c.from.Add(hearsWithin)) {
				m.stats.EarlyAfter429++
			} else {
				m.stats.UnderWay429++
			}
			return faultTooMany, ceilSecond(c.until.Sub(at))
		}
		delete(m.closed, a.Key)
	}
	if m.faults == (Faults{}) {
		return faultNone, 0
	}
	m.draws[a.ID]++
	f = m.faults.draw(a.ID, m.draws[a.ID])
	switch f {
	case faultNone:
	case faultTooMany:
		m.stats.TooMany++
		m.closed[a.Key] = closing{at, at.Add(m.faults.After)}
		after = m.faults.After
	case faultUnavailable:
		m.stats.Unavailable++
	case faultTimeout:
		m.stats.TimedOut++
	}
	return f, after
}

func ceilSecond(d time.Duration) time.Duration {
	return (d + time.Second - 1).Truncate(time.Second)
}
