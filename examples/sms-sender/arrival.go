package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/headwayq/headway/throttle"
)

// Arrival is one message at the gateway, and one line of its log.
type Arrival struct {
	ID        string `json:"id"`
	Phone     string `json:"phone"`      // masked
	Key       string `json:"key"`        // groups by phone, see phoneKey
	ArrivedUs int64  `json:"arrived_us"` // since 1970, the gateway's clock
	GrantedUs int64  `json:"granted_us"` // since 1970, Redis' clock, as the sender says
}

// GatewayStats is what the gateway has seen.
type GatewayStats struct {
	Messages   int            // accepted
	Duplicates int            // of these, such whose id had come before
	Phones     int            // phones that got at least one
	Breaches   int            // messages that broke the limit by the gateway's clock
	Early      int            // messages that came before they were granted: a bug, or two clocks that differ
	MinGap     *time.Duration // smallest gap between two messages of one phone; nil when no phone got two
}

// arrivalCheck is the second opinion on the limit: it knows when messages
// arrived and when they were granted, and nothing of how. It is not safe for
// concurrent use.
//
// With 1/60s a message granted at 0 s arrives at 0.2 s. The next is granted at
// 60 s at the earliest and cannot arrive before: a gap of 59.8 s is right, since the
// first was 0.2 s on its way, and 59.7 s is a breach. In general a breach is
// an arrival at a, in whose phone more than n messages were granted after a − W. For n = 1 that is
// gap < W − (arrival − grant) of the message granted earlier. Delays hide
// breaches from it and never make one up; the two clocks must agree, as they
// do on one machine ([GatewayStats.Early] counts signs that they do not).
type arrivalCheck struct {
	limit  throttle.Limit
	phones map[string]*phoneArrivals
	ids    map[string]struct{}
	stats  GatewayStats
}

type phoneArrivals struct {
	lastUs int64
	grants []int64 // µs, sorted, the window before lastUs
}

func newArrivalCheck(limit throttle.Limit) *arrivalCheck {
	return &arrivalCheck{limit: limit, phones: map[string]*phoneArrivals{}, ids: map[string]struct{}{}}
}

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
	p, ok := c.phones[a.Key]
	if !ok {
		p = &phoneArrivals{}
		c.phones[a.Key] = p
		c.stats.Phones++
	} else if gap := micros(a.ArrivedUs - p.lastUs); c.stats.MinGap == nil || gap < *c.stats.MinGap {
		c.stats.MinGap = &gap
	}
	p.lastUs = a.ArrivedUs

	at, _ := slices.BinarySearch(p.grants, a.GrantedUs)
	p.grants = slices.Insert(p.grants, at, a.GrantedUs)
	// Half-open windows: what was granted W before to the microsecond is out.
	from, _ := slices.BinarySearch(p.grants, a.ArrivedUs-c.limit.Window().Microseconds()+1)
	p.grants = slices.Delete(p.grants, 0, from)
	if len(p.grants) > c.limit.Permits() {
		c.stats.Breaches++
	}
}

// ReplayArrivals judges a gateway's log anew, or the logs of several merged.
func ReplayArrivals(log []Arrival, limit throttle.Limit) GatewayStats {
	check := newArrivalCheck(limit)
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
