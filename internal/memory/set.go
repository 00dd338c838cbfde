package memory

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
