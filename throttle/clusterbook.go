package throttle

import (
	"context"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
)

// widestSlot are the parts of the widest rates' key; none where there are no rates.
func lastRateSlot(parts []luascripts.RuleCall) slotCalls {
	var wide slotCalls
	for _, at := range slots(parts) {
		if parts[at.from].Kind != luascripts.Leases {
			wide = at
		}
	}
	return wide
}

// bookWidest books in one slot. The others are looked at before, so that most jobs that
// are refused leave nothing behind.
func (s clusterStore) bookLastRule(ctx context.Context, c *luascripts.Call, wide slotCalls) error {
	a := c.AcquireArgs
	at, by, fault, err := s.admittedBy(ctx, a.Rules, wide)
	if err != nil || fault.Status != luascripts.Refused {
		c.AcquireReply = fault
		return err
	}
	call := luascripts.Call{AcquireArgs: a}
	call.Rules = a.Rules[wide.from:wide.to]
	if err := s.redisStore.acquire(ctx, &call); err != nil {
		return err // others may write to the call still
	}
	none := luascripts.AcquireReply{Worth: make([]int64, len(a.Rules)), Each: make([]time.Time, len(a.Rules)), Free: make([]int, len(a.Rules))}
	out := joined(none, call.AcquireReply, wide)
	if out.Status == luascripts.Booked && out.Promised.IsZero() && at.After(out.At) {
		a.Token = 0 // there is a place alone
		out.Promoted = append(out.Promoted, s.giveBack(ctx, a, wide, none.Worth, luascripts.AcquireReply{})...)
		out.Status, out.Rule, out.At = luascripts.Refused, by, at
	}
	if out.Status == luascripts.Refused && a.MaxWait >= 0 && out.At.After(out.Now.Add(a.MaxWait)) {
		out.Status = luascripts.TooLate
	}
	c.AcquireReply = out
	return nil
}

// admittedBy is when all parts but some would admit a newcomer, and which is the last
// of them, counted from 1; or the status of one that can't be decided about.
func (s clusterStore) admittedBy(ctx context.Context, parts []luascripts.RuleCall, but slotCalls) (at time.Time, by int, fault luascripts.AcquireReply, _ error) {
	for i := range parts {
		p := &parts[i]
		if i >= but.from && i < but.to {
			continue
		}
		r, err := s.peek(ctx, p.LimitKeys, luascripts.PeekArgs{Numbers: p.Numbers, Cost: p.Cost, Closed: p.Closed})
		if err != nil {
			return at, by, fault, err
		}
		if r.Status != luascripts.Granted {
			return at, by, luascripts.AcquireReply{Status: r.Status, Rule: i + 1, Now: r.Now, Version: r.Version}, nil
		}
		admits := r.Next
		if p.Kind == luascripts.Leases {
			admits = r.Closed
		}
		if admits.After(at) {
			at, by = admits, i+1
		}
	}
	return at, by, fault, nil
}
