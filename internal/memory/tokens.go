package memory

// copied is how long a copy of a call may take to arrive, in microseconds.
const copied = 60_000_000

// bills is how much below minus its instant the score of a bill is.
const bills = 1 << 52

// tokens are the attempts that hold a grant, by the grant's instant; those that were
// withdrawn, by the negative time of that, or of `copied` before their grant does not
// count any more; and bills.
type tokens struct {
	sorted[uint64]
	expires int64
}

// remember keeps a token as long as a copy of its call may still arrive.
func (t *tokens) remember(token uint64, at, now, extra int64) {
	if _, known := t.score(token); known || token == 0 || at+copied <= now {
		return
	}
	t.add(token, at)
	t.trim(0, now-copied+1)
	t.live(now, at+copied-now+extra)
}

// withdraw makes a token refuse from now on, at least until an instant. One that
// refused already, of which held is the score, does not for less long.
func (t *tokens) withdraw(token uint64, held, until, now, extra int64) {
	since := max(now, until-copied, -held)
	t.add(token, -since)
	t.trim(copied-now+1, 0)
	t.live(now, since+copied-now+extra)
}

// bill keeps a bill as long as what it paid at an instant counts.
func (t *tokens) bill(token uint64, at, w, now, extra int64) {
	keep := max(w, copied)
	t.add(token, -bills-at)
	t.trim(keep-now-bills, -bills)
	t.live(now, at+keep-now+extra)
}

func (t *tokens) drop(token uint64) {
	t.remove(token)
	if t.len() == 0 {
		t.expires = 0
	}
}

// live never shortens what the set has.
func (t *tokens) live(now, us int64) { t.expires = max(t.expires, expiry(now, us)) }
