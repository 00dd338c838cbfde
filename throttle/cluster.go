package throttle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/limitscripts"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/redisclock"
	"github.com/headwayq/headway/internal/rediserr"
)

// storeOn is the store of a client: one script for all rules where one server has
// all keys, and one for each hash slot on Redis Cluster.
func storeOn(rdb redis.UniversalClient) store {
	if luascripts.Sharded(rdb) {
		return clusterStore{redisStore{rdb, coalescerOf(rdb, true)}}
	}
	return redisStore{rdb, coalescerOf(rdb, false)}
}

// clusterStore asks one script for each hash slot, the narrowest key first, because a
// script there sees the keys of one hash slot only. The permits that it took are given back when a
// later rule refuses; in between others see them as spent, and get a later
// instant than need be for a moment. A process that dies in between leaves a permit
// charged that nobody used. Each hash slot grants by the clock of its own server, so a job
// may start after the instant at which a rule counts it, by as much as a grant may
// be old when it is acted on (see [slack]). Where it is older when the last server has answered, all are asked at once to let it
// count from then on. Where a server always takes longer than that to answer, each grant comes too late and is given back.
//
// The clocks of servers differ. An answer is by the clock of the server that has the
// narrowest key: what others say is carried over by the difference, as far as their replies
// have shown it.
type clusterStore struct{ redisStore }

// hashSlot are the calls from..to of the rules that share a key, and so a hash slot. Two keys in one hash slot are asked one after the other, too.
type hashSlot struct{ from, to int }

// hashSlots splits calls where the key changes.
func hashSlots(calls []limitscripts.RuleCall) []hashSlot {
	var out []hashSlot
	for i := range calls {
		if i > 0 && calls[i].ID == calls[i-1].ID {
			out[len(out)-1].to = i + 1
			continue
		}
		out = append(out, hashSlot{i, i + 1})
	}
	return out
}

func (s clusterStore) acquire(ctx context.Context, c *limitscripts.Call, by undoer) error {
	a := c.AcquireArgs
	all := hashSlots(a.Rules)
	base, err := s.clockOf(ctx, a.Rules[0])
	if err != nil {
		return err
	}
	if len(all) == 1 {
		_, err := s.ask(ctx, c, base, 0)
		return err
	}
	if a.Mode == limitscripts.Anew {
		return s.anew(ctx, c, all, base)
	}
	if a.Mode == limitscripts.BookLastRule {
		if last := lastRateHashSlot(a.Rules); last.to > 0 {
			return s.bookLastRule(ctx, c, last, base, by)
		}
		a.Mode = limitscripts.Book
	}
	out := emptyReply(len(a.Rules))
	var earliest time.Time // of the grants
	for n, at := range all {
		call := limitscripts.Call{AcquireArgs: a}
		call.Rules, call.Mode, call.Later = a.Rules[at.from:at.to], modeAt(a.Mode, a.Rules[at.to:]), at.to < len(a.Rules)
		if n > 0 {
			call.Inline = min(a.Inline, max(0, earliest.Add(slack(a.Rules[:at.from])).Sub(out.Now)))
		}
		var r limitscripts.AcquireReply
		var counted time.Time
		if counted, err = s.ask(ctx, &call, base, staleHashSlots); err == nil { // after an error others may write to it still
			r = call.AcquireReply
		}
		for _, given := range all[:hashSlotsToUndo(n, r.Status, err)] {
			g := hashSlotGrant{at: given, token: Token(a.Token), job: a.Job, worth: out.Worth, each: out.Each, again: err != nil}
			switch {
			case a.Job == "":
			case err == nil:
				if away := awayUntil(call.Rules, r); !away.IsZero() {
					g.away = s.shownBy(ctx, a.Rules[given.from], away, base)
				}
				g.park = waitsForLease(call.Rules, r)
			default:
				g.park = true // it finds its place again when it comes again
			}
			by.undo(ctx, g)
		}
		if err != nil {
			break
		}
		if n == 0 || r.At.Before(earliest) {
			earliest = r.At
		}
		out = joined(out, r, at, counted)
		if r.Status == limitscripts.Booked || r.Status == limitscripts.TooLate {
			leaveLeases(ctx, a, r, all[n+1:], by)
		}
		if r.Status != limitscripts.Granted {
			break
		}
	}
	c.AcquireReply = out
	return err
}

// anew asks all hash slots at once. Where some do not let the grant count from now on, it stays there as it was.
func (s clusterStore) anew(ctx context.Context, c *limitscripts.Call, all []hashSlot, base *redisclock.Clock) error {
	a := c.AcquireArgs
	replies, counted, errs := make([]limitscripts.AcquireReply, len(all)), make([]time.Time, len(all)), make([]error, len(all))
	atOnce(all, func(n int, at hashSlot) {
		call := limitscripts.Call{AcquireArgs: a}
		call.Rules = a.Rules[at.from:at.to]
		if counted[n], errs[n] = s.ask(ctx, &call, base, staleHashSlots); errs[n] == nil { // after an error others may write to it still
			replies[n] = call.AcquireReply
		}
	})
	if err := hashSlotsError(errs); err != nil {
		return err
	}
	out, refused := emptyReply(len(a.Rules)), limitscripts.Granted
	for n, at := range all {
		if replies[n].Status != limitscripts.Granted {
			counted[n], refused = time.Time{}, replies[n].Status
		}
		out = joined(out, replies[n], at, counted[n])
	}
	out.Status = refused
	c.AcquireReply = out
	return nil
}

// emptyReply is the reply of no hash slot, to a call of so many rules.
func emptyReply(rules int) limitscripts.AcquireReply {
	return limitscripts.AcquireReply{Worth: make([]int64, rules), Each: make([]time.Time, rules), Left: make([]int, rules)}
}

// atOnce calls f for all hash slots at the same time. When a hook of the client panics the caller panics, as
// it does where it makes the call itself.
func atOnce(all []hashSlot, f func(n int, at hashSlot)) {
	if len(all) == 1 {
		f(0, all[0])
		return
	}
	panics := make([]any, len(all))
	var wg sync.WaitGroup
	for n, at := range all {
		wg.Go(func() {
			defer func() { panics[n] = recover() }()
			f(n, at)
		})
	}
	wg.Wait()
	for _, p := range panics {
		if p != nil {
			panic(p)
		}
	}
}

// clockOf is the clock of the server that has the key of a rule.
func (s clusterStore) clockOf(ctx context.Context, rule limitscripts.RuleCall) (*redisclock.Clock, error) {
	on, err := s.coalescer.nodeOf(ctx, rule.Ledger())
	if err != nil {
		return nil, err
	}
	return &on.clock, nil
}

// ask asks one hash slot, whose answer is carried over to the clock base. By its own clock the
// hash slot counts a grant at the instant counted. The grant may be acted on for so long at least.
func (s clusterStore) ask(ctx context.Context, c *limitscripts.Call, base *redisclock.Clock, least time.Duration) (counted time.Time, err error) {
	clock, err := s.clockOf(ctx, c.Rules[0])
	if err != nil {
		return counted, err
	}
	when := roundTripTimes{began: time.Now()}
	if err := s.redisStore.acquire(ctx, c, nil); err != nil {
		return counted, err
	}
	r := &c.AcquireReply
	counted = r.At
	when.shown, when.confirmed = clock.Observe(r.Now, when.began, time.Now())
	when.localTimes(r, max(least, slack(c.Rules)))
	d := base.Ahead(clock)
	for _, at := range []*time.Time{&r.At, &r.From, &r.Now, &r.Promised} {
		carryOver(at, d)
	}
	for i := range r.Promoted {
		carryOver(&r.Promoted[i].At, d)
	}
	return counted, nil
}

// carriedOver makes the instants of promotions those of a clock that shows to while theirs
// shows from.
func carriedOver(promoted []limitscripts.Promotion, from, to time.Time) []limitscripts.Promotion {
	for i := range promoted {
		promoted[i].At = promoted[i].At.Add(to.Sub(from))
	}
	return promoted
}

// carryOver makes an instant one of a clock that is so far ahead.
func carryOver(at *time.Time, ahead time.Duration) {
	if !at.IsZero() {
		*at = at.Add(ahead)
	}
}

// modeAt is the mode in which a hash slot is asked. A job that books is to wait in the
// line of the widest rate when nothing holds it up. So the hash slots before that one are
// asked for a grant, which is given back. The hash slots behind it hold leases alone, and
// are asked when the job comes for its grant.
func modeAt(mode limitscripts.Mode, wider []limitscripts.RuleCall) limitscripts.Mode {
	if mode == limitscripts.Book && slices.ContainsFunc(wider, isRate) {
		return limitscripts.GrantOrBook
	}
	return mode
}

func isRate(p limitscripts.RuleCall) bool { return p.Kind != limitscripts.Leases }

// hashSlotsToUndo is how many of the hash slots, from the first, have something to give back after the
// hash slot n gave this answer. A hash slot whose answer is lost may have. A call that is repeated in a
// moment, with the same token and other numbers, finds the grants where they are.
func hashSlotsToUndo(n int, status limitscripts.Status, err error) int {
	switch {
	case err != nil && n > 0:
		return n + 1
	case err != nil, status == limitscripts.Granted, status == limitscripts.NotCovered, status == limitscripts.Outdated:
		return 0
	}
	return n
}

// joined adds the answer of one hash slot to those before.
func joined(out, r limitscripts.AcquireReply, at hashSlot, counted time.Time) limitscripts.AcquireReply {
	out.Status, out.Rule, out.Now, out.Version = r.Status, 0, r.Now, r.Version
	if r.Status != limitscripts.Granted || r.Local.Start.After(out.Local.Start) {
		out.Local.Start = r.Local.Start
	}
	if r.Status != limitscripts.Granted || out.Local.Until.IsZero() || r.Local.Until.Before(out.Local.Until) {
		out.Local.Until = r.Local.Until
	}
	out.Local.Repeated = out.Local.Repeated || r.Local.Repeated
	if r.Rule > 0 {
		out.Rule = at.from + r.Rule
	}
	if r.At.After(out.At) || r.Status != limitscripts.Granted {
		out.At = r.At
	}
	if r.From.After(out.From) {
		out.From = r.From
	}
	if r.Promised.After(out.Promised) || r.Status != limitscripts.Granted && !r.Promised.IsZero() {
		out.Promised = r.Promised
	}
	out.Fence = max(out.Fence, r.Fence)
	copy(out.Worth[at.from:at.to], r.Worth)
	for i := at.from; i < at.to; i++ {
		out.Each[i] = counted
	}
	copy(out.Left[at.from:at.to], r.Left)
	out.Promoted = append(out.Promoted, moved(r.Promoted, at)...)
	return out
}

// moved counts the rules of promotions as the whole call does.
func moved(promoted []limitscripts.Promotion, at hashSlot) []limitscripts.Promotion {
	for i := range promoted {
		promoted[i].Rule += at.from
	}
	return promoted
}

// awayUntil is how long a job that this hash slot refused keeps its turn in the hash slots before. It is
// zero when it keeps none: a job that waits for a gate has no place anywhere, and one that waits for a lease is parked, see waitsForLease.
func awayUntil(asked []limitscripts.RuleCall, r limitscripts.AcquireReply) time.Time {
	if r.Status != limitscripts.Booked || r.Rule == 0 || !isRate(asked[r.Rule-1]) {
		return time.Time{}
	}
	return r.At
}

// shownBy is an instant of the clock base by the clock of the server that has the key of a rule.
func (s clusterStore) shownBy(ctx context.Context, rule limitscripts.RuleCall, at time.Time, base *redisclock.Clock) time.Time {
	if clock, err := s.clockOf(ctx, rule); err == nil {
		carryOver(&at, clock.Ahead(base))
	}
	return at
}

// waitsForLease says that a job waits for a lease here. Then it is parked in the hash slots before. With a turn there it would put off all behind it
// until the end of a lease, and most leases are given back long before they end. Without any place there it would join the end of those lines when
// a lease is offered to it. The first jobs of those lines are refused here, because others wait for leases. So nobody would go.
func waitsForLease(asked []limitscripts.RuleCall, r limitscripts.AcquireReply) bool {
	return r.Status == limitscripts.Booked && r.Rule > 0 && !isRate(asked[r.Rule-1])
}

// leaveLeases parks a job that waits elsewhere in the lines for leases in other hash slots. A free lease would be kept for it there for a
// second, and nobody else get it. When it waits for a gate, or not at all, it leaves them.
func leaveLeases(ctx context.Context, a limitscripts.AcquireArgs, refused limitscripts.AcquireReply, wider []hashSlot, by undoer) {
	waits := refused.Status == limitscripts.Booked && refused.Rule > 0
	for _, at := range wider {
		if a.Job != "" && a.Rules[at.from].Kind == limitscripts.Leases {
			by.undo(ctx, hashSlotGrant{at: at, job: a.Job, park: waits}) // there is no grant
		}
	}
}

// cancel gives back in all hash slots.
func (s clusterStore) cancel(ctx context.Context, a limitscripts.CancelArgs) (limitscripts.CancelReply, error) {
	return inAllHashSlots(a.Rules, func(n int, at hashSlot) (limitscripts.CancelReply, error) {
		call := a
		call.Rules = a.Rules[at.from:at.to]
		call.Back = a.Back && n == 0 // it comes back by the narrowest key
		return s.redisStore.cancel(ctx, call)
	})
}

// adjust corrects a charge in all hash slots. Also beside an error the answer says what was spent where a server answered: a hash slot
// does not say it again.
func (s clusterStore) adjust(ctx context.Context, a limitscripts.AdjustArgs) (limitscripts.CancelReply, error) {
	return inAllHashSlots(a.Rules, func(_ int, at hashSlot) (limitscripts.CancelReply, error) {
		call := a
		call.Rules = a.Rules[at.from:at.to]
		if !slices.ContainsFunc(call.Rules, func(r limitscripts.RuleCall) bool { return r.Cost != 0 }) {
			return limitscripts.CancelReply{Status: limitscripts.Granted, Spent: make([]int, at.to-at.from)}, nil // its server may be away
		}
		r, err := s.redisStore.adjust(ctx, call)
		if err != nil || r.Spent == nil { // this hash slot has done it before, or it is not known what it did
			r.Spent = slices.Repeat([]int{-1}, at.to-at.from)
		}
		return r, err
	})
}

// inAllHashSlots makes one call in all hash slots at the same time: a server that is silent for as long as the context lasts must not
// keep the others from being asked. A status for which the call is repeated goes before an error, so that it is repeated.
func inAllHashSlots(calls []limitscripts.RuleCall, call func(n int, at hashSlot) (limitscripts.CancelReply, error)) (limitscripts.CancelReply, error) {
	all := hashSlots(calls)
	replies, errs := make([]limitscripts.CancelReply, len(all)), make([]error, len(all))
	atOnce(all, func(n int, at hashSlot) { replies[n], errs[n] = call(n, at) })
	out := limitscripts.CancelReply{Status: replies[0].Status}
	fault := false
	for n, at := range all {
		r := replies[n]
		out.Spent = append(out.Spent, r.Spent...)
		if errs[n] != nil {
			continue
		}
		if r.Status > limitscripts.Withdrawn && !fault {
			fault = true
			out.Status, out.Rule, out.Version = r.Status, r.Rule+at.from, r.Version
		}
		if !r.Now.IsZero() {
			out.Now = r.Now
		}
		out.Promoted = append(out.Promoted, moved(r.Promoted, at)...)
	}
	if fault {
		return out, nil
	}
	return out, hashSlotsError(errs)
}

// hashSlotsError joins the errors of hash slots, each text once. When some servers did not answer, it leaves out what others answered: the
// joined error would look as if all had answered.
func hashSlotsError(errs []error) error {
	answered := func(err error) bool { return rediserr.Of(err).Answered() }
	if slices.ContainsFunc(errs, func(err error) bool { return !answered(err) }) {
		errs = slices.DeleteFunc(errs, answered)
	}
	texts := map[string]bool{}
	return errors.Join(slices.DeleteFunc(errs, func(err error) bool {
		if err == nil || texts[err.Error()] {
			return true
		}
		texts[err.Error()] = true
		return false
	})...)
}

// close closes the key of one rule. In the hash slots before, the job keeps no place
// until it comes again.
func (s clusterStore) close(ctx context.Context, a limitscripts.CloseArgs) (limitscripts.CloseReply, error) {
	var at hashSlot
	for _, at = range hashSlots(a.Rules) {
		if a.Rule <= at.to {
			break
		}
	}
	a.Rules, a.Rule = a.Rules[at.from:at.to], a.Rule-at.from
	r, err := s.redisStore.close(ctx, a)
	if r.Rule > 0 {
		r.Rule += at.from
	}
	r.Promoted = moved(r.Promoted, at)
	return r, err
}

// refresh asks about each hash slot of each booking, all in one pipeline for each node.
// The job waits for the hash slot that lets it wait longest. Their servers answer at about the
// same time, each by its own clock.
func (s clusterStore) refresh(ctx context.Context, bookings []limitscripts.RefreshArgs) []limitscripts.RefreshReply {
	var calls []limitscripts.RefreshArgs
	var of []int // the booking of each call
	var where []hashSlot
	for i, b := range bookings {
		for _, at := range hashSlots(b.Rules) {
			calls = append(calls, limitscripts.RefreshArgs{
				Rules: b.Rules[at.from:at.to], Policy: b.Policy, Job: b.Job, HoldAfterFailover: b.HoldAfterFailover,
			})
			of, where = append(of, i), append(where, at)
		}
	}
	fails := func(r limitscripts.RefreshReply) bool { return r.Err != nil || r.Status > limitscripts.Withdrawn }
	out := make([]limitscripts.RefreshReply, len(bookings))
	for n, r := range s.refreshByMaster(ctx, calls) {
		r.Promoted = moved(r.Promoted, where[n])
		if r.Rule > 0 {
			r.Rule += where[n].from
		}
		o := &out[of[n]]
		if first := n == 0 || of[n-1] != of[n]; first {
			*o = r
			continue
		}
		kept, other := *o, r
		longer := r.Status == limitscripts.Booked && (o.Status != limitscripts.Booked || r.At.Sub(r.Now) >= o.At.Sub(o.Now))
		if !fails(kept) && (fails(r) || longer) {
			kept, other = r, *o
		}
		if kept.Now.IsZero() { // it has failed without an instant
			kept.Now = other.Now
		}
		kept.Promoted = append(kept.Promoted, carriedOver(other.Promoted, other.Now, kept.Now)...)
		*o = kept
	}
	return out
}

// refreshPatience is how long one master of a Cluster may take to say how bookings stand. Wakers wait for it, also for the tasks of other
// masters.
const refreshPatience = time.Second

var errRefreshSilent = fmt.Errorf("its master did not say within %v how the booking stands", refreshPatience)

// refreshByMaster is refresh for calls of one hash slot each. It asks all masters at the same time. The calls of one that does not answer in
// time fail, and until it has answered the next ones to it fail at once. The promotions in a late answer are lost.
func (s clusterStore) refreshByMaster(ctx context.Context, calls []limitscripts.RefreshArgs) []limitscripts.RefreshReply {
	if s.coalescer.cluster == nil {
		return s.redisStore.refresh(ctx, calls)
	}
	out := make([]limitscripts.RefreshReply, len(calls))
	ofMaster := map[string][]int{}
	for n, c := range calls {
		addr := s.coalescer.masterKnown(c.Rules[0].Ledger())
		ofMaster[addr] = append(ofMaster[addr], n)
	}
	waiting, end := context.WithTimeout(ctx, refreshPatience)
	defer end()
	var masters sync.WaitGroup
	for addr, indices := range ofMaster {
		masters.Go(func() {
			asked := make([]limitscripts.RefreshArgs, len(indices))
			for i, n := range indices {
				asked[i] = calls[n]
			}
			replies, inTime := s.coalescer.whileAnswering(waiting, addr, func() []limitscripts.RefreshReply { return s.redisStore.refresh(ctx, asked) })
			for i, n := range indices {
				out[n].Err = errRefreshSilent
				if inTime {
					out[n] = replies[i]
				}
			}
		})
	}
	masters.Wait()
	return out
}

// lastRateHashSlot is the hash slot of the widest rate, empty when there is no rate.
func lastRateHashSlot(calls []limitscripts.RuleCall) hashSlot {
	var last hashSlot
	for _, at := range hashSlots(calls) {
		if calls[at.from].Kind != limitscripts.Leases {
			last = at
		}
	}
	return last
}

// bookLastRule books in one hash slot. The other hash slots are peeked at before, so that most
// jobs that are refused leave nothing behind.
func (s clusterStore) bookLastRule(ctx context.Context, c *limitscripts.Call, last hashSlot, base *redisclock.Clock, by undoer) error {
	a := c.AcquireArgs
	at, rule, fault, err := s.admittedBy(ctx, a.Rules, last, base)
	if err != nil || fault.Status != limitscripts.Refused {
		c.AcquireReply = fault
		return err
	}
	call := limitscripts.Call{AcquireArgs: a}
	call.Rules = a.Rules[last.from:last.to]
	counted, err := s.ask(ctx, &call, base, staleHashSlots)
	if err != nil {
		return err // others may write to the call still
	}
	out := joined(emptyReply(len(a.Rules)), call.AcquireReply, last, counted)
	if out.Status == limitscripts.Booked && out.Promised.IsZero() && at.After(out.At) {
		by.undo(ctx, hashSlotGrant{at: last, job: a.Job}) // there is only a place, and no grant
		out.Status, out.Rule, out.At = limitscripts.Refused, rule, at
	}
	if out.Status == limitscripts.Refused && a.MaxWait >= 0 && out.At.After(out.Now.Add(a.MaxWait)) {
		out.Status = limitscripts.TooLate
	}
	c.AcquireReply = out
	return nil
}

// admittedBy is when all rules outside of one hash slot would admit a new job, and which
// rule is the last of them, counted from 1. Otherwise it is the status of a rule
// that can't be decided about.
func (s clusterStore) admittedBy(ctx context.Context, calls []limitscripts.RuleCall, but hashSlot,
	base *redisclock.Clock) (at time.Time, by int, fault limitscripts.AcquireReply, _ error) {
	for i := range calls {
		p := &calls[i]
		if i >= but.from && i < but.to {
			continue
		}
		clock, err := s.clockOf(ctx, *p)
		if err != nil {
			return at, by, fault, err
		}
		began := time.Now()
		r, err := s.peek(ctx, p.LimitKeys, limitscripts.PeekArgs{Numbers: p.Numbers, Cost: p.Cost, Closed: p.Closed})
		if err != nil {
			return at, by, fault, err
		}
		clock.Observe(r.Now, began, time.Now())
		d := base.Ahead(clock)
		for _, at := range []*time.Time{&r.Now, &r.Next, &r.Closed} {
			carryOver(at, d)
		}
		if r.Status != limitscripts.Granted {
			return at, by, limitscripts.AcquireReply{Status: r.Status, Rule: i + 1, Now: r.Now, Version: r.Version}, nil
		}
		admits := r.Next
		if p.Kind == limitscripts.Leases {
			admits = r.Closed
		}
		if admits.After(at) {
			at, by = admits, i+1
		}
	}
	return at, by, fault, nil
}
