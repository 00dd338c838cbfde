package memory

import (
	"maps"
	"slices"
	"time"

	"github.com/headwayq/headway/internal/limitscripts"
)

// Keep makes keys live so much longer than they must: the clock of a test may go back further than a
// key's life allows.
func (s *Store) Keep(extra time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.extra = micros(extra)
}

// Drop loses what was spent on a key, and nothing else of it.
func (s *Store) Drop(k limitscripts.LimitKeys) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if key := s.keys.byName[k.Ledger()]; key != nil {
		key.ledger = ledger{}
		s.keys.put(key)
	}
}

// Places are the tickets and promises on a key, by the name that the scripts have
// for each set: to compare what no answer shows.
func (s *Store) Places(k limitscripts.LimitKeys) map[string]map[string]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]map[string]int64{}
	key := s.keys.byName[k.Ledger()]
	if key == nil {
		return out
	}
	key.expire(s.now().UnixMicro())
	note := func(name string, from *set) {
		if from.len() > 0 {
			out[k.Ledger()+":"+name] = maps.Clone(from.scores)
		}
	}
	note("line", &key.line.set)
	note("promised", &key.line.promised)
	note("kept", &key.line.kept)
	note("granted", &key.line.granted)
	for policy, turns := range key.policies {
		note("turns:"+policy, turns)
	}
	return out
}

// ShiftTickets adds to all tickets on a key, of jobs in the line and of those that keep a turn.
func (s *Store) ShiftTickets(k limitscripts.LimitKeys, by int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := s.keys.byName[k.Ledger()]
	for _, of := range append([]*set{&key.line.set, &key.line.kept}, slices.Collect(maps.Values(key.policies))...) {
		for _, t := range slices.Clone(of.order) {
			of.add(t.member, t.score+by)
		}
	}
}
