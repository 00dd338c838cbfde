package throttle

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/headwayq/headway/internal/limitscripts"
	"github.com/headwayq/headway/throttle/gate"
)

// Token names one ask for permits. The ledger remembers it with the
// grant, so the same token gets the same grant and is charged once.
type Token uint64

// NewToken draws a token at random; it is never zero.
func NewToken() Token {
	for {
		if t := Token(rand.Uint64()); t != 0 {
			return t
		}
	}
}

// String prints the token as 16 hex digits.
func (t Token) String() string { return fmt.Sprintf("%016x", uint64(t)) }

// Request asks for permits. It may hold personal data in Key; it prints without it.
type Request struct {
	// Key is what the permits are counted for: 1 to [KeyMax] bytes.
	Key string
	// Cost is the number of permits: 1 to the limit's permits.
	Cost int
	// More is what is asked of the wider rules of a [Policy], in its order; Key
	// and Cost are of the narrowest. None for a [Limiter].
	More []KeyCost
	// Gates are the opening hours that hold for this request, besides the limits. One that is
	// not valid, or that opens by the recipient's zone and comes without one, is a [gate.Error].
	Gates []gate.InZone
	// Job identifies the job that waits, 1 to [JobMax] bytes: one job has one place in a
	// key's line, however often it asks.
	Job string
	// Token identifies this ask; a zero Token is drawn.
	Token Token
	// MaxWait is the longest wait that makes sense, less than zero when there
	// is no time left. Zero means any wait. It refuses nobody who waits for a slot of
	// [Concurrent] while there is time left: the instant is then the end of a lease, and the
	// slot is free when its holder is done, which is mostly earlier. [Policy.Reserve] goes by the
	// instant all the same.
	MaxWait time.Duration

	grant    grant
	made     origin // of a grant
	notAhead bool   // no grant ahead of its instant
	wantLeft bool   // what is left, too
}

// String prints the request without its key.
func (r Request) String() string {
	return fmt.Sprintf("%d permits for job %q, ask %v", r.Cost, r.Job, r.Token)
}

// Format keeps the key out of every verb, %+v and %#v too.
func (r Request) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(r.String())) }

// MarshalJSON writes the request without its key: loggers use it.
func (r Request) MarshalJSON() ([]byte, error) { return json.Marshal(r.String()) }

// check refuses what no limit could admit before it costs a round trip.
func (r *Request) check(rs ruleSet) error {
	if len(r.More) != len(rs)-1 {
		return fmt.Errorf("%w: %d keys for the %d rules of policy %v", ErrInvalidConfig, len(r.More)+1, len(rs), rs)
	}
	for i, l := range rs {
		w := r.keyCost(i)
		if err := checkKey(w.Key); err != nil {
			return err
		}
		if w.Cost < 1 {
			return fmt.Errorf("%w: %d permits for rule %q, want at least 1", ErrInvalidCost, w.Cost, l.rule)
		}
	}
	if len(r.Job) > JobMax {
		return checkJob(r.Job)
	}
	return checkGates(r.Gates)
}

func checkKey(key string) error {
	if key == "" || len(key) > KeyMax {
		return fmt.Errorf("%w: %d bytes, want 1 to %d", ErrInvalidKey, len(key), KeyMax)
	}
	return nil
}

func checkJob(job string) error {
	if job == "" || len(job) > JobMax {
		return fmt.Errorf("%w: %d bytes, want 1 to %d", ErrInvalidJob, len(job), JobMax)
	}
	return nil
}

func checkGates(gates []gate.InZone) error {
	var errs []error
	for _, g := range gates {
		errs = append(errs, g.Validate())
	}
	return errors.Join(errs...)
}

// How much of a gate the scripts get: so much before and after the store's clock.
const (
	gateBehind = time.Hour
	gateAhead  = 10 * day
)

// gateAround is when all gates are open around an instant.
func gateAround(gates []gate.InZone, around time.Time) limitscripts.Gate {
	if len(gates) == 0 {
		return limitscripts.Gate{}
	}
	g := limitscripts.Gate{From: around.Add(-gateBehind), Until: around.Add(gateAhead)}
	for _, o := range gate.Openings(gates, g.From, g.Until) {
		if len(g.Open) < openingsMax {
			g.Open = append(g.Open, limitscripts.Opening{Open: o.Open, Close: o.Close})
		}
	}
	if len(g.Open) == openingsMax {
		g.Until = g.Open[openingsMax-1].Close
	}
	return g
}

// openingsMax bounds the openings that a script gets.
const openingsMax = 64

// openedAt is the first instant, not before at, at which all gates are open, as
// far as is known.
func openedAt(gates []gate.InZone, at time.Time) time.Time {
	if len(gates) == 0 {
		return at
	}
	for _, o := range gate.Openings(gates, at, at.Add(gateAhead)) {
		if o.Close.After(at) {
			if o.Open.After(at) {
				return o.Open
			}
			return at
		}
	}
	return at.Add(gateAhead)
}

// closedGate names the gate that holds a job back until an instant: one that is closed
// now, or right before that instant.
func closedGate(gates []gate.InZone, now, until time.Time) string {
	if rule, closed := gate.FirstClosed(gates, now); closed {
		return rule
	}
	for _, o := range gate.Openings(gates, now, until.Add(time.Microsecond)) {
		if o.Open.After(now) && !until.Before(o.Open) && until.Before(o.Close) {
			if rule, closed := gate.FirstClosed(gates, o.Open.Add(-time.Microsecond)); closed {
				return rule
			}
		}
	}
	return gates[0].Rule
}

// keyCost is what is asked of the rule i.
func (r *Request) keyCost(i int) KeyCost {
	if i == 0 {
		return KeyCost{r.Key, r.Cost}
	}
	return r.More[i-1]
}

// Decision is what a limiter answered: a grant, a booking, or (from
// [Limiter.TryAcquire]) a refusal.
type Decision struct {
	Request
	Rule    string // that holds the job up or refuses it; of a grant the narrowest
	Granted bool

	// At is the instant of the grant or of the booking, by Redis' clock. A
	// grant may lie up to InlineWait ahead; wait for it with Wait.
	At time.Time
	// From is the instant from which the ledger admits the job; it may be past,
	// and is zero when the ledger holds nothing.
	From time.Time
	// Now is Redis' clock when it decided.
	Now time.Time
	// Promised is the instant that the job was promised before; zero when it was not in line.
	Promised time.Time
	// Promoted are the jobs that may come earlier than promised, because of this call.
	Promoted []Promotion
	// Fence, of a grant by a rule that limits how many run at once, grows from one
	// such grant of the key to the next: the system that is written to can refuse a holder
	// that was overtaken. 0 when there is no such rule.
	Fence int64
	// Refused says that nothing was granted, and that there is no place in any line
	// either: from [Limiter.TryAcquire], and for [BookRequest.LastRuleOnly]. It may be asked again
	// from At on.
	Refused bool
	// Gated says that a gate is closed until At: there is no place in a line before that.
	Gated bool
	// Left is how many permits each rule has left, in the order of the policy;
	// only from TryAcquire, and 0 while a job waits. On Redis Cluster a refusal does not know it
	// of the rules in other hash slots than that of the rule that refuses, and says 0 there.
	Left []int

	// Waited is how long [Policy.Acquire] took until the caller may go, as Guava's acquire
	// returns it: the wait for the permits, and the calls to Redis. Zero for other calls,
	// and within a worker, where a task that waits is deferred.
	Waited time.Duration

	// Fallback says who decided: FailClosed, the zero value, for Redis, and
	// otherwise what [Config.OnUnavailable] put in its place.
	Fallback FailureMode
	// Shadowed is a grant that the limit would not have made, see
	// [Config.Shadow]; At is then when it would have, zero for never.
	Shadowed bool

	start         time.Time // At on the local, monotonic clock; never before it
	until         time.Time // until when a grant may be acted on, on that clock; zero for ever
	startEarliest time.Time // At on that clock, never after it: the answer may have been long on its way
	repeated      bool      // an earlier call of the token made the grant
	instead       instead   // of what a shadowed grant was made
}

// Wait is what is left until At, by the local monotonic clock; never negative.
func (d Decision) Wait() time.Duration { return max(0, time.Until(d.start)) }

// stale says that a grant is too old to be acted on: this process stood still, or the answer
// was long on its way.
func (d *Decision) stale() bool { return !d.until.IsZero() && time.Now().After(d.until) }

// in is a grant that was given back, with an instant in a moment at which its caller asks again.
func (d Decision) in(pause time.Duration) Decision {
	start := time.Now().Add(pause)
	d.At = d.At.Add(start.Sub(d.start))
	d.Now, d.start = d.At.Add(-pause), start
	return d
}

// Start is At on the local, monotonic clock: time.Since tells how late the job is.
func (d Decision) Start() time.Time { return d.start }

// Err is nil for a grant and a [ThrottledError] otherwise.
func (d Decision) Err() error {
	if d.Granted {
		return nil
	}
	return &ThrottledError{Rule: d.Rule, At: d.At, RetryAfter: d.At.Sub(d.Now)}
}

// String prints the decision without its key.
func (d Decision) String() string {
	verb := "not granted"
	if d.Granted {
		verb = "granted"
	}
	if d.Shadowed {
		verb += " in shadow"
	}
	if d.Fallback != FailClosed {
		verb += " without redis (" + d.Fallback.String() + ")"
	}
	return fmt.Sprintf("rule %q: %v, %s, at %v", d.Rule, d.Request.String(), verb, d.At.UTC().Format(time.RFC3339Nano))
}

// Format keeps the key out of every verb.
func (d Decision) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(d.String())) }

// MarshalJSON writes the decision without its key: loggers use it.
func (d Decision) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

// Promotion is a job that may come earlier than it was promised.
type Promotion struct {
	Job  string
	At   time.Time     // by Redis' clock
	Wait time.Duration // from the answer to At

	// Offered says that a lease is free, or will be in a moment, and is kept for the job
	// for a second, or that the job did not come for one in time: it should come at once.
	Offered bool

	// Booking is where the job stands in the line of that one rule. A worker that finds the
	// job gone gives the place up, see CancelBooking of [ForWorkers].
	Booking BookingRef
}

// KeyCost is what is asked of one rule.
type KeyCost struct {
	Key  string
	Cost int
}

// String prints the cost without its key.
func (w KeyCost) String() string { return fmt.Sprintf("%d permits", w.Cost) }

// Format keeps the key out of every verb.
func (w KeyCost) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(w.String())) }

// MarshalJSON writes the cost without its key: loggers use it.
func (w KeyCost) MarshalJSON() ([]byte, error) { return json.Marshal(w.String()) }

// grant is what the holder of a grant has to send to correct it. The store remembers
// its token for a minute only; later it finds the grant by its instant.
type grant struct {
	limits []limitInForce // those that decided; none when none did
	worth  []int64        // by rule: what a refund of it is worth, in the store's own words

	// The instants below are those of this policy and key.
	by   *Policy
	key  string
	at   time.Time
	each []time.Time // by rule, where they differ
}

// takeOver notes the rules of which a grant was made anew while others did not admit that: each has their instants, and zeros for the others.
func (g *grant) takeOver(each []time.Time, worth []int64) {
	if len(g.each) != len(each) || len(g.worth) != len(each) {
		return // one server has all rules
	}
	g.each, g.worth = slices.Clone(g.each), slices.Clone(g.worth)
	for i, at := range each {
		if !at.IsZero() {
			g.each[i], g.worth[i] = at, worth[i]
		}
	}
}

// addTo puts what is known of the grant into the calls of the rules. A token stays
// as it is where there are leases: a lease is found by its token alone.
func (g *grant) addTo(calls []limitscripts.RuleCall, p *Policy, key string) {
	for i := range calls {
		if i < len(g.worth) {
			calls[i].Worth = g.worth[i]
		}
	}
	if g.by == nil || key != g.key || !g.by.countsAs(p) {
		return
	}
	for i := range calls {
		if i >= len(g.limits) || g.limits[i].IsConcurrent() {
			continue
		}
		at := g.at
		if i < len(g.each) {
			at = g.each[i]
		}
		calls[i].At, calls[i].Until = at, at.Add(g.limits[i].counts())
	}
}
