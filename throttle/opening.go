package throttle

import (
	"errors"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/throttle/gate"
)

// What the scripts are told of a gate: so much before and after the store's clock.
const (
	gateBehind = time.Hour
	gateAhead  = 10 * day
)

// gateAround is when all gates are open around an instant.
func gateAround(gates []gate.At, around time.Time) luascripts.Gate {
	if len(gates) == 0 {
		return luascripts.Gate{}
	}
	g := luascripts.Gate{From: around.Add(-gateBehind), Until: around.Add(gateAhead)}
	for _, o := range gate.Openings(gates, g.From, g.Until) {
		if len(g.Open) < openingsMax {
			g.Open = append(g.Open, luascripts.Opening{Open: o.Open, Close: o.Close})
		}
	}
	if len(g.Open) == openingsMax {
		g.Until = g.Open[openingsMax-1].Close
	}
	return g
}

// openingsMax bounds the openings that a script is told.
const openingsMax = 64

// openedAt is the first instant, not before at, at which all gates are open, as
// far as is known.
func openedAt(gates []gate.At, at time.Time) time.Time {
	if len(gates) == 0 {
		return at
	}
	for _, o := range gate.Openings(gates, at, at.Add(gateAhead)) {
		if o.Close.After(at) {
			if o.Open.After(at) {
				return o.Open
			}
			return at
		}
	}
	return at.Add(gateAhead)
}

// shutGate names the gate that keeps a job until an instant: one that is shut
// now, or right before.
func shutGate(gates []gate.At, now, until time.Time) string {
	if rule, shut := gate.FirstClosed(gates, now); shut {
		return rule
	}
	for _, o := range gate.Openings(gates, now, until.Add(time.Microsecond)) {
		if o.Open.After(now) && !until.Before(o.Open) && until.Before(o.Close) {
			if rule, shut := gate.FirstClosed(gates, o.Open.Add(-time.Microsecond)); shut {
				return rule
			}
		}
	}
	return gates[0].Rule
}

func checkGates(gates []gate.At) error {
	var errs []error
	for _, g := range gates {
		errs = append(errs, g.Gate.Validate())
	}
	return errors.Join(errs...)
}
