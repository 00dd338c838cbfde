package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/headwayq/headway/queue"
)

// Arrival is one message at the gateway, and one line of its log.
type Arrival struct {
	ID        string `json:"id"`
	Phone     string `json:"phone"`      // masked
	Key       string `json:"key"`        // groups by phone, see phoneKey
	ArrivedUs int64  `json:"arrived_us"` // since 1970, the gateway's clock
	GrantedUs int64  `json:"granted_us"` // since 1970, Redis' clock, as the sender says

	Charges []Charge `json:"charges,omitempty"` // by rule; none with -limit
}

// GatewayStats is what the gateway has seen.
type GatewayStats struct {
	Messages   int            // accepted
	Duplicates int            // of these, such whose id had come before
	Phones     int            // phones that got at least one
	Breaches   int            // times that a message broke a sliding limit by the gateway's clock
	BrokenBy   map[string]int // these, by rule; nil without any
	Early      int            // messages that came before they were granted: a bug, or two clocks that differ
	MinGap     *time.Duration // smallest gap between two messages of one phone; nil when no phone got two
	MostAtOnce int            // requests under way at one instant, the most ever; one that its sender gave up counts until the gateway sees that
	Faults     *FaultStats    // nil without [Faults]
}

// arrivalCheck is the second opinion on the sliding limits: it knows when messages
// arrived and when they were granted, and nothing of how. Limits of other kinds it
// leaves to [Breaches]: delays could make a breach up. It is not safe for concurrent use.
//
// With 1/60s a message granted at 0 s arrives at 0.2 s. The next is granted at
// 60 s at the earliest and cannot arrive before: a gap of 59.8 s is right, since the
// first was 0.2 s on its way, and 59.7 s is a breach. In general a breach is
// an arrival at a, in whose phone more than n permits were granted after a − W. For n = 1 that is
// gap < W − (arrival − grant) of the message granted earlier. Delays hide
// breaches from it and never make one up; the two clocks must agree, as they
// do on one machine ([GatewayStats.Early] counts signs that they do not).
type arrivalCheck struct {
	rules  []queue.Rule           // with sliding limits
	recent map[account][]spending // by instant of the grant, the window before the last arrival
	phones map[string]int64       // µs of the last arrival
	ids    map[string]struct{}
	stats  GatewayStats
}

func newArrivalCheck(p policy) *arrivalCheck {
	c := &arrivalCheck{recent: map[account][]spending{}, phones: map[string]int64{}, ids: map[string]struct{}{}}
	for _, r := range p.Rules {
		if atGateway(r) {
			c.rules = append(c.rules, r)
		}
	}
	return c
}

// atGateway says whether the gateway's clock judges a rule.
func atGateway(r queue.Rule) bool { return r.Limit.Kind() == "sliding" }

// add takes the next arrival, in the order of arrival.
func (c *arrivalCheck) add(a Arrival) {
	c.stats.Messages++
	if _, ok := c.ids[a.ID]; ok {
		c.stats.Duplicates++
	}
	c.ids[a.ID] = struct{}{}
	if a.ArrivedUs < a.GrantedUs {
		c.stats.Early++
	}
	last, ok := c.phones[a.Key]
	if !ok {
		c.stats.Phones++
	} else if gap := micros(a.ArrivedUs - last); c.stats.MinGap == nil || gap < *c.stats.MinGap {
		c.stats.MinGap = &gap
	}
	c.phones[a.Key] = a.ArrivedUs
	for _, r := range c.rules {
		if c.breaks(r, a) {
			c.stats.Breaches++
			if c.stats.BrokenBy == nil {
				c.stats.BrokenBy = map[string]int{}
			}
			c.stats.BrokenBy[r.Name]++
		}
	}
}

// breaks adds an arrival to what its key got, and says whether that is too much.
func (c *arrivalCheck) breaks(r queue.Rule, a Arrival) bool {
	charge, ok := chargeOf(a.Charges, r.Name, a.Key)
	if !ok {
		return false
	}
	of := account{r.Name, charge.Key}
	byGrant := func(s spending, us int64) int { return cmp.Compare(s.at, us) }
	at, _ := slices.BinarySearchFunc(c.recent[of], a.GrantedUs, byGrant)
	spent := slices.Insert(c.recent[of], at, spending{at: a.GrantedUs, cost: charge.Cost})
	// Half-open windows: what was granted W before to the microsecond is out.
	from, _ := slices.BinarySearchFunc(spent, a.ArrivedUs-r.Limit.Window().Microseconds()+1, byGrant)
	spent = slices.Delete(spent, 0, from)
	c.recent[of] = spent
	sum := 0
	for _, s := range spent {
		sum += s.cost
	}
	return sum > r.Limit.Permits()
}

// ReplayArrivals judges a gateway's log anew, or the logs of several merged. What
// is not in a log has its zero value: MostAtOnce and Faults.
func ReplayArrivals(log []Arrival, p policy) GatewayStats {
	check := newArrivalCheck(p)
	for _, a := range slices.SortedStableFunc(slices.Values(log), func(a, b Arrival) int {
		return cmp.Compare(a.ArrivedUs, b.ArrivedUs)
	}) {
		check.add(a)
	}
	return check.stats
}

// WriteArrivals writes a log as JSON lines.
func WriteArrivals(w io.Writer, log []Arrival) error {
	buf := bufio.NewWriter(w)
	enc := json.NewEncoder(buf)
	for _, a := range log {
		if err := enc.Encode(a); err != nil {
			return fmt.Errorf("arrivals: %w", err)
		}
	}
	if err := buf.Flush(); err != nil {
		return fmt.Errorf("arrivals: %w", err)
	}
	return nil
}

// ReadArrivals reads what [WriteArrivals] wrote. A line that is no arrival is an
// error with its number.
func ReadArrivals(r io.Reader) ([]Arrival, error) {
	log, err := readLines(r, func(a Arrival) bool { return a.ID != "" && a.Key != "" })
	if err != nil {
		return nil, fmt.Errorf("arrivals: %w", err)
	}
	return log, nil
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }
