package schedule

import (
	"slices"
	"time"
)

// scheduleModel is what a [Schedule] promises, written over a plain list of ticks:
// a function of when somebody looked, and of how long tasks take.
type scheduleModel struct {
	entry Entry       // with all its fields
	ticks []time.Time // of its spec, all around now
	all   []time.Time // of its spec, for whoever checks
	took  func(tick time.Time) time.Duration

	known   bool
	from    time.Time // all ticks up to then are decided
	held    time.Time
	ends    []time.Time // of the tasks so far
	decided []decision
}

// decision is what became of a tick, and when.
type decision struct {
	tick    time.Time
	outcome Outcome
	at      time.Time
}

// look is a look at the entry by any process, which decides at most n ticks.
func (m *scheduleModel) look(now time.Time, n int) {
	if !m.known {
		m.known, m.from = true, now
	}
	if !m.held.IsZero() && n > 0 {
		n--
		if !m.busy(now) {
			m.enqueue(m.held, now)
			m.held = time.Time{}
		}
	}
	for _, tick := range m.due(now) {
		if n == 0 {
			return
		}
		n--
		m.from = tick
		switch {
		case m.entry.Overlap == OverlapAllow, !m.busy(now) && m.held.IsZero():
			m.enqueue(tick, now)
		case m.entry.Overlap == OverlapQueueOne && m.held.IsZero():
			m.held = tick
			m.decided = append(m.decided, decision{tick, OutcomeHeld, now})
		default:
			m.decided = append(m.decided, decision{tick, OutcomeSkipped, now})
		}
	}
}

func (m *scheduleModel) enqueue(tick, now time.Time) {
	m.decided = append(m.decided, decision{tick, OutcomeEnqueued, now})
	m.ends = append(m.ends, now.Add(m.took(tick)))
}

func (m *scheduleModel) busy(now time.Time) bool {
	return slices.ContainsFunc(m.ends, now.Before)
}

// due are the ticks that are done at now.
func (m *scheduleModel) due(now time.Time) []time.Time {
	var missed, onTime []time.Time
	for _, tick := range m.ticks {
		age := now.Sub(tick)
		switch {
		case !tick.After(m.from) || age < 0:
		case age < m.entry.LateMax:
			onTime = append(onTime, tick)
		case age < m.entry.MissedWithin:
			missed = append(missed, tick)
		}
	}
	switch {
	case m.entry.Missed == MissedRunAll:
		missed = missed[max(0, len(missed)-m.entry.MissedMax):]
	case m.entry.Missed == MissedRunOnce && len(onTime) == 0:
		missed = missed[max(0, len(missed)-1):]
	default:
		missed = nil
	}
	return append(missed, onTime...)
}
