package memory

// ahead are those who go before a job: ranks in the line, and in the turns of
// its policy.
type ahead struct {
	line, turns         *set
	first, last         int
	firstTurn, lastTurn int
	mixed               bool
	squeezed            int64 // permits that tickets do not show
}

// permits are all of theirs. Equal costs are counted exactly; with mixed costs
// tickets bound them from above.
func (a ahead) permits() int64 {
	waiting, turns := a.first < a.last, a.firstTurn < a.lastTurn
	switch {
	case waiting && turns:
		return a.permitsFrom(min(a.line.order[a.first].score, a.turns.order[a.firstTurn].score))
	case waiting:
		return a.permitsFrom(a.line.order[a.first].score)
	case turns:
		return a.permitsFrom(a.turns.order[a.firstTurn].score)
	}
	return 0
}

// permitsFrom are those of the one who has this ticket, and of who comes behind.
func (a ahead) permitsFrom(ticket int64) int64 {
	if a.mixed {
		return rooms(a.end()-ticket+room-1) + a.squeezed
	}
	waiting := max(0, a.last-max(a.first, a.line.below(ticket)))
	turns := max(0, a.lastTurn-max(a.firstTurn, a.turns.below(ticket)))
	first := a.turns
	rank := a.firstTurn
	if a.first < a.last {
		first, rank = a.line, a.first
	}
	return int64(waiting+turns) * costOf(first.order[rank].member)
}

// end is the ticket behind the last of them.
func (a ahead) end() int64 {
	var line, turns int64
	if a.first < a.last {
		p := a.line.order[a.last-1]
		line = p.score + costOf(p.member)*room
	}
	if a.firstTurn < a.lastTurn {
		p := a.turns.order[a.lastTurn-1]
		turns = p.score + costOf(p.member)*room
	}
	switch {
	case a.first >= a.last:
		return turns
	case a.firstTurn >= a.lastTurn:
		return line
	}
	return max(line, turns)
}

// lateTurns are the first of them who did not come in time.
func (p *part) lateTurns() []string {
	var out []string
	for _, t := range p.turns.order[:min(lateMost, p.turns.len())] {
		if t.member == p.me || !p.line.overdue(t.member, p.now) {
			break
		}
		out = append(out, t.member)
	}
	return out
}
