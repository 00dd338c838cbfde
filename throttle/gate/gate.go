// Package gate holds opening hours: when work may run, by the clock of a time
// zone. It is calendar code alone, and asks no server.
package gate

import (
	"runtime"
	"sync"
	"time"
	"weak"
)

// Bounds of a gate.
const (
	TextMax  = 1024 // bytes of a text
	SpansMax = 64   // spans of opening hours
)

// Gate is when work may run: opening hours, or cron expressions for opening and
// closing. It is read by [Parse] from
//
//	09:00-21:00 Mon-Fri Europe/Berlin
//	09:00-12:00,13:00-18:00 Mon,Wed-Fri; 10:00-14:00 Sat Asia/Shanghai
//	22:00-06:00 Sat-Mon UTC                          closes on the next day
//	00:00-24:00 Mon-Fri recipient                    in the zone that comes with each request
//	09:00-18:00 except 2026-04-03,12-25,12-26 Europe/Berlin
//	cron "0 9 * * 1-5" to "0 21 * * *" Europe/Berlin
//
// that is
//
//	gate  = (group {";" group} | "cron" quoted "to" quoted) ["except" date {"," date}] zone
//	group = HH:MM-HH:MM {"," HH:MM-HH:MM} [days {"," days}]    without days every day
//	days  = Mon | Mon-Fri                                      Sat-Mon is three days
//	date  = YYYY-MM-DD | MM-DD                                 MM-DD is every year
//	zone  = a name of the time zone database | "UTC" | "recipient"
//
// A zone is required; "Local" and other names that mean something else on
// another machine are refused. Times of all groups add up. An excepted date is
// that of the opening: what opens on it stays closed, what opened the day before
// still runs to its end. Cron expressions have the five fields and descriptors
// of robfig/cron, without @every and TZ=. The gate opens at a tick of the first
// and closes at the next tick of the second; an opening tick while it is open
// changes nothing; where both tick at once, it is closed.
//
// Hours and ticks are those that the clock on the wall of the zone shows: a gate
// is open at an instant if and only if it shows then a time within the hours.
// With 09:00-21:00 Mon-Fri Europe/Berlin it is 60 h from Friday's closing to
// Monday's opening, 59 h over the weekend in which clocks go forward, and 61 h
// over that in which they go back. Where clocks are changed while a gate opens
// or closes:
//
//   - A time that the clock skips is that of the jump: at 02:30 where 02:00 is
//     followed by 03:00, the gate opens or closes at 03:00. What lies within the
//     skipped time does not open that day.
//   - A time that comes twice counts twice. 20:00-02:30 closes at the first 02:30;
//     when the clock goes back to 02:00, it opens again, to the second 02:30.
//     02:30-09:00 opens at the first 02:30 and is closed from the second 02:00 to the
//     second 02:30. So nothing runs while the clock shows a time outside the hours.
//
// Cron expressions that never open or never close are refused, as is a text of
// more than [TextMax] bytes or [SpansMax] spans. A Gate is a value: two gates of the
// same String are equal by ==, and it may be the key of a map. The zero Gate is
// invalid and always closed. A Gate is safe for concurrent use.
// Every process should have the same version of the time zone database.
type Gate struct{ plan *plan }

// plan is what a text means. There is one for each text that is in use.
type plan struct {
	text     string
	zone     *time.Location // nil for the recipient's
	schedule schedule
	kept     keptOpenings
}

// schedule is when a gate is open by a clock that is never changed. Seconds are
// local ones, as in package civil.
type schedule interface {
	// stretches are those that overlap [lo, hi), in order, adjacent ones merged: whole,
	// if they end within scanReach of it, and at most stretchesMax.
	stretches(lo, hi int64) []stretch
	String() string
}

// stretch is a time from open to before close.
type stretch struct{ open, close int64 }

// plans makes one of two equal texts. What no Gate refers to goes away.
var plans = struct {
	mu    sync.Mutex
	alive map[string]weak.Pointer[plan]
}{alive: make(map[string]weak.Pointer[plan])}

// canonical is the gate of a plan, or of an earlier one with the same text.
func canonical(p *plan) Gate {
	plans.mu.Lock()
	defer plans.mu.Unlock()
	if earlier := plans.alive[p.text].Value(); earlier != nil {
		return Gate{earlier}
	}
	plans.alive[p.text] = weak.Make(p)
	runtime.AddCleanup(p, forgetPlan, p.text)
	return Gate{p}
}

func forgetPlan(text string) {
	plans.mu.Lock()
	defer plans.mu.Unlock()
	// The text may have been read anew before this cleanup ran.
	if plans.alive[text].Value() == nil {
		delete(plans.alive, text)
	}
}

// String returns the text form in one spelling; [Parse] reads it back to the
// same value.
func (g Gate) String() string {
	if g.plan == nil {
		return "invalid gate"
	}
	return g.plan.text
}

// IsZero says that g is the zero Gate.
func (g Gate) IsZero() bool { return g.plan == nil }

// Zone returns the name of the gate's time zone, or "" when it is the
// recipient's.
func (g Gate) Zone() string {
	if g.plan == nil || g.plan.zone == nil {
		return ""
	}
	return g.plan.zone.String()
}

// Validate returns an [Error] for the zero Gate; all others were read by
// [Parse].
func (g Gate) Validate() error {
	if g.plan == nil {
		return &Error{Field: "gate", Value: "none", Want: "one from Parse"}
	}
	return nil
}

// MarshalText implements [encoding.TextMarshaler].
func (g Gate) MarshalText() ([]byte, error) {
	if err := g.Validate(); err != nil {
		return nil, err
	}
	return []byte(g.String()), nil
}

// UnmarshalText implements [encoding.TextUnmarshaler] with [Parse].
func (g *Gate) UnmarshalText(text []byte) error {
	parsed, err := Parse(string(text))
	if err != nil {
		return err
	}
	*g = parsed
	return nil
}
