package memory

import "slices"

// moved is how many records a refund moves at most, as the script does.
const moved = 50_000

// sliding is `sliding n/W`: at most n permits in any window of length W. It
// keeps the instants of the newest permits in a ring, at most the largest n so
// far of them; what is n places old is written over.
//
// 1/60s, granted at 8:00:00: one who comes at 8:00:30 goes at 8:01:00.
type sliding struct {
	ring        []int64
	newestIndex int // in ring
}

// nth is the k-th newest permit's instant, 0 when there are fewer.
func (s *sliding) nth(k int) int64 {
	if k > len(s.ring) {
		return 0
	}
	return s.ring[s.index(k)]
}

// index is where the k-th newest is.
func (s *sliding) index(k int) int {
	i := s.newestIndex - k + 1
	if i < 0 {
		i += len(s.ring)
	}
	return i
}

func (s *sliding) newest() int64 { return s.nth(1) }

func (s *sliding) earliest(l *numbers, now, before, cost int64) int64 {
	k := before + cost
	rounds := (k - 1) / l.n
	at := max(now, s.newest())
	if nth := int(l.n - (k - 1 - rounds*l.n)); nth <= len(s.ring) {
		at = max(at, s.nth(nth)+l.w)
	}
	return at + times(rounds, l.w)
}

func (s *sliding) charge(l *numbers, at, cost int64) {
	s.spend(int(l.n), at, int(cost))
}

// spend writes records into a ring of n, or of as many as it has.
func (s *sliding) spend(n int, at int64, many int) {
	if grow := min(many, n-len(s.ring)); grow > 0 {
		s.ring = slices.Grow(s.oldestFirst(), grow)
		for range grow {
			s.ring = append(s.ring, at)
		}
		s.newestIndex = len(s.ring) - 1
		many -= grow
	}
	for range min(many, len(s.ring)) { // more would write over itself
		s.newestIndex = (s.newestIndex + 1) % len(s.ring)
		s.ring[s.newestIndex] = at
	}
}

// oldestFirst is the ring with the oldest first.
func (s *sliding) oldestFirst() []int64 {
	if s.newestIndex >= len(s.ring)-1 {
		return s.ring
	}
	return slices.Concat(s.ring[s.newestIndex+1:], s.ring[:s.newestIndex+1])
}

// after counts the permits later than t.
func (s *sliding) after(t int64) int {
	lo, hi := 0, len(s.ring)
	for lo < hi {
		if mid := (lo + hi + 1) / 2; s.nth(mid) > t {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	return lo
}

// back takes permits out. They count as spent one window earlier: what they
// wrote over left the window then at the latest, and a hole would admit too
// early when the instant is still to come.
func (s *sliding) back(l *numbers, at, cost, _, _ int64) {
	after := s.after(at)
	many := min(int(cost), s.after(at-1)-after)
	oldest := min(s.after(at-l.w), after+many+moved)
	ghost := max(at-l.w, s.nth(oldest+1))
	for k := after + 1; k <= oldest; k++ {
		r := ghost
		if k+many <= oldest {
			r = s.nth(k + many)
		}
		s.ring[s.index(k)] = r
	}
}

func (s *sliding) worth(*numbers) int64 { return 0 }

func (s *sliding) free(l *numbers, now int64) int64 {
	if s.newest() > now {
		return 0
	}
	return max(0, l.n-int64(s.after(now-l.w)))
}

func (s *sliding) life(l *numbers) int64 { return s.newest() + l.w }

// groups is how many grants a log becomes at most for another kind.
const groups = 32

func (s *sliding) grants(l *numbers) []grant {
	// as long as all of the log takes under the new limit. It counts from the
	// newest and not from now: the clock may go backwards after this.
	rounds := max(2, ceilDiv(int64(len(s.ring)), l.n)+1)
	count := s.after(s.newest() - times(rounds, l.w))
	size := max(1, (count+groups-1)/groups)
	var out []grant
	for left := count; left > 0; left -= size {
		many := min(size, left)
		out = append(out, grant{s.nth(left - many + 1), int64(many)})
	}
	return out
}

// carriedOver is the state itself: a log serves any numbers.
func (s *sliding) carriedOver(*numbers, *numbers) state { return s }
