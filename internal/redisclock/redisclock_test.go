package redisclock_test

import (
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/headwayq/headway/internal/redisclock"
)

// server is a clock that is ahead of the local one.
type server struct{ ahead time.Duration }

// ask makes a call whose request and answer take so long. It returns how long ago the server
// decided, as the reply shows, and whether that is confirmed.
func (s *server) ask(c *redisclock.Clock, request, answer time.Duration) (ago time.Duration, confirmed bool) {
	began := time.Now()
	time.Sleep(request)
	now := time.Now().Add(s.ahead)
	time.Sleep(answer)
	local, confirmed := c.Observe(now, began, time.Now())
	return time.Since(local), confirmed
}

// A reply that was long on its way is seen to be old.
func TestLateReply(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c redisclock.Clock
		s := server{ahead: 3 * time.Hour}
		s.ask(&c, time.Millisecond, time.Millisecond)
		s.ask(&c, time.Millisecond, time.Millisecond)
		ago, confirmed := s.ask(&c, time.Millisecond, 1800*time.Millisecond)
		if ago < 1798*time.Millisecond || ago > 1800*time.Millisecond || !confirmed {
			t.Errorf("the reply is %v old, confirmed: %v; want 1.799 s within a millisecond", ago, confirmed)
		}
	})
}

// A network that is always slow makes nothing old, and one reply alone proves nothing.
func TestSlowNetwork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c redisclock.Clock
		s := server{ahead: -time.Minute}
		for i := range 10 {
			if ago, confirmed := s.ask(&c, 200*time.Millisecond, 300*time.Millisecond); ago != 0 || confirmed != (i > 0) {
				t.Errorf("reply %d: %v old, confirmed: %v", i, ago, confirmed)
			}
		}
	})
}

// A clock that is set is believed from the next reply on.
func TestClockIsSet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c redisclock.Clock
		var s server
		for _, ahead := range []time.Duration{0, time.Hour, -time.Hour, 5 * time.Millisecond, 0} {
			s.ahead = ahead
			for i := range 2 {
				if ago, confirmed := s.ask(&c, time.Millisecond, time.Millisecond); ago != 0 || confirmed != (i > 0) {
					t.Errorf("%v ahead: the reply is told as %v old, confirmed: %v", ahead, ago, confirmed)
				}
			}
		}
	})
}

// What is known ends after a while: clocks run apart. If all replies counted, the last one would
// be told 13 ms old.
func TestHorizon(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c redisclock.Clock
		var s server
		s.ask(&c, 0, 0)
		for range 4 {
			time.Sleep(20 * time.Second)
			s.ahead -= 2 * time.Millisecond
			if ago, _ := s.ask(&c, 20*time.Millisecond, 5*time.Millisecond); ago > 12*time.Millisecond {
				t.Errorf("the reply is told as %v old, want 5 ms and what clocks run apart within the horizon", ago)
			}
		}
	})
}

// The local instant is never before the true one, and later by no more than the fastest
// answer took.
func TestLocalIsNeverEarly(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		legs := rapid.SliceOfN(rapid.Custom(func(r *rapid.T) [2]time.Duration {
			leg := func(what string) time.Duration {
				return time.Duration(rapid.IntRange(0, 2_000_000).Draw(r, what)) * time.Microsecond
			}
			return [2]time.Duration{leg("request"), leg("answer")}
		}), 1, 20).Draw(r, "legs")
		ahead := time.Duration(rapid.Int64Range(-1e15, 1e15).Draw(r, "ahead"))
		local := time.Now()
		var c redisclock.Clock
		fastest := time.Hour
		for _, leg := range legs {
			began := local
			decided := began.Add(leg[0])
			local = decided.Add(leg[1])
			fastest = min(fastest, leg[1])
			got, _ := c.Observe(decided.Add(ahead), began, local)
			if late := got.Sub(decided); late < 0 || late > fastest {
				r.Fatalf("an instant is told %v late, the fastest answer took %v", late, fastest)
			}
		}
	})
}

// The difference of two clocks is known to half of what the fastest calls took. One that the
// replies do not prove is none.
func TestAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var a, b redisclock.Clock
		if got := a.Ahead(&b); got != 0 {
			t.Errorf("of two unknown clocks one is told as %v ahead", got)
		}
		(&server{ahead: time.Second}).ask(&a, time.Millisecond, time.Millisecond)
		time.Sleep(time.Minute)
		(&server{ahead: -time.Second}).ask(&b, 2*time.Millisecond, 2*time.Millisecond)
		if got, back := a.Ahead(&b), b.Ahead(&a); got != 2*time.Second || back != -got {
			t.Errorf("%v ahead, and %v back, want 2 s", got, back)
		}
		var like redisclock.Clock
		(&server{ahead: 1001 * time.Millisecond}).ask(&like, time.Millisecond, 2*time.Millisecond)
		if got := like.Ahead(&a); got != 0 {
			t.Errorf("%v ahead of a clock from which it may not differ", got)
		}
	})
}
