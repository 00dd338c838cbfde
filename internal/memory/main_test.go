package memory

import (
	"flag"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/headwayq/headway/internal/limitscripts"
)

const ms = time.Millisecond

// checksDefault is how many traces a property is asked by `go test`: there are many
// worlds here, and each trace is long. -rapid.checks asks for more.
const checksDefault = "40"

func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", checksDefault); err != nil { // what the command line says comes later
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// start is when the clock of a [scene] begins: at 8 o'clock, a Sunday.
var start = time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)

// scene is a store with a clock that the test sets, and one key.
type scene struct {
	*Store
	now   time.Time
	key   limitscripts.LimitKeys
	token uint64
}

func newScene() *scene {
	s := &scene{now: start, key: limitscripts.NewLimitKeys("hw", "rule", "tenant")}
	s.Store = New(func() time.Time { return s.now })
	return s
}

// at moves the clock to d after the start.
func (s *scene) at(d time.Duration) { s.now = start.Add(d) }

// ask acquires with a new token; a job that is "" only tries.
func (s *scene) ask(n limitscripts.Numbers, cost int, job string) limitscripts.AcquireReply {
	s.token++
	a := limitscripts.AcquireArgs{Rules: s.one(n, cost), Token: s.token, Job: job, Mode: limitscripts.GrantOrBook, MaxWait: -1}
	if job == "" {
		a.Mode = limitscripts.Try
	}
	return s.Acquire(a)
}

// one is a call's only rule, on the scene's key.
func (s *scene) one(n limitscripts.Numbers, cost int) []limitscripts.RuleCall {
	return []limitscripts.RuleCall{{LimitKeys: s.key, Numbers: n, Cost: cost}}
}

// refund gives the last ask's grant back.
func (s *scene) refund(n limitscripts.Numbers, cost int, token uint64, worth int64) limitscripts.CancelReply {
	rules := s.one(n, cost)
	rules[0].Worth = worth
	return s.Cancel(limitscripts.CancelArgs{Rules: rules, Token: token})
}

func slidingOf(n int, w time.Duration) limitscripts.Numbers {
	return limitscripts.Numbers{Kind: limitscripts.Sliding, Permits: n, Window: w}
}

func fixedOf(n int, w time.Duration) limitscripts.Numbers {
	return limitscripts.Numbers{Kind: limitscripts.Fixed, Permits: n, Window: w}
}

func gcraOf(n int, w time.Duration, burst int) limitscripts.Numbers {
	return limitscripts.Numbers{Kind: limitscripts.GCRA, Permits: n, Window: w, Burst: burst}
}

func stepOf(n int, w time.Duration, burst int) limitscripts.Numbers {
	return limitscripts.Numbers{Kind: limitscripts.Step, Permits: n, Window: w, Burst: burst}
}

func smoothOf(n int, w time.Duration, burst int) limitscripts.Numbers {
	return limitscripts.Numbers{Kind: limitscripts.Smooth, Permits: n, Window: w, Burst: burst}
}

func warmOf(n int, w, warm time.Duration, cold int) limitscripts.Numbers {
	return limitscripts.Numbers{Kind: limitscripts.WarmUp, Permits: n, Window: w, Warm: warm, ColdMilli: cold}
}

// calendarOf has windows that begin at these times after the start.
func calendarOf(n int, nominal, short time.Duration, begins ...time.Duration) limitscripts.Numbers {
	c := limitscripts.Numbers{Kind: limitscripts.Calendar, Permits: n, Window: nominal, Short: short}
	for _, b := range begins {
		c.Bounds = append(c.Bounds, start.Add(b))
	}
	return c
}
