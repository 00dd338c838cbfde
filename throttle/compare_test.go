package throttle_test

import (
	"errors"
	"maps"
	"time"

	"pgregory.net/rapid"

	"github.com/headwayq/headway/throttle"
)

// What each call of a [trace] must answer, and what it does to the model.

func (tr *trace) redeem(job string, token throttle.Token, maxWait time.Duration) {
	cost := tr.costs[job]
	d, err := tr.l.Redeem(tr.ctx, throttle.Request{Key: key, Cost: cost, Job: job, Token: token, MaxWait: maxWait})
	tr.asked(d, err, job, cost, maxWait, tr.m.inline, true)
}

func (tr *trace) book(job string) {
	cost := tr.costs[job]
	d, err := tr.l.Book(tr.ctx, throttle.Request{Key: key, Cost: cost, Job: job})
	tr.asked(d, err, job, cost, 0, 0, false)
}

func (tr *trace) try(cost int) {
	before := tr.content()
	late := len(tr.m.lateHeads(tr.now, ""))
	d, err := tr.l.TryAcquire(tr.ctx, key, cost)
	tr.asked(d, err, "", cost, 0, 0, true)
	if after := tr.content(); !d.Granted && late == 0 && !maps.Equal(before, after) {
		tr.Fatalf("a refusal wrote: %q, was %q", after, before)
	}
}

// asked checks one answer of acquire.lua.
func (tr *trace) asked(d throttle.Decision, err error, job string, cost int, maxWait time.Duration, inline int64, mayGrant bool) {
	m, at := tr.m, d.At.UnixMicro()
	late := m.lateHeads(tr.now, job)
	rank := -1
	if job != "" {
		rank = m.rank(job)
	}
	told, known := m.told[job]
	waiting := len(m.line) - len(late)
	exact, most := 0, 0
	if known {
		exact, most = m.ahead(len(late), m.place(job))
	} else {
		exact, most = m.ahead(len(late), len(m.line))
	}

	if want := m.instant(tr.now, exact, most, cost); !want.hold(at) {
		tr.Fatalf("%v: instant %d, want %d to %d after now", d, at-tr.now, want.lo-tr.now, want.hi-tr.now)
	}
	// Where keys expire nobody knows since when.
	if from := m.instant(0, exact, most, cost); tr.back && m.counting() && !from.hold(d.From.UnixMicro()) {
		tr.Fatalf("%v: from %v, want %v to %v", d, d.From, time.UnixMicro(from.lo), time.UnixMicro(from.hi))
	}
	if got := d.Promised; known && got.UnixMicro() != told || !known && !got.IsZero() {
		tr.Fatalf("%v: promised %v, want %v", d, got, told)
	}
	if d.Now.UnixMicro() != tr.now {
		tr.Fatalf("%v: now %v, want %v", d, d.Now, tr.now)
	}
	tooLate := maxWait != 0 && at > tr.now+max(0, maxWait.Microseconds())
	if tooLate != errors.Is(err, throttle.ErrTooLate) || !tooLate && err != nil {
		tr.Fatalf("%v: error %v, too late = %v", d, err, tooLate)
	}
	grant := (known || waiting == 0) && mayGrant && at <= tr.now+inline && !tooLate
	if d.Granted != grant {
		tr.Fatalf("%v: granted = %v, want %v (known %v, %d waiting, %d from now)", d, d.Granted, grant, known, waiting, at-tr.now)
	}

	switch {
	case tooLate:
		m.leave(job)
	case grant:
		m.spend(spent{at: at, cost: cost, token: d.Token, job: job})
		m.leave(job)
	case job == "":
	case rank >= 0:
		m.told[job] = at
	case known:
		m.rejoin(job, at)
	default:
		m.join(job, cost, at)
	}
	m.drop(late)
	if tooLate || grant {
		tr.next(d.Promoted)
	}
}

// next checks who was told to come earlier.
func (tr *trace) next(turns []throttle.Promotion) {
	got := soleTurn(tr, turns)
	late := len(tr.m.lateHeads(tr.now, ""))
	if len(tr.m.line) == late {
		if got.Job != "" {
			tr.Fatalf("next = %v, want nobody", got)
		}
		return
	}
	head := tr.m.line[late]
	at := tr.m.instant(tr.now, 0, 0, head.cost)
	told := tr.m.told[head.job]
	switch {
	case got.Job == "" && told-at.hi > 1000:
		tr.Fatalf("next = nobody, want %q at %v, it was told %v", head.job, time.UnixMicro(at.hi), time.UnixMicro(told))
	case got.Job != "" && (got.Job != head.job || !at.hold(got.At.UnixMicro()) || told-at.lo <= 1000):
		tr.Fatalf("next = %v, want %q at %v, it was told %v", got, head.job, time.UnixMicro(at.hi), time.UnixMicro(told))
	}
}

func (tr *trace) cancel(job string) {
	turn, err := tr.l.Cancel(tr.ctx, throttle.Request{Key: key, Cost: tr.costs[job], Job: job})
	if err != nil {
		tr.Fatal(err)
	}
	tr.m.leave(job)
	tr.next(turn)
}

// refund gives back a grant that is still in the window, or a token that never
// arrived; with back set the job gets the first place for it.
func (tr *trace) refund(back bool) {
	g := spent{token: throttle.NewToken(), job: tr.job()}
	g.cost = tr.costs[g.job]
	var candidates []spent
	for _, s := range tr.m.spent {
		if !s.gone && s.at+tr.m.window > tr.latest && s.job != "" {
			candidates = append(candidates, s)
		}
	}
	if len(candidates) > 0 && rapid.IntRange(0, 3).Draw(tr.T, "known token") > 0 {
		g = rapid.SampledFrom(candidates).Draw(tr.T, "grant")
	}
	r := throttle.Request{Key: key, Cost: g.cost, Job: g.job, Token: g.token}
	call := tr.l.Refund
	if back {
		call = tr.l.Return
	}
	turn, err := call(tr.ctx, r)
	if err != nil {
		tr.Fatal(err)
	}
	held := tr.m.find(g.token)
	if held != nil {
		held.refunded = true
	}
	tr.m.withdrawn[g.token] = tr.now
	switch {
	case back && held != nil:
		tr.m.joinHead(g.job, g.cost, max(g.at, tr.now))
	case !back:
		tr.m.leave(g.job)
	}
	tr.next(turn)
}

func (tr *trace) check(job string) {
	m := tr.m
	p := throttle.BookingRef{Policy: tr.l.Policy(), IDs: []string{tr.l.ID(key)}, Job: job, Costs: []int{tr.costs[job]}}
	got := throttle.Refresh(tr.ctx, tr.rdb, []throttle.BookingRef{p})[0]
	if got.Err != nil {
		tr.Fatal(got.Err)
	}
	if _, known := m.told[job]; known != got.Known {
		tr.Fatalf("Check(%q): known = %v, want %v", job, got.Known, known)
	}
	if !got.Known {
		return
	}
	late := m.lateHeads(tr.now, job)
	exact, most := m.ahead(len(late), m.place(job))
	rank := m.rank(job)
	if want := m.instant(tr.now, exact, most, p.Costs[0]); !want.hold(got.At.UnixMicro()) {
		tr.Fatalf("Check(%q) = %d from now, want %d to %d", job, got.At.UnixMicro()-tr.now, want.lo-tr.now, want.hi-tr.now)
	}
	if at := got.At.UnixMicro(); rank >= 0 && at > tr.now {
		m.told[job] = at
	}
	m.drop(late)
}

func (tr *trace) peek() {
	m := tr.m
	s, err := tr.l.Peek(tr.ctx, key, throttle.PeekMax)
	if err != nil {
		tr.Fatal(err)
	}
	late := len(m.lateHeads(tr.now, ""))
	free := bounds{int64(m.free(true, tr.now)), int64(m.free(false, tr.now))}
	exact, most := m.ahead(late, len(m.line))
	next := m.instant(tr.now, exact, most, 1)
	if s.Waiting != len(m.line)-late || !free.hold(int64(s.Available)) || !next.hold(s.Next.UnixMicro()) {
		tr.Fatalf("Peek = %+v, want %d waiting, %v available, next %v", s, len(m.line)-late, free, next)
	}
	before := 0
	for i, w := range s.Booked {
		p := m.line[late+i]
		at := m.instant(tr.now, before, before, p.cost)
		if w.Job != p.job || w.Cost != p.cost || !at.hold(w.At.UnixMicro()) {
			tr.Fatalf("Peek: place %d = %+v, want %+v at %v", i, w, p, at)
		}
		before += p.cost
	}
}

// lose forgets what was spent: by a reset, or because the key is gone.
func (tr *trace) lose() {
	if rapid.Bool().Draw(tr.T, "reset") {
		turn, err := tr.l.Reset(tr.ctx, key)
		if err != nil {
			tr.Fatal(err)
		}
		tr.m.forget()
		clear(tr.m.withdrawn)
		tr.next(turn)
		return
	}
	if err := tr.raw.Del(tr.ctx, "hw:{"+key+"}:rule").Err(); err != nil {
		tr.Fatal(err)
	}
	tr.m.forget()
}
