package memory

import (
	"time"

	"github.com/headwayq/headway/internal/luascripts"
)

// Acquire grants permits, or books a place in the line, or refuses.
func (s *Store) Acquire(k luascripts.Limit, a luascripts.AcquireArgs) luascripts.AcquireReply {
	var r luascripts.AcquireReply
	now, no := s.on(k, a.Numbers, func(c *call) {
		if held, known := c.holds(a.Token); known {
			r = c.again(a.Token, held)
			return
		}
		r = c.acquire(a)
	})
	if no.status != 0 {
		r.Status, r.Version = no.status, no.version
	}
	r.Now = instantOf(now)
	return r
}

// again answers a copy of a call as the call was answered.
func (c *call) again(token uint64, held int64) luascripts.AcquireReply {
	if held < 0 {
		return luascripts.AcquireReply{Status: luascripts.Withdrawn}
	}
	r := luascripts.AcquireReply{Status: luascripts.Granted, At: instantOf(held), From: instantOf(held)}
	if c.ledger.token == token {
		r.Worth = c.state.worth(c.numbers)
	}
	return r
}

// asked is a job that wants permits, and what it finds.
type asked struct {
	me     string
	view   view
	ticket int64
	waits  bool // it is in the line, or parked
	at     int64
}

func (c *call) acquire(a luascripts.AcquireArgs) luascripts.AcquireReply {
	cost := int64(a.Cost)
	q := asked{me: member(luascripts.Member{Job: a.Job, Cost: a.Cost})}
	q.view = c.line.look(q.me, c.now)
	place, told := q.view.last, int64(0)
	if q.me != "" {
		if q.ticket, q.waits = c.line.score(q.me); q.waits {
			told, _ = c.line.promised.score(q.me)
			place = c.line.place(q.ticket)
		}
	}
	before := c.line.before(q.view.first, place)
	q.at = c.slot(c.now, before, cost)
	from := int64(0)
	if c.state.newest() > 0 {
		from = c.slot(0, before, cost)
	}
	r := luascripts.AcquireReply{At: instantOf(q.at), From: instantOf(from), Promised: instantOf(told)}

	inline := int64(0)
	if a.Mode != luascripts.Try {
		inline = micros(a.Inline)
	}
	turn := q.waits || q.view.first == q.view.last
	grant := turn && a.Mode != luascripts.Book && q.at <= c.now+inline
	switch {
	case a.Mode == luascripts.Try && !grant:
		c.outlive()
		c.line.park(q.view) // or newcomers that only try would never get past more than 20
	case a.MaxWait >= 0 && q.at > c.now+int64(a.MaxWait/time.Microsecond):
		c.outlive()
		r.Status, r.Next = luascripts.TooLate, c.giveUp(q)
	case grant:
		r.Status, r.Next = luascripts.Granted, c.grant(q, a.Token, cost)
		r.Worth = c.state.worth(c.numbers)
	default:
		r.Status = luascripts.Booked
		c.book(q)
		c.outlive()
	}
	return r
}

func (c *call) giveUp(q asked) luascripts.Turn {
	if q.waits {
		c.line.leave(q.me)
	}
	c.line.park(q.view)
	return c.next()
}

func (c *call) grant(q asked, token uint64, cost int64) luascripts.Turn {
	was, wasAt := c.ledger.token, c.state.newest()
	c.state.charge(c.numbers, q.at, cost)
	c.ledger.token = token
	c.store()
	c.tokens.remember(was, wasAt, c.w, c.now, c.extra)
	if c.w < copied {
		c.tokens.remember(token, q.at, c.w, c.now, c.extra)
	}
	c.line.park(q.view)
	if q.waits {
		c.line.leave(q.me)
	}
	if q.view.last == 0 {
		return luascripts.Turn{}
	}
	return c.next()
}

func (c *call) book(q asked) {
	switch {
	case !q.waits:
		c.line.join(q.view, q.me, q.at, c.now)
	case parked(q.ticket):
		c.line.rejoin(q.view, q.me, q.at)
	default:
		c.line.promised.add(q.me, q.at)
	}
	c.line.park(q.view)
	c.line.keep(q.at, c.now, c.extra)
}
