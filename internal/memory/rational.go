package memory

import (
	"math"
	"math/bits"
)

// never is further away than anybody waits, and leaves room to add to it.
const never = math.MaxInt64 / 4

// rational is the instant us + part/n microseconds, 0 <= part < n, of a limit
// whose permits take w/n each. Rounding stays out of a ledger, or it would add up.
type rational struct{ us, part int64 }

// plus is t and the time of k permits later; k may be negative.
func (l *numbers) plus(t rational, k int64) rational {
	s := t.part + k*(l.w%l.n)
	us := t.us + times(k, l.w/l.n) + floorDiv(s, l.n)
	return rational{min(us, never), floorMod(s, l.n)}
}

// ceil is the first whole microsecond that is not before t.
func (t rational) ceil() int64 {
	if t.part == 0 {
		return t.us
	}
	return t.us + 1
}

// later compares instants of the same limit.
func later(t, u rational) rational {
	if t.us > u.us || t.us == u.us && t.part > u.part {
		return t
	}
	return u
}

// takes is the time of k permits in whole microseconds, rounded down and up.
func (l *numbers) takes(k int64) (down, up int64) {
	t := l.plus(rational{}, k)
	return t.us, t.ceil()
}

// fit is how many permits' time fits between t and the instant a, which is not
// before t.
func (l *numbers) fit(t rational, a int64) int64 {
	hi, lo := bits.Mul64(uint64(a-t.us), uint64(l.n))
	lo, borrow := bits.Sub64(lo, uint64(t.part), 0)
	return divide(hi-borrow, lo, l.w)
}

// cover is how many permits it takes to get from the instant a to t, which is
// not before a.
func (l *numbers) cover(a int64, t rational) int64 {
	hi, lo := bits.Mul64(uint64(t.us-a), uint64(l.n))
	lo, carry := bits.Add64(lo, uint64(t.part), 0)
	lo, more := bits.Add64(lo, uint64(l.w-1), 0)
	return divide(hi+carry+more, lo, l.w)
}

func divide(hi, lo uint64, by int64) int64 {
	if hi >= uint64(by) {
		return never
	}
	q, _ := bits.Div64(hi, lo, uint64(by))
	return int64(min(q, never))
}

// times is k*us, cut to never; k may be negative.
func times(k, us int64) int64 {
	hi, lo := bits.Mul64(uint64(max(k, -k)), uint64(us))
	if hi > 0 || lo > never {
		lo = never
	}
	if k < 0 {
		return -int64(lo)
	}
	return int64(lo)
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

func floorMod(a, b int64) int64 { return a - floorDiv(a, b)*b }

// whole is a float's whole part as an integer, cut to never.
func whole(f float64) int64 { return int64(min(f, never)) }
