package luascripts

import (
	"fmt"
	"time"
)

// What an integer means in place of a call's answer; another one is since when the
// ledger admits what is granted now, in microseconds ago.
const (
	shortUnknown = -1 // granted, and the ledger held nothing
	shortFailed  = -2
)

// zeros are what is not known of a grant; shared, so that to read most answers takes
// no memory.
var (
	zeroWorth [RulesMax]int64
	zeroFree  [RulesMax]int
)

// read reads the answer to the call, the next value of r.
func (c *Call) read(r *reply, now time.Time) {
	parts := len(c.Rules)
	c.AcquireReply = AcquireReply{Now: now, Worth: zeroWorth[:parts:parts], Free: zeroFree[:parts:parts]}
	if c.Tell {
		c.Free = make([]int, parts)
	}
	if r.isInt() {
		c.Err = c.readShort(r)
		return
	}
	in := r.list()
	c.Status, c.Rule, c.At, c.From = Status(in.int()), int(in.orZero()), in.timeOrZero(), in.timeOrZero()
	c.Promised, c.Fence = in.timeOrZero(), in.orZero()
	turns := in.orZero()
	if c.Status == Outdated {
		outdated(&c.At, &c.Version)
	}
	known := false
	for i := range parts {
		worth, free := in.orZero(), int(in.orZero())
		if worth != 0 && !known {
			c.Worth, known = make([]int64, parts), true
		}
		if known {
			c.Worth[i] = worth
		}
		if c.Tell {
			c.Free[i] = free
		}
	}
	c.Promoted, c.Err = in.promotions(turns), in.err
}

// readShort reads an answer that is one integer.
func (c *Call) readShort(r *reply) error {
	switch ago := r.int(); {
	case ago == shortFailed:
		c.Status = askAlone
	case ago < shortFailed || ago > c.Now.UnixMicro():
		return &ReplyError{Script: r.script, What: fmt.Sprintf("a grant since %d us ago", ago)}
	default:
		c.Status, c.At = Granted, c.Now
		if ago != shortUnknown {
			c.From = instantOf(c.Now.UnixMicro() - ago)
		}
	}
	return nil
}
