package memory

import "github.com/headwayq/headway/internal/limitscripts"

// promote adds the jobs of a rule that may come earlier than they were promised. Of a rate
// these are the first job in line and, when asked for, the first turn, unless that is the call's own job. Of leases see offer.
func (r *ruleCall) promote(promoted []limitscripts.Promotion, turnToo bool) []limitscripts.Promotion {
	job := r.member
	r.member = ""
	defer func() { r.member = job }()
	var first []string
	if r.kind == limitscripts.Leases {
		r.view, r.deadTurns = r.line.read("", r.now), r.findDeadTurns()
		r.park() // or the next call would tell them again
		promoted = r.offer(promoted)
	} else if v := r.line.read("", r.now); v.front != "" {
		first = append(first, v.front)
	}
	if turnToo {
		if rank := len(r.findDeadTurns()); rank < r.turns.len() && r.turns.order[rank].member != job {
			first = append(first, r.turns.order[rank].member)
		}
	}
	for _, m := range first {
		at := r.earliest(max(r.now, r.closed), 0, costOf(m))
		if promised, _ := r.line.promised.score(m); promised-at > 1000 {
			promoted = r.tell(promoted, at, m)
		}
	}
	return promoted
}

// tell adds that a member may come at an instant.
func (r *ruleCall) tell(promoted []limitscripts.Promotion, at int64, member string) []limitscripts.Promotion {
	return append(promoted, limitscripts.Promotion{Rule: r.index, At: instantOf(at), Job: jobOf(member), Cost: int(costOf(member))})
}

// offer tells the next in line that there is a lease for them, and those behind
// when one ends. A lease counts as free when at most a tenth of it is left, and at most 40 ms.
func (r *ruleCall) offer(promoted []limitscripts.Promotion) []limitscripts.Promotion {
	v := r.line.read("", r.now)
	waiting := r.line.order[v.first:v.last]
	free := 0
	if r.closed == 0 {
		free = int(max(0, r.state.free(r.numbers, r.now+min(soonMost, r.w/10))))
	}
	for _, w := range waiting[:min(free, offerMost, len(waiting))] {
		if promised, _ := r.line.promised.score(w.member); promised > r.now+offeredFor {
			r.line.promised.add(w.member, r.now+offeredFor)
		}
		promoted = r.tell(promoted, r.now, w.member) // a job that was told before is told again: the notice may have been lost
	}
	return r.tellNext(r.tellAhead(promoted, waiting, free), waiting, free)
}

// tellNext tells the first behind the free leases when one ends that was not renewed
// in time. Its holder has died, so the end stays where it is; and those whom tellAhead
// told it may have gone before, for leases that were given back.
func (r *ruleCall) tellNext(promoted []limitscripts.Promotion, waiting []scored[string], free int) []limitscripts.Promotion {
	if free >= len(waiting) {
		return promoted
	}
	at, m := r.earliest(max(r.now, r.closed), int64(free), 1), waiting[free].member
	if promised, _ := r.line.promised.score(m); 2*(at-r.now) > r.w || promised <= at+1000 {
		return promoted
	}
	r.line.promised.add(m, at)
	return r.tell(promoted, at, m)
}

// tellAhead tells the jobs behind the free leases when the leases end that are held. A notice
// can be lost with the process that received it, so these jobs come by themselves. Twice as
// many jobs as leases have to know their instants. When they do not, three times as many are
// told, so that it is due again after that many more leases, and not after each.
func (r *ruleCall) tellAhead(promoted []limitscripts.Promotion, waiting []scored[string], free int) []limitscripts.Promotion {
	many := int(min(r.n, aheadMost))
	last := min(free+2*many, len(waiting)) - 1
	if last < free {
		return promoted
	}
	from := max(r.now, r.closed)
	sooner := func(rank int) (at int64, is bool) {
		at = r.earliest(from, int64(min(rank, free+many-1)), 1)
		promised, _ := r.line.promised.score(waiting[rank].member)
		return at, promised > at+1000
	}
	if _, is := sooner(last); !is {
		return promoted
	}
	for rank := free; rank < min(free+3*many, len(waiting)); rank++ {
		if at, is := sooner(rank); is {
			r.line.promised.add(waiting[rank].member, at)
			promoted = r.tell(promoted, at, waiting[rank].member)
		}
	}
	return promoted
}
