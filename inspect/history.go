package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/headwayq/headway/internal/history"
	"github.com/headwayq/headway/throttle"
)

// Bounds of a [History]. Up to HistoryFineMax its points are minutes, else hours.
const (
	HistoryFineMax = 24 * time.Hour
	HistoryMax     = 30 * 24 * time.Hour
)

// ErrInvalidSpan says that no history goes back so far.
var ErrInvalidSpan = errors.New("inspect: invalid span")

// History is what happened to the tasks of a rule.
type History struct {
	Rule string        `json:"rule"`
	Now  time.Time     `json:"now"`
	Step time.Duration `json:"step_ns"` // a minute or an hour
	// Points are one for each step, the oldest first, without a gap. The last one is not
	// over.
	Points []Point `json:"points"`
	Total  Point   `json:"total"` // of all of them
	// PerKey says that keys of the rule have limits of their own. Then no share is known.
	PerKey bool `json:"per_key,omitempty"`
}

// Point is what happened by a rule in a minute or an hour. Pools write it every 5 s, so
// what happened at its ends may be counted in the one beside it.
type Point struct {
	At       time.Time `json:"at"`       // when it began
	Granted  int64     `json:"granted"`  // tasks that got permits of the rule
	Permits  int64     `json:"permits"`  // that they got
	Refused  int64     `json:"refused"`  // tasks that can never run because of the rule
	Deferred int64     `json:"deferred"` // times that the rule made a task wait
	// Waited is how long tasks waited for the rule, from the deferral or the booking to the start
	// or to the next rule. Of a task that was booked, or deferred by another pool than started it,
	// it is known to the second, and counts from its first deferral.
	WaitedP50 time.Duration `json:"waited_p50_ns"`
	WaitedP99 time.Duration `json:"waited_p99_ns"`
	// LateP99 is how long after their instants tasks started that had waited.
	LateP99 time.Duration `json:"late_p99_ns"`
	Limit   string        `json:"limit,omitempty"` // in force; empty for a gate and where nothing happened
	// Used is the share that the busiest key got of what the limit gives in this time, 1 for
	// all; a burst or a raised limit may lead above it. Of slots, and of a rule whose keys have
	// limits of their own, it is not known, and 0.
	Used float64 `json:"used"`
}

// historyStep is how fine a history is.
func historyStep(span time.Duration) (time.Duration, error) {
	switch {
	case span < time.Minute || span > HistoryMax:
		return 0, fmt.Errorf("%w: a history of %v, want 1m to %v", ErrInvalidSpan, span, HistoryMax)
	case span <= HistoryFineMax:
		return time.Minute, nil
	}
	return time.Hour, nil
}

// historyOf makes points of what stands in Redis.
func historyOf(rule string, values []history.Value, now time.Time, span, step time.Duration) History {
	h := History{Rule: rule, Now: now, Step: step}
	first := now.Add(step - span).Truncate(step)
	for at := first; !at.After(now); at = at.Add(step) {
		h.Points = append(h.Points, Point{At: at})
	}
	var total history.Counts
	newest := time.Time{}
	for _, v := range values {
		n := int(v.At.Sub(first) / step)
		if v.At.Before(first) || n >= len(h.Points) {
			continue
		}
		c, limit := history.Read(v.Value)
		h.Points[n] = pointOf(v.At, c, limit, step)
		h.Total.Used = max(h.Total.Used, h.Points[n].Used)
		if v.At.After(newest) {
			newest, h.Total.Limit = v.At, limit
		}
		total.Add(&c)
	}
	used, limit := h.Total.Used, h.Total.Limit
	h.Total = pointOf(first, total, limit, step)
	h.Total.Used = used // the highest of all
	return h
}

func pointOf(at time.Time, c history.Counts, limit string, step time.Duration) Point {
	return Point{
		At: at, Granted: c.Granted, Permits: c.Permits, Refused: c.Refused, Deferred: c.Deferred, Limit: limit,
		WaitedP50: c.Waited.Quantile(.5), WaitedP99: c.Waited.Quantile(.99), LateP99: c.Late.Quantile(.99),
		Used: shareOf(c.Peak, limit, step),
	}
}

// shareOf is the share of a limit that so many permits are in some time. What the limit
// gives then is its permits, or for each window that time has.
func shareOf(permits int64, text string, in time.Duration) float64 {
	l, err := throttle.ParseLimit(text)
	if err != nil || l.IsConcurrent() || l.Window() <= 0 {
		return 0
	}
	return float64(permits) / (float64(l.Permits()) * max(1, float64(in)/float64(l.Window())))
}

// KeyOrder says which keys of a rule are listed first.
type KeyOrder int

// The orders of [Inspector.Keys].
const (
	ByWait    KeyOrder = iota // those whose lines are the longest in time
	ByPermits                 // those that were granted most in this hour and the one before
)

// KeysMax is how many keys [Inspector.Keys] lists.
const KeysMax = 20

// KeyStatus is one key of a rule.
type KeyStatus struct {
	Key     string `json:"key"`     // as it stands in Redis: hashed where a Secret is set, else in clear; see [Mask]
	Permits int64  `json:"permits"` // granted in this hour and the one before, as far as known: at least the share of a busy key
	Waiting int    `json:"waiting"` // jobs in its line, without those that are late
	// Next is when a job that came now would start; Now when nothing holds it up.
	Next   time.Time `json:"next,omitzero"`
	Closed time.Time `json:"closed,omitzero"` // until when the rule or the key is closed, the later of the next two
	// OwnClosed, RuleClosed, Held and HoldUnknown are those of [Key].
	OwnClosed   time.Time `json:"own_closed,omitzero"`
	RuleClosed  time.Time `json:"rule_closed,omitzero"`
	Held        time.Time `json:"held,omitzero"`
	HoldUnknown bool      `json:"hold_unknown,omitempty"`
	Now         time.Time `json:"now"` // Redis' clock
	// Problem says why nothing is known of the key but its Permits: the stored limit of the rule,
	// or what the key spent, can't be read, or the limit of the key can't be found. Then a job of
	// this key does not start. It is empty for a key that could be asked about.
	Problem string `json:"problem,omitempty"`
}

// candidates are the ids that may be listed, twice as many as are listed.
func candidates(busy, waiting []history.Key, order KeyOrder) []string {
	list := slices.Clone(busy)
	slices.SortFunc(list, func(a, b history.Key) int { return cmp.Or(cmp.Compare(b.N, a.N), cmp.Compare(a.ID, b.ID)) })
	if order == ByWait {
		list = waiting
	}
	ids := make([]string, 0, 2*KeysMax)
	for _, k := range list[:min(len(list), 2*KeysMax)] {
		ids = append(ids, k.ID)
	}
	return ids
}
