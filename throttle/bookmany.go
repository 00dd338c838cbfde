package throttle

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/limitscripts"
)

// BookRequest is what one job of BookMany asks of its policy.
type BookRequest struct {
	Policy *Policy
	Request

	// LastRuleOnly books in the line of the widest rate only, and only at an instant at
	// which the narrower rules admit the job too: a batch of jobs for one provider would
	// otherwise fill the lines of their phones, each with jobs that hold up its others. A
	// job that gets no place so is answered with Decision.Refused, and At, from when on
	// a place can be had; a closed gate refuses it as well. One that has a place keeps it.
	// A rule that limits how many run at once refuses no job while it is open: a slot that
	// is taken now will be free by then. A policy of nothing else books as [Policy.Book] does.
	//
	// "one per phone per minute" sent to a phone at 09:00:10, "100/s" booked until
	// 09:00:40: a job for that phone is refused with 09:01:10, others get 09:00:40.
	//
	// On Redis Cluster the narrower keys are looked at before the widest one is booked,
	// not in one step with it: another job may come between. A job that has a place there already
	// is not seen by the look at a narrower key, either: the second job of a phone may get a place
	// at an instant at which the phone will refuse it. It asks once more then, and is late.
	LastRuleOnly bool
}

// mode is what a script may do for the request.
func (w *BookRequest) mode() limitscripts.Mode {
	if w.LastRuleOnly {
		return limitscripts.BookLastRule
	}
	return limitscripts.Book
}

// book sends the request by itself.
func (w *BookRequest) book(ctx context.Context) Booking {
	r := w.Request
	r.Token = NewToken()
	d, err := w.Policy.decideForJob(ctx, w.mode(), r)
	return Booking{d, err}
}

// Booking is the answer to one request, as [Policy.Book] gives it.
type Booking struct {
	Decision
	Err error
}

// bookMany is ForWorkers.BookMany.
func bookMany(ctx context.Context, rdb redis.UniversalClient, requests []BookRequest) []Booking {
	out := make([]Booking, len(requests))
	if len(requests) == 1 { // with those of other goroutines, if there are any
		out[0] = requests[0].book(ctx)
		return out
	}
	var batch []*bookCall
	weight := 0
	send := func() {
		bookBatch(ctx, rdb, batch)
		for _, c := range batch {
			*c.out = c.answer(ctx)
		}
		batch, weight = nil, 0
	}
	for i := range requests {
		c := newBookCall(ctx, requests[i], &out[i])
		if !c.batchable {
			send() // it is decided after those before it
			*c.out = c.answer(ctx)
			continue
		}
		w := weightOf(&c.call.AcquireArgs)
		if len(batch) > 0 && weight+w > limitscripts.CallsMax {
			send()
		}
		batch, weight = append(batch, c), weight+w
	}
	send()
	return out
}

// bookCall is one request among those of one script call.
type bookCall struct {
	acquisition
	out       *Booking
	batchable bool // it may share a script call with others

	call limitscripts.Call
	when roundTripTimes
}

// newBookCall checks a request as far as that can be done without Redis.
func newBookCall(ctx context.Context, w BookRequest, out *Booking) *bookCall {
	p := w.Policy
	c := &bookCall{acquisition: acquisition{p: p, mode: w.mode(), r: w.Request}, out: out}
	c.r.Token, c.r.grant, c.r.made = NewToken(), grant{}, fromStore
	if !batchable(p) {
		return c
	}
	if checkJob(c.r.Job) != nil || c.r.check(p.rules) != nil {
		return c // the error follows when it is sent by itself
	}
	limits, err := p.limitsInForce(ctx, byRequest(&c.r))
	if err != nil {
		return c
	}
	if _, err := p.rules.fits(limits, &c.r); err != nil {
		return c
	}
	c.limits = limits
	c.fill(&c.call)
	_, sharded := p.store.store.(clusterStore)
	c.batchable = !sharded || len(hashSlots(c.call.Rules)) == 1
	return c
}

// batchable says whether calls of the policy may share a script call with others.
func batchable(p *Policy) bool {
	if p.cfg.Shadow || p.fallback.mode != FailClosed {
		return false
	}
	switch at := p.store.store.(type) {
	case redisStore:
		return !at.coalescer.scattered.Load()
	case clusterStore:
		return at.coalescer.cluster != nil
	}
	return false
}

// bookBatch sends calls together. When only the reply was lost they are sent once
// more: a job that is in the line by then keeps its place.
func bookBatch(ctx context.Context, rdb redis.UniversalClient, batch []*bookCall) {
	if len(batch) == 0 {
		return
	}
	calls := make([]*limitscripts.Call, len(batch))
	for i, c := range batch {
		around := c.p.store.now()
		setLimits(c.call.Rules, c.limits, around)
		c.call.Gate = gateAround(c.r.Gates, around)
		c.when.began = time.Now()
		calls[i] = &c.call
	}
	_ = sendMany(ctx, rdb, calls) // each has its own error
	ended := time.Now()
	for _, c := range batch {
		c.when.ended = ended
	}
}

// answer is the booking. A call that was not sent with others, or could not be
// decided there (its limit has changed, or the clock went into another window), is
// sent by itself.
func (c *bookCall) answer(ctx context.Context) Booking {
	p, reply, err := c.p, &c.call.AcquireReply, c.call.Err
	c.when.observe(p.store, reply.Now)
	again := err == nil && (reply.Status == limitscripts.NotCovered || reply.Status == limitscripts.Outdated)
	if !c.batchable || again || errors.Is(err, limitscripts.ErrRetrySingly) {
		d, err := p.decideForJob(ctx, c.mode, c.r)
		return Booking{d, err}
	}
	c.begin()
	if err = p.rules.fault(ctx, "acquire", reply.Rule, reply.Status, err); err == nil {
		c.when.localTimes(reply, slack(c.call.Rules))
		err = c.read(reply, c.limits, c.when)
	}
	c.count(ctx, err)
	return Booking{c.d, err}
}
