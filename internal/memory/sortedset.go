package memory

import (
	"cmp"
	"slices"
)

// sorted is a set whose members have scores, in the order of score and member.
// The zero value is empty.
type sorted[K cmp.Ordered] struct {
	scores map[K]int64
	order  []scored[K]
}

type scored[K cmp.Ordered] struct {
	score  int64
	member K
}

func (s *sorted[K]) len() int { return len(s.order) }

func (s *sorted[K]) score(m K) (int64, bool) {
	v, ok := s.scores[m]
	return v, ok
}

// find is where a pair is, or would be.
func (s *sorted[K]) find(p scored[K]) int {
	i, _ := slices.BinarySearchFunc(s.order, p, func(a, b scored[K]) int {
		return cmp.Or(cmp.Compare(a.score, b.score), cmp.Compare(a.member, b.member))
	})
	return i
}

// below counts the members with a lower score.
func (s *sorted[K]) below(score int64) int {
	i, _ := slices.BinarySearchFunc(s.order, score, func(a scored[K], score int64) int {
		if a.score < score {
			return -1
		}
		return 1
	})
	return i
}

// add sets a member's score, and says whether the member is new.
func (s *sorted[K]) add(m K, score int64) bool {
	known := s.remove(m)
	if s.scores == nil {
		s.scores = map[K]int64{}
	}
	s.scores[m] = score
	p := scored[K]{score, m}
	s.order = slices.Insert(s.order, s.find(p), p)
	return !known
}

func (s *sorted[K]) remove(m K) bool {
	score, ok := s.scores[m]
	if !ok {
		return false
	}
	delete(s.scores, m)
	i := s.find(scored[K]{score, m})
	if i == 0 { // the first one leaves most often
		s.order[0] = scored[K]{}
		s.order = s.order[1:]
		return true
	}
	s.order = slices.Delete(s.order, i, i+1)
	return true
}

// trim removes members with lowest <= score < below, 20 at most.
func (s *sorted[K]) trim(lowest, below int64) {
	from := s.below(lowest)
	to := min(s.below(below), from+20)
	if from >= to {
		return
	}
	for _, p := range s.order[from:to] {
		delete(s.scores, p.member)
	}
	s.order = slices.Delete(s.order, from, to)
}

// set is a sorted set of a key, by member's text. It is forgotten by itself,
// and when its last member goes.
type set struct {
	sorted[string]
	expires int64 // in milliseconds
}

func (s *set) drop(m string) {
	if s.remove(m) && s.len() == 0 {
		*s = set{}
	}
}

// live never shortens what the set has.
func (s *set) live(now, us int64) {
	if s.len() > 0 {
		s.expires = max(s.expires, expiry(now, us))
	}
}

func (s *set) expire(ms int64) {
	if ms > s.expires {
		*s = set{}
	}
}
