package memory

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/headwayq/headway/internal/limitscripts"
)

// feeding books jobs by the widest line, and lets each come at its instant.
type feeding struct {
	*rapid.T
	*scene
	phone, provider limitscripts.Numbers
	booked          []limitscripts.AcquireArgs
	told            map[string]time.Time
}

func (f *feeding) args(job string, phone int, mode limitscripts.Mode) limitscripts.AcquireArgs {
	f.token++
	return limitscripts.AcquireArgs{
		Rules:  []limitscripts.RuleCall{ruleOf("phone", fmt.Sprint(phone), f.phone), ruleOf("provider", "all", f.provider)},
		Policy: "sms", Token: f.token, Job: job, Mode: mode, MaxWait: -1,
	}
}

// book asks for a job that may have a place already, and is told the same then.
func (f *feeding) book(a limitscripts.AcquireArgs) bool {
	before := f.lines(a)
	r := f.Acquire(a)
	again := f.Acquire(a)
	switch {
	case again.Status != r.Status || !again.At.Equal(r.At):
		f.Fatalf("a copy = %+v, want what was answered: %+v", again, r)
	case r.Status == limitscripts.Refused && (r.Rule != 1 || r.At.Before(f.now)):
		f.Fatalf("refused by %d until %v, want by the phone", r.Rule, r.At)
	case r.Status != limitscripts.Refused && r.Status != limitscripts.Booked:
		f.Fatalf("status %d, want a place or none", r.Status)
	}
	after := f.lines(a)
	if after[0] != 0 || r.Status == limitscripts.Refused && !slices.Equal(before, after) {
		f.Fatalf("%v wait, after %v, want nobody for the phone, and none more who is refused", after, before)
	}
	if r.Status == limitscripts.Booked {
		f.told[a.Job] = r.At
	}
	return r.Status == limitscripts.Booked
}

// isBooked says that a job for the same phone is.
func (f *feeding) isBooked(a limitscripts.AcquireArgs) bool {
	return slices.ContainsFunc(f.booked, func(b limitscripts.AcquireArgs) bool { return a.Rules[0].ID == b.Rules[0].ID })
}

// lines are how many wait for each.
func (f *feeding) lines(a limitscripts.AcquireArgs) (n []int) {
	for _, p := range a.Rules {
		n = append(n, f.Peek(p.LimitKeys, limitscripts.PeekArgs{Numbers: p.Numbers, Cost: 1}).Waiting)
	}
	return n
}

// come lets who is first come at its instant: it is granted.
func (f *feeding) come() {
	slices.SortStableFunc(f.booked, func(a, b limitscripts.AcquireArgs) int { return f.told[a.Job].Compare(f.told[b.Job]) })
	a := f.booked[0]
	f.booked = f.booked[1:]
	if at := f.told[a.Job]; at.After(f.now) {
		f.now = at
	}
	f.token++
	a.Mode, a.Token = limitscripts.GrantOrBook, f.token
	if r := f.Acquire(a); r.Status != limitscripts.Granted || r.At.After(f.now) {
		f.Fatalf("%s at its instant: %+v, want it granted", a.Job, r)
	}
	delete(f.told, a.Job)
}

// One admission a job: where all jobs are booked by the widest line, each is granted at
// the instant that it was told. For a phone with one permit a window there may be any
// number of them; otherwise one at a time, for of many turns on a key the first and the
// last count, see [ruleCall.measure].
func TestBookedByTheLastRuleGoAtTheirInstant(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		phones := []limitscripts.Numbers{slidingOf(1, time.Second), slidingOf(2, 3*time.Second), fixedOf(1, time.Second), gcraOf(1, time.Second, 2), smoothOf(2, time.Second, 0)}
		providers := []limitscripts.Numbers{slidingOf(3, time.Second), slidingOf(1, 300*time.Millisecond), gcraOf(10, time.Second, 1), fixedOf(4, time.Second)}
		f := &feeding{
			T: rt, scene: newScene(), told: make(map[string]time.Time),
			phone: rapid.SampledFrom(phones).Draw(rt, "phone"), provider: rapid.SampledFrom(providers).Draw(rt, "provider"),
		}
		alone := f.phone.Permits > 1 || f.phone.Burst > 1
		var refused []limitscripts.AcquireArgs
		for i := range rapid.IntRange(10, 150).Draw(rt, "length") {
			switch op := rapid.IntRange(0, 9).Draw(rt, "op"); {
			case op < 5:
				a := f.args(fmt.Sprint("job", i), rapid.IntRange(0, 6).Draw(rt, "number"), limitscripts.BookLastRule)
				if alone && f.isBooked(a) {
					continue
				}
				if f.book(a) {
					f.booked = append(f.booked, a)
				} else {
					refused = append(refused, a)
				}
			case op == 5 && len(refused) > 0 && (!alone || !f.isBooked(refused[0])):
				if f.book(refused[0]) {
					f.booked = append(f.booked, refused[0])
					refused = refused[1:]
				}
			case op == 6 && len(f.booked) > 0:
				if a := rapid.SampledFrom(f.booked).Draw(rt, "again"); !f.book(a) {
					rt.Fatalf("%s lost its place", a.Job)
				}
			case op == 7 && len(f.booked) == 0:
				f.now = f.now.Add(rapid.SampledFrom([]time.Duration{0, time.Microsecond, 300 * ms, time.Second, time.Minute}).Draw(rt, "time"))
			case len(f.booked) > 0:
				f.come()
			}
		}
		for len(f.booked) > 0 {
			f.come()
		}
	})
}
