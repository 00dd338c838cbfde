package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// model is `sliding n/W` with its line in plain Go, written from the package
// comment and not from the scripts. Times are microseconds.
//
// Two answers are left open by the package comment: how far a refund frees more
// than its own permits, and what a line of mixed costs promises behind its
// head. There the model knows bounds, and goes on with what was answered;
// without refunds and with equal costs the bounds are one.
type model struct {
	n             int
	mixed         bool // the costs of jobs differ
	window        int64
	inline, grace int64
	spent         []spent // ever, in order of time
	withdrawn     map[throttle.Token]int64
	line          []place
	parked        map[string]place // too late, and out of the line until they come
	told          map[string]int64 // the last promise, also of those who came too late
}

type spent struct {
	at       int64
	cost     int
	token    throttle.Token
	job      string
	refunded bool
	gone     bool // the state that knew it was reset or lost
}

type place struct {
	job    string
	cost   int
	ticket int
}

// bounds are the earliest and the latest right answer.
type bounds struct{ lo, hi int64 }

func (b bounds) hold(at int64) bool { return b.lo <= at && at <= b.hi }

func newModel(n int, window time.Duration) *model {
	return &model{
		n: n, window: window.Microseconds(), inline: 50_000, grace: 100_000,
		withdrawn: map[throttle.Token]int64{}, told: map[string]int64{}, parked: map[string]place{},
	}
}

// permits are the instants of the permits that count, in order. A refunded one
// does not count at all, or from the other side: it counts as if it had been
// spent a window earlier, so that it frees nothing before its own instant.
func (m *model) permits(withRefunded bool) []int64 {
	var out []int64
	for _, g := range m.spent {
		at := g.at
		switch {
		case g.gone || g.refunded && !withRefunded:
			continue
		case g.refunded:
			at -= m.window
		}
		for range g.cost {
			out = append(out, at)
		}
	}
	slices.Sort(out)
	return out
}

// slot is the instant of the k-th permit from now.
func (m *model) slot(counted []int64, now int64, k int) int64 {
	at := now
	if len(counted) > 0 {
		at = max(at, counted[len(counted)-1])
	}
	if back := m.n - (k-1)%m.n; back <= len(counted) {
		at = max(at, counted[len(counted)-back]+m.window)
	}
	return at + m.window*int64((k-1)/m.n)
}

// instant is the slot behind at least lo and at most hi permits.
func (m *model) instant(now int64, lo, hi, cost int) bounds {
	return bounds{m.slot(m.permits(false), now, lo+cost), m.slot(m.permits(true), now, hi+cost)}
}

// lateHeads are those at the head of the line who came too late for their
// promise: they hold up nobody.
func (m *model) lateHeads(now int64, me string) []place {
	late := 0
	for late < len(m.line) && late < 20 && m.line[late].job != me && m.told[m.line[late].job]+m.grace < now {
		late++
	}
	return slices.Clone(m.line[:late])
}

func (m *model) rank(job string) int {
	return slices.IndexFunc(m.line, func(p place) bool { return p.job == job })
}

// ahead counted the permits of places from..to: exactly, and as tickets do.
func (m *model) ahead(from, to int) (exact, tickets int) {
	if to <= from {
		return 0, 0
	}
	for _, p := range m.line[from:to] {
		exact += p.cost
	}
	if !m.mixed {
		return exact, exact
	}
	return exact, max(exact, m.line[to-1].ticket+m.line[to-1].cost-m.line[from].ticket)
}

func (m *model) leave(job string) {
	delete(m.told, job)
	delete(m.parked, job)
	if i := m.rank(job); i >= 0 {
		m.line = slices.Delete(m.line, i, i+1)
	}
}

// drop takes places out of the line; what was told to them is kept, and with
// it their turn.
func (m *model) drop(late []place) {
	for _, p := range late {
		m.parked[p.job] = p
	}
	m.line = slices.DeleteFunc(m.line, func(p place) bool {
		return slices.ContainsFunc(late, func(l place) bool { return l.job == p.job })
	})
}

func (m *model) join(job string, cost int, at int64) {
	p := place{job: job, cost: cost}
	if len(m.line) > 0 {
		last := m.line[len(m.line)-1]
		p.ticket = max(p.ticket, last.ticket+last.cost)
	}
	if parked := m.inTickets(); len(parked) > 0 {
		last := parked[len(parked)-1]
		p.ticket = max(p.ticket, last.ticket+last.cost)
	}
	m.line = append(m.line, p)
	m.told[job] = at
}

// inTickets are those who are parked, in order.
func (m *model) inTickets() []place {
	return slices.SortedFunc(maps.Values(m.parked), func(a, b place) int { return a.ticket - b.ticket })
}

// place is where a job stands in the line, or would when it comes late.
func (m *model) place(job string) int {
	if i := m.rank(job); i >= 0 {
		return i
	}
	return len(slices.DeleteFunc(slices.Clone(m.line), func(p place) bool { return p.ticket >= m.parked[job].ticket }))
}

func (m *model) rejoin(job string, at int64) {
	m.line = slices.Insert(m.line, m.place(job), m.parked[job])
	delete(m.parked, job)
	m.told[job] = at
}

func (m *model) joinHead(job string, cost int, at int64) {
	p := place{job: job, cost: cost}
	if all := append(m.inTickets(), m.line...); len(all) > 0 {
		p.ticket = slices.MinFunc(all, func(a, b place) int { return a.ticket - b.ticket }).ticket - cost
	}
	if i := m.rank(job); i >= 0 {
		m.line = slices.Delete(m.line, i, i+1)
	}
	delete(m.parked, job)
	m.line = slices.Insert(m.line, 0, p)
	m.told[job] = at
}

func (m *model) spend(g spent) {
	m.spent = append(m.spent, g)
	slices.SortStableFunc(m.spent, func(a, b spent) int { return int(a.at - b.at) })
}

func (m *model) find(token throttle.Token) *spent {
	for i := range m.spent {
		if m.spent[i].token == token && !m.spent[i].refunded && !m.spent[i].gone {
			return &m.spent[i]
		}
	}
	return nil
}

// forget is what a reset does, or the loss of the ledger.
func (m *model) forget() {
	for i := range m.spent {
		m.spent[i].gone = true
	}
}

// over answers the first window that holds more than n permits.
func (m *model) over() (from int64, used int, over bool) {
	live := m.permits(false)
	for i := range live {
		if i+m.n < len(live) && live[i+m.n] < live[i]+m.window {
			return live[i], m.n + 1, true
		}
	}
	return 0, 0, false
}

// free is how many permits a newcomer could have now if nobody waits.
func (m *model) free(withRefunded bool, now int64) int {
	used := 0
	for _, at := range m.permits(withRefunded) {
		if at > now {
			return 0
		}
		if at+m.window > now {
			used++
		}
	}
	if len(m.line) > len(m.lateHeads(now, "")) {
		return 0
	}
	return max(0, m.n-used)
}

// counting says whether the ledger holds anything.
func (m *model) counting() bool { return len(m.permits(true)) > 0 }

// waiting are those who wait, in the order of their tickets: a line has other members too.
func waiting(ctx context.Context, rdb redis.Cmdable, line string) ([]string, error) {
	return rdb.ZRangeArgs(ctx, redis.ZRangeArgs{Key: line, ByScore: true, Start: "-inf", Stop: "(2251799813685248"}).Result()
}

// Random traces on a real Redis, whose clock goes forward and backward.
//
// Keys expire by the server's own clock, which such a trace leaves behind. So
// they get an hour more than the scripts ask for, and nothing expires: what is
// compared is what the scripts decide, and that every key has a TTL at all.
// That the TTL is right is tested by [TestModelOnMiniredis], where expiry and
// TIME are one clock that only goes forward, and in keys_test.go.
func TestModelOnRedis(t *testing.T) {
	t.Parallel()
	raw := redistest.Start(t).Client(t)
	rdb, err := redistest.NewTimed(t.Context(), redistest.LongLived{UniversalClient: raw}, start)
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(rt *rapid.T) {
		runTrace(rt, rdb, raw, true, func(now time.Time) {
			if err := rdb.SetTime(context.Background(), now); err != nil {
				rt.Fatal(err)
			}
		})
	})
}

func TestModelOnMiniredis(t *testing.T) {
	t.Parallel()
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	t.Cleanup(m.Close)
	rdb := redis.NewClient(redistest.MiniOptions(m))
	t.Cleanup(func() { _ = rdb.Close() })
	rapid.Check(t, func(rt *rapid.T) { runTrace(rt, rdb, rdb, false, m.SetTime) })
}

// trace compares a limiter with the model, call by call.
type trace struct {
	*rapid.T
	ctx     context.Context
	l       *throttle.Limiter
	m       *model
	rdb     redis.UniversalClient
	raw     *redis.Client
	setTime func(time.Time)
	back    bool // the clock may go backward

	now, latest int64
	costs       map[string]int
	jobs        []string
}

func runTrace(rt *rapid.T, rdb redis.UniversalClient, raw *redis.Client, back bool, setTime func(time.Time)) {
	ctx := context.Background()
	if err := raw.FlushAll(ctx).Err(); err != nil {
		rt.Fatal(err)
	}
	n := rapid.SampledFrom([]int{1, 2, 3, 5, 100}).Draw(rt, "n")
	window := rapid.SampledFrom([]time.Duration{10 * ms, time.Second, time.Minute}).Draw(rt, "W")
	l, err := throttle.New(rdb, "rule", throttle.Sliding(n, window), throttle.Config{})
	if err != nil {
		rt.Fatal(err)
	}
	tr := &trace{
		T: rt, ctx: ctx, l: l, m: newModel(n, window), rdb: rdb, raw: raw, setTime: setTime, back: back,
		now: start.UnixMicro(), costs: map[string]int{},
	}
	tr.m.mixed = n > 1 && rapid.Bool().Draw(rt, "mixed costs")
	equal := rapid.IntRange(1, min(n, 3)).Draw(rt, "cost")
	for i := range 12 {
		job := fmt.Sprintf("job:%d", i)
		tr.jobs = append(tr.jobs, job)
		tr.costs[job] = equal
		if tr.m.mixed {
			tr.costs[job] = rapid.IntRange(1, n).Draw(rt, "cost of "+job)
		}
	}
	tr.move(0)
	for range rapid.IntRange(5, 60).Draw(rt, "length") {
		tr.step()
		tr.invariants()
	}
}

func (tr *trace) step() {
	switch op := rapid.IntRange(0, 19).Draw(tr.T, "op"); op {
	case 0, 1, 2, 3, 4:
		tr.redeem(tr.job(), throttle.NewToken(), tr.maxWait())
	case 5, 6:
		tr.book(tr.job())
	case 7, 8:
		tr.try(rapid.IntRange(1, tr.m.n).Draw(tr.T, "cost"))
	case 9:
		tr.again()
	case 10:
		tr.cancel(tr.job())
	case 11:
		tr.refund(false)
	case 12:
		tr.refund(true)
	case 13:
		tr.check(tr.job())
	case 14:
		tr.peek()
	case 15:
		tr.lose()
	default:
		tr.tick()
	}
}

func (tr *trace) job() string { return rapid.SampledFrom(tr.jobs).Draw(tr.T, "job") }

func (tr *trace) maxWait() time.Duration {
	return rapid.SampledFrom([]time.Duration{0, 0, 0, -1, time.Duration(tr.m.window) * time.Microsecond}).Draw(tr.T, "max wait")
}

// move sets the clock. A trace stays below an hour: then late turns are forgotten.
func (tr *trace) move(d int64) {
	if tr.now+d-start.UnixMicro() > 50*60e6 || (d < 0 && !tr.back) {
		return
	}
	tr.now += d
	tr.latest = max(tr.latest, tr.now)
	tr.setTime(time.UnixMicro(tr.now))
}

func (tr *trace) tick() {
	w := tr.m.window
	steps := []int64{1, 999, 15_000, 60_000, w / 3, w - 15_000, w - 1, w, w + 1, 2 * w, 150_000, -1, -w / 3, -w, -3 * w}
	if first := len(tr.m.line); first > 0 { // to the head's instant, or a little before
		told := tr.m.told[tr.m.line[0].job]
		steps = append(steps, told-tr.now, told-tr.now-15_000, told-tr.now+100_000, told-tr.now+100_001, told-tr.now-50_000, told-tr.now-50_001)
	}
	tr.move(rapid.SampledFrom(steps).Draw(tr.T, "time"))
}

// invariants hold after every call, whatever the model says.
func (tr *trace) invariants() {
	if from, used, over := tr.m.over(); over {
		tr.Fatalf("%d permits of %d within one window from %v", used, tr.m.n, time.UnixMicro(from))
	}
	keys, err := tr.raw.Keys(tr.ctx, "hw:*").Result()
	if err != nil {
		tr.Fatal(err)
	}
	for _, k := range keys {
		if ttl, err := tr.raw.PTTL(tr.ctx, k).Result(); ttl < 0 || err != nil { // -1: none
			tr.Fatalf("PTTL(%s) = %v, %v, want a life", k, ttl, err)
		}
	}
	line, err := waiting(tr.ctx, tr.raw, "hw:{"+tr.l.ID(key)+"}:rule:line")
	if err != nil {
		tr.Fatal(err)
	}
	// Who is parked stands before all others, in the order of tickets too.
	var want []string
	for _, p := range append(tr.m.inTickets(), tr.m.line...) {
		want = append(want, fmt.Sprintf("%d:%s", p.cost, p.job))
	}
	if !slices.Equal(line, want) {
		tr.Fatalf("line = %v, want %v", line, want)
	}
}

// content is all that Redis holds of ours.
func (tr *trace) content() map[string]string {
	out := map[string]string{}
	keys, err := tr.raw.Keys(tr.ctx, "hw:*").Result()
	if err != nil {
		tr.Fatal(err)
	}
	for _, k := range keys {
		if strings.HasSuffix(k, ":rule") {
			out[k], err = tr.raw.Get(tr.ctx, k).Result()
		} else {
			var members []redis.Z
			members, err = tr.raw.ZRangeWithScores(tr.ctx, k, 0, -1).Result()
			out[k] = fmt.Sprint(members)
		}
		if err != nil {
			tr.Fatal(err)
		}
	}
	return out
}

func (tr *trace) again() {
	var tokens []throttle.Token
	for _, g := range tr.m.spent {
		if !g.refunded && !g.gone && g.at+tr.m.window > tr.latest && g.job != "" {
			tokens = append(tokens, g.token)
		}
	}
	if len(tokens) > 0 {
		g := *tr.m.find(rapid.SampledFrom(tokens).Draw(tr.T, "token"))
		d, err := tr.l.Policy().Redeem(tr.ctx, throttle.Request{Key: key, Cost: g.cost, Job: g.job, Token: g.token})
		if err != nil || !d.Granted || d.At.UnixMicro() != g.at {
			tr.Fatalf("the same token again: %v, %v, want the grant at %v", d, err, time.UnixMicro(g.at))
		}
	}
	for token, at := range tr.m.withdrawn {
		if at+60e6 <= tr.latest {
			continue
		}
		job := tr.jobs[0]
		_, err := tr.l.Policy().Redeem(tr.ctx, throttle.Request{Key: key, Cost: tr.costs[job], Job: job, Token: token})
		if !errors.Is(err, throttle.ErrWithdrawn) {
			tr.Fatalf("Redeem with a withdrawn token: %v, want %v", err, throttle.ErrWithdrawn)
		}
	}
}

// What each call of a [trace] must answer, and what it does to the model.

func (tr *trace) redeem(job string, token throttle.Token, maxWait time.Duration) {
	cost := tr.costs[job]
	d, err := tr.l.Policy().Redeem(tr.ctx, throttle.Request{Key: key, Cost: cost, Job: job, Token: token, MaxWait: maxWait})
	tr.asked(d, err, job, cost, maxWait, tr.m.inline, true)
}

func (tr *trace) book(job string) {
	cost := tr.costs[job]
	d, err := tr.l.Policy().Book(tr.ctx, throttle.Request{Key: key, Cost: cost, Job: job})
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
	turn, err := tr.l.Policy().Cancel(tr.ctx, throttle.Request{Key: key, Cost: tr.costs[job], Job: job})
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
	call := tr.l.Policy().Refund
	if back {
		call = func(ctx context.Context, r throttle.Request) ([]throttle.Promotion, error) {
			return throttle.ForWorkers.Return(ctx, tr.l.Policy(), r)
		}
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
	got := throttle.ForWorkers.Refresh(tr.ctx, tr.rdb, []throttle.BookingRef{p})[0]
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
