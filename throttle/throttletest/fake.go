package throttletest

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/fake"
	"github.com/headwayq/headway/throttle"
)

// errAway is what limiters hear while a [Fake] is away.
var errAway = errors.New("the fake is away")

// Fake stands in for the Redis server of limiters under test: a memory, a clock
// that moves only when the test moves it, and faults on demand. Make limiters on
// it with [Fake.Limiter]; those of the same rule and prefix count together, as
// they would on a server. It is made by [New] and safe for concurrent use.
//
// Instants are those of its clock: compare Decision.At with Decision.Now, not
// with Decision.Wait, which goes by the local one.
type Fake struct {
	tb     testing.TB
	client *fake.Client

	mu      sync.Mutex
	now     time.Time
	fault   error
	changed []func()
	decided []Decided
}

// Decided is one answer that a limiter of a [Fake] gave.
type Decided struct {
	Decision throttle.Decision // its fields are there, also that of the key; it prints without it
	Err      error
}

// New returns a fake whose clock says 2026-03-01 08:00:00 UTC.
func New(tb testing.TB) *Fake {
	f := &Fake{tb: tb, now: time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)}
	f.client = &fake.Client{Source: fake.Source{Now: f.Now, Fault: f.failing, Join: f.join, Decided: f.note}}
	return f
}

// Limiter returns a limiter on the fake. An invalid argument ends the test.
func (f *Fake) Limiter(rule string, limit throttle.Limit, cfg throttle.Config) *throttle.Limiter {
	f.tb.Helper()
	l, err := throttle.New(f.client, rule, limit, cfg)
	if err != nil {
		f.tb.Fatal(err)
	}
	return l
}

// Now is what the clock says.
func (f *Fake) Now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

// Advance moves the clock by d, backward when d is negative. Who blocks in
// Acquire looks again at once.
func (f *Fake) Advance(d time.Duration) {
	f.change(func() { f.now = f.now.Add(d) })
}

// Set moves the clock to t; see [Fake.Advance].
func (f *Fake) Set(t time.Time) {
	f.change(func() { f.now = t })
}

// Away makes every call fail with [throttle.ErrUnavailable] until [Fake.Back],
// as a server does that is gone; nothing takes effect. Limiters with a
// [throttle.Config] that says so go on without it.
func (f *Fake) Away() { f.FailWith(errAway) }

// FailWith is [Fake.Away] for an error of your own, whose text becomes the
// text of the [throttle.ErrUnavailable]. One that has a method RedisError is
// an answer of a server that refuses, see throttle.ForWorkers. Nil is
// [Fake.Back].
func (f *Fake) FailWith(err error) {
	f.change(func() { f.fault = err })
}

// Back ends [Fake.Away]. What was counted before is still there.
func (f *Fake) Back() { f.FailWith(nil) }

// Decisions are the answers that limiters of the fake gave to those who asked
// for permits, in order. A caller that blocks in Acquire may ask several times.
func (f *Fake) Decisions() []Decided {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.decided)
}

// change changes what limiters go by, and tells them.
func (f *Fake) change(what func()) {
	f.mu.Lock()
	what()
	changed := slices.Clone(f.changed)
	f.mu.Unlock()
	for _, tell := range changed {
		tell()
	}
}

func (f *Fake) failing() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fault
}

func (f *Fake) join(changed func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changed = append(f.changed, changed)
}

func (f *Fake) note(decision any, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.decided = append(f.decided, Decided{decision.(throttle.Decision), err})
}
