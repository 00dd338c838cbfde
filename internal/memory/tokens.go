package memory

// copied is how long a copy of a call may take to arrive, in microseconds.
const copied = 60_000_000

// tokens are the attempts that hold a grant, by the grant's instant, and those
// that were withdrawn, by the negative time of that.
type tokens struct {
	sorted[uint64]
	expires int64
}

// remember keeps a token as long as its grant counts or a copy of its call may
// still arrive.
func (t *tokens) remember(token uint64, at, w, now, extra int64) {
	keep := max(w, copied)
	if token == 0 || at+keep <= now || !t.add(token, at) {
		return
	}
	t.trim(0, now-keep+1)
	t.live(now, at+keep-now+extra)
}

// withdraw makes a token refuse from now on.
func (t *tokens) withdraw(token uint64, now, extra int64) {
	t.add(token, -now)
	t.trim(copied-now+1, 0)
	t.live(now, copied+extra)
}

func (t *tokens) drop(token uint64) {
	t.remove(token)
	if t.len() == 0 {
		t.expires = 0
	}
}

// live never shortens what the set has.
func (t *tokens) live(now, us int64) { t.expires = max(t.expires, expiry(now, us)) }
