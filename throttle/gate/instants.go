package gate

import (
	"slices"
	"time"

	"github.com/headwayq/headway/internal/civil"
)

// compute maps what the clock shows to instants. At first it looks at the days
// around the window; at more, if an opening that is in it goes on beyond them.
// What is within near of the ends of what it looks at may be wrong: no clock was
// ever more than 16 h from UTC, or changed by more than a day.
func (p *plan) compute(w window, zone *time.Location) []stretch {
	const near = 2 * civil.DaySeconds
	lo, hi := w.lo-2*near, w.hi+2*near
	for {
		all := overlapping(instants(p.schedule.stretches(lo, hi), zone), w.lo, w.hi)
		if len(all) == 0 {
			return nil
		}
		first, last := all[0].open, all[len(all)-1].close
		early, late := max(first-near, w.lo-scanReach), min(last+near, w.hi+scanReach)
		if lo <= early && late <= hi {
			return all
		}
		lo, hi = min(lo, early), max(hi, late)
	}
}

// instants are those at which the clock of a zone shows a time within the local
// stretches.
func instants(local []stretch, zone *time.Location) []stretch {
	if len(local) == 0 {
		return nil
	}
	out := make([]stretch, 0, len(local))
	end := local[len(local)-1].close + civil.DaySeconds
	for x := local[0].open - civil.DaySeconds; x < end; {
		s := civil.SegmentAt(zone, x)
		s.End = min(s.End, end)
		i, _ := slices.BinarySearchFunc(local, x+s.Offset, byClosing)
		for ; i < len(local) && local[i].open-s.Offset < s.End; i++ {
			out = join(out, stretch{max(local[i].open-s.Offset, x), min(local[i].close-s.Offset, s.End)})
		}
		x = s.End
	}
	return out
}

// byClosing finds the first stretch that ends after x.
func byClosing(s stretch, x int64) int {
	if s.close <= x {
		return -1
	}
	return 1
}

// join appends a stretch that opens no earlier than those before it.
func join(all []stretch, s stretch) []stretch {
	if n := len(all); n > 0 && s.open <= all[n-1].close {
		all[n-1].close = max(all[n-1].close, s.close)
		return all
	}
	return append(all, s)
}

// overlapping is the part of a list that overlaps [lo, hi).
func overlapping(all []stretch, lo, hi int64) []stretch {
	i, _ := slices.BinarySearchFunc(all, lo, byClosing)
	j, _ := slices.BinarySearchFunc(all, hi, func(s stretch, x int64) int {
		if s.open < x {
			return -1
		}
		return 1
	})
	return all[i:max(i, j)]
}

// both is what lies in both lists.
func both(a, b []stretch) []stretch {
	var out []stretch
	for len(a) > 0 && len(b) > 0 {
		if s := (stretch{max(a[0].open, b[0].open), min(a[0].close, b[0].close)}); s.open < s.close {
			out = append(out, s)
		}
		if a[0].close < b[0].close {
			a = a[1:]
		} else {
			b = b[1:]
		}
	}
	return out
}
