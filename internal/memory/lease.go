package memory

// leases is `concurrent n lease W`: at most n at once. A permit is a lease,
// which comes back when it is released or when it ends. The tokens are the
// leases, by their end.
//
// 2 lease 30s, granted at 8:00:00 and 8:00:10: the third waits until 8:00:30,
// unless the first is renewed.
type leases struct {
	last  int64 // the newest grant
	fence int64 // grows from grant to grant

	// of the call that looks
	tokens *tokens
	now    int64
}

func (s *leases) newest() int64 { return s.last }

// live are the ends to come, in order.
func (s *leases) live() []scored[uint64] { return s.tokens.order[s.tokens.below(s.now+1):] }

// earliest tells n places: those that are free, and the others in the order in which
// their leases end. Whoever is ahead takes them one by one, for a lease each.
func (s *leases) earliest(l *numbers, now, before, _ int64) int64 {
	ends := s.live()
	if i := int64(len(ends)) - l.n + before%l.n; i >= 0 {
		now = max(now, ends[i].score)
	}
	return now + times(before/l.n, l.w)
}

func (s *leases) charge(_ *numbers, at, _ int64) {
	s.last, s.fence = at, max(s.fence+1, s.now)
}

// anew is a fence for a holder whose first answer was lost: nobody remembers those
// before the newest.
func (s *leases) anew() int64 {
	fence := max(s.fence+1, s.now)
	if s.last > 0 {
		s.fence = fence
	}
	return fence
}

func (s *leases) back(*numbers, int64, int64, int64, int64) {} // the lease is gone with its token

func (s *leases) worth(*numbers) int64 { return 0 }

func (s *leases) free(l *numbers, now int64) int64 {
	return l.n - int64(s.tokens.len()-s.tokens.below(now+1))
}

func (s *leases) life(l *numbers) int64 { return s.last + l.w }

// grants are none: a lease is no permit of a window.
func (s *leases) grants(*numbers) []grant { return nil }

func (s *leases) carriedOver(*numbers, *numbers) state { return s }

// lend gives a lease, and forgets some that ended.
func (t *tokens) lend(token uint64, end, now, extra int64) {
	t.add(token, end)
	t.trim(0, now+1)
	t.live(now, end-now+extra)
}

const (
	offeredFor = 900_000 // how long a lease that came back is kept for the next in line, before it is late
	offerMost  = 16
	aheadMost  = 32     // how many behind them, of n at most, come by themselves when the leases end
	soonMost   = 40_000 // a lease that ends so soon is as good as free: whoever is told now comes for its end
)

// promisedAway says that somebody may have been granted ahead of now what comes
// back when this lease ends.
func (k *key) promisedAway(end, now int64) bool {
	l, ok := k.ledger.state.(*leases)
	return ok && l.last > now && end <= l.last
}
