package throttle

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"
)

// storedMax bounds what warmup stores: its doubles then still tell permits apart.
const storedMax = 1e12

// Bounds of the factor by which a cold permit takes longer, in thousandths.
const (
	coldMilliMin = 1000
	coldMilliMax = 1000 * 1000

	coldWant = "1 to 1000 in thousandths"
)

// LimitError is one fault of a limit. It unwraps to [ErrInvalidLimit].
type LimitError struct {
	Field string // what is wrong: "permits", "window", "burst", "over", "cold", "lease", "unit", "zone", "kind", or "word" of a text
	Value string // as it was given, clipped when long
	Want  string // what is right
}

func (e *LimitError) Error() string { return ErrInvalidLimit.Error() + ": " + e.short() }

func (e *LimitError) Unwrap() error { return ErrInvalidLimit }

func (e *LimitError) short() string {
	what := e.Field + " " + e.Value
	if e.Field == "permits" {
		what = e.Value + " permits"
	}
	return what + ", want " + e.Want
}

// Validate returns everything that is wrong with l, joined, or nil. Each fault
// is a [LimitError] and unwraps to [ErrInvalidLimit].
func (l Limit) Validate() error {
	var errs []error
	for _, f := range l.faults() {
		errs = append(errs, f)
	}
	return errors.Join(errs...)
}

// faultList collects what is wrong.
type faultList []*LimitError

func (f *faultList) add(field, value, want string) {
	*f = append(*f, &LimitError{Field: field, Value: value, Want: want})
}

func (f *faultList) whole(field string, value, low, high int, why string) {
	if value < low || value > high {
		f.add(field, strconv.Itoa(value), fmt.Sprintf("%d to %d%s", low, high, why))
	}
}

func (f *faultList) duration(field string, d time.Duration) {
	if d < WindowMin || d > WindowMax {
		f.add(field, formatWindow(d), "1ms to "+formatWindow(WindowMax))
	} else if d%time.Microsecond != 0 {
		f.add(field, formatWindow(d), "whole microseconds")
	}
}

func (l Limit) faults() faultList {
	var f faultList
	if l.kind == kindNone {
		f.add("kind", "none", "a limit from a constructor or ParseLimit")
		return f
	}
	f.whole("permits", l.permits, 1, PermitsMax, "")
	switch l.kind {
	case kindCalendar:
		l.calendarFaults(&f)
	case kindConcurrent:
		l.leaseFaults(&f)
	default:
		f.duration("window", l.window)
	}
	l.burstFaults(&f, len(f) == 0)
	if l.kind == kindWarmUp {
		l.warmUpFaults(&f, len(f) == 0)
	}
	return f
}

// burstFaults needs sane permits and a sane window to know how long the burst
// takes to come back.
func (l Limit) burstFaults(f *faultList, sane bool) {
	low, high, why := 1, PermitsMax, ""
	switch l.kind {
	case kindStepped:
		if l.permits <= PermitsMax && l.burst < l.permits {
			f.add("burst", strconv.Itoa(l.burst), fmt.Sprintf("at least the %d permits of a step: what does not fit would be lost at every tick", l.permits))
			return
		}
	case kindSmooth:
		low = 0
	case kindBucket, kindGCRA:
	default:
		return
	}
	if sane {
		fill := permitsWithin(l.permits, l.window)
		if l.kind == kindStepped {
			fill = uint64(WindowMax/l.window) * uint64(l.permits)
		}
		if fill < PermitsMax {
			high, why = int(fill), ", what is filled within "+formatWindow(WindowMax)
		}
	}
	f.whole("burst", l.burst, low, high, why)
}

func (l Limit) warmUpFaults(f *faultList, sane bool) {
	f.duration("over", l.over)
	if l.coldBad != 0 || l.coldMilli < coldMilliMin || l.coldMilli > coldMilliMax {
		f.add("cold", l.coldText(), coldWant)
	}
	if !sane || len(*f) > 0 {
		return
	}
	if l.MaxCost() < 1 {
		f.add("cold", l.coldText(), "cold*window/permits, the time of a cold permit, of at most "+formatWindow(WindowMax))
	}
	// Below, nothing can go wrong: over is at least a millisecond, so the most
	// that is stored is above 0.
	if m := l.storedWhenCold(); m > storedMax {
		f.add("over", formatWindow(l.over), fmt.Sprintf("a time in which at most %.0f permits are stored, not %.0f", float64(storedMax), m))
	}
}

// storedWhenCold is what [WarmUp] stores at most, see there.
func (l Limit) storedWhenCold() float64 {
	s, c, d := float64(l.window)/float64(l.permits), float64(l.coldMilli)/1000, float64(l.over)
	return 0.5*d/s + 2*d/(s+c*s)
}

func (l Limit) coldText() string {
	v := float64(l.coldMilli) / 1000
	if l.coldBad != 0 {
		v = math.Float64frombits(l.coldBad)
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}
