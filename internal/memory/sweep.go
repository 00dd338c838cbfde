package memory

// swept is how many keys a call looks at for each of its own. Two are enough: a
// part adds one key at most, so the sweep is through before the keys doubled.
const swept = 2

// key is the state of a limit's key.
type key struct {
	name   string
	index  int // in keys.all, while it is kept
	ledger ledger
	tokens tokens
	line   line

	policies map[string]*set // whose jobs keep turns while a wider rule holds them up
	opening  set             // permits of those who wait for a gate, by the instant at which it opens
}

// expire drops what is forgotten by now.
func (k *key) expire(now int64) {
	ms := now / 1000
	if ms > k.ledger.expires {
		k.ledger = ledger{}
	}
	if ms > k.tokens.expires {
		k.tokens = tokens{}
	}
	k.line.expire(ms)
	k.opening.expire(ms)
	for _, turns := range k.policies {
		turns.expire(ms)
	}
	k.prune()
}

// prune forgets the policies that have no turns.
func (k *key) prune() {
	for policy, turns := range k.policies {
		if turns.len() == 0 {
			delete(k.policies, policy)
		}
	}
}

func (k *key) empty() bool {
	return k.ledger.state == nil && k.tokens.len() == 0 && k.line.len() == 0 && k.line.promised.len() == 0 &&
		len(k.policies) == 0 && k.opening.len() == 0
}

// turns are those of a policy; prune forgets them when a call adds none.
func (k *key) turns(policy string) *set {
	turns := k.policies[policy]
	if turns == nil {
		turns = &set{}
		if k.policies == nil {
			k.policies = map[string]*set{}
		}
		k.policies[policy] = turns
	}
	return turns
}

// keys are those that hold anything.
type keys struct {
	byName map[string]*key
	all    []*key
	hand   int // where the sweep is
}

// get is a key, which is empty and not kept when nobody knows it.
func (s *keys) get(name string, now int64) *key {
	k := s.byName[name]
	if k == nil {
		return &key{name: name, index: -1}
	}
	k.expire(now)
	return k
}

// put keeps a key, or forgets it when it is empty.
func (s *keys) put(k *key) {
	k.prune()
	switch {
	case k.index < 0 && !k.empty():
		if s.byName == nil {
			s.byName = map[string]*key{}
		}
		s.byName[k.name] = k
		k.index = len(s.all)
		s.all = append(s.all, k)
	case k.index >= 0 && k.empty():
		delete(s.byName, k.name)
		last := s.all[len(s.all)-1]
		s.all[k.index], last.index = last, k.index
		s.all[len(s.all)-1] = nil
		s.all = s.all[:len(s.all)-1]
		k.index = -1
		s.shrink()
	}
}

// shrink returns memory once most of a large number of keys is gone: a map
// never does by itself.
func (s *keys) shrink() {
	if cap(s.all) < 1024 || len(s.all) > cap(s.all)/4 {
		return
	}
	s.all = append(make([]*key, 0, cap(s.all)/2), s.all...)
	s.byName = make(map[string]*key, len(s.all))
	for _, k := range s.all {
		s.byName[k.name] = k
	}
}

// sweep looks at the next few keys.
func (s *keys) sweep(now int64, parts int) {
	for range min(swept*parts, len(s.all)) {
		if s.hand >= len(s.all) {
			s.hand = 0
		}
		k := s.all[s.hand]
		k.expire(now)
		if s.put(k); k.index >= 0 {
			s.hand++
		}
	}
}
