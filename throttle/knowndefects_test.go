package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// The known defects of other limiters, numbered. Each test would fail if this
// limiter had the defect; where another test shows that already, it is named. "Of
// each kind" are the tests in knowndefectskinds_test.go.
//
//	 1  TestRetriedScript
//	 2  TestPermitOfOneWhoGaveUp
//	 3  TestWaitForManyPermits
//	 4  TestSameDelayForAll; TestLineOfEachKind
//	 5  TestTwoTruths
//	 6  TestLostKey
//	 7  TestRefundOverAdmits; TestRefundsOfEachKind
//	 8  TestLoweredLimitCredits; TestChangedLimitIsNeverExceeded
//	 9  TestChangeStaysHere; TestChangeByOneClient
//	10  TestConfigurationInRedis
//	11  TestLimitAndItsEnd
//	12  TestKeyWithoutTTL; TestEveryKeyHasALife of the scripts
//	13  TestTTLRoundedDown, and of each kind
//	14  TestClientClock; TestCalendarByRedisClock
//	15  TestTimeBackward, and of each kind
//	16  TestRefusedPays, and of each kind
//	17  TestMoreThanTheLimit, and of each kind
//	18  TestAvailableIsWhole
//	19  TestOldDebt; TestRateChangeKeepsNoOldDebt
//	20  TestNumbersLoseDigits
//	21  TestIntegersPrintedAsFloats; TestNumbersBecomeTextByFormat of the scripts, for the servers that print 2e+8
//	22  TestNanosecondsInDoubles
//	23  TestShortWait; TestReplies of the scripts
//	24  TestMicrosecondsUnpadded
//	25  TestMassExpiry
//	26  TestMassExpiryBlocks
//	27  TestSameInstant
//	28  TestZeroLimit, and of each kind; TestGuava2730WarmUpOfZero
//	29  TestNegativeCost, and of each kind
//	30  TestRestOfADivision; TestVirtualGuava5290RestOfAMicrosecond
//	31  TestWaitRoundedDown, and of each kind
//	32  TestContention
//	33  TestCrossSlot; TestKeysShareATag of the scripts
//	34  TestForgottenScripts
//	35  can't be: no text of an error of Lua is read, a script answers a status; TestReplies of the scripts
//	36  TestPitfall36FullRedis of the scripts
//	37  TestWaitingGoesDeeper
//	38  TestLostWakeUp
//	39  TestReleaseOfUnknown, TestReleaseInflates
//	40  TestNoWakeUpOnRelease
//	41  TestLeaseEndsWhileHolderRuns
//	42  TestPartialCharge
//	43  TestRefundOfAnotherWindow, TestRefundAtTheEdge
//	44  TestLongAndShortDay, and those of limit_civil_test.go
//	45  can't be: nothing is refilled in the background, what a change does is computed by the next call
//	46  TestAbandonedPlace
//	47  can't be: no process holds permits ahead of its grants
//	48  TestReplicaReads

// 1: the client library sends a script again, and it is charged each time.
func TestRetriedScript(t *testing.T) { TestLostReplyIsChargedOnce(t) }

// 3: the wait for n permits is computed from the first that expires.
func TestWaitForManyPermits(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(10, time.Second))
	for i := range 10 {
		s.at(time.Duration(i) * 100 * ms)
		s.try(l, 1)
	}
	for cost, want := range map[int]time.Duration{1: 1000 * ms, 4: 1300 * ms, 10: 1900 * ms} {
		s.want(s.try(l, cost), false, want)
	}
}

// 4: all who wait get the same delay.
func TestSameDelayForAll(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Second))
	for i := range 100 {
		s.want(s.job(l, fmt.Sprint("job", i), 1), i == 0, time.Duration(i)*time.Second)
	}
}

// 5: a counter beside a log drifts. Here the ledger is the only truth: after
// any use all permits are there again.
func TestTwoTruths(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(5, time.Second))
	for i := range 200 {
		s.at(time.Duration(i) * 130 * ms)
		d := s.try(l, 1+i%5)
		if i%3 == 0 {
			_, _ = l.Policy().Refund(t.Context(), d.Request)
		}
	}
	s.at(time.Minute)
	s.want(s.try(l, 5), true, time.Minute)
}

// 6: one of the keys is lost, and the limiter is stuck or fails for ever.
func TestLostKey(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Second))
	for _, lost := range []string{"", ":line", ":tokens"} {
		s.raw.FlushDB(t.Context())
		s.at(0)
		d := s.job(l, "a", 1)
		_, _ = l.Policy().Refund(t.Context(), d.Request)
		for _, job := range []string{"a", "b", "c"} {
			s.job(l, job, 1)
		}
		s.raw.Del(t.Context(), "hw:{"+key+"}:sms"+lost)
		at := time.Duration(0)
		for _, job := range []string{"a", "b", "c"} {
			for range 10 {
				at += 500 * ms
				s.at(at)
				if s.job(l, job, 1).Granted {
					break
				}
			}
		}
		if got, err := l.Peek(t.Context(), key, 0); err != nil || got.Waiting != 0 {
			t.Errorf("without %q: %d wait still, %v, want all granted", lost, got.Waiting, err)
		}
	}
}

// 7: a refund without its entry admits more than the limit.
func TestRefundOverAdmits(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(10, time.Second))
	var grants []throttle.Decision
	for range 10 {
		grants = append(grants, s.try(l, 1))
	}
	s.at(500 * ms)
	for _, d := range grants[:5] {
		for range 2 {
			_, _ = l.Policy().Refund(t.Context(), d.Request)
		}
	}
	granted := 0
	for _, at := range []time.Duration{500, 999} {
		s.at(at * ms)
		for range 10 {
			if s.try(l, 1).Granted {
				granted++
			}
		}
	}
	if granted != 5 {
		t.Errorf("%d granted after 5 refunds, want 5", granted)
	}
}

// 8: what is spent is credited again when the limit is lowered.
func TestLoweredLimitCredits(t *testing.T) { TestStoredLimitGoesBeforeTheOneInCode(t) }

// 9: a change reaches only the keys, or the limiters, of who made it.
func TestChangeStaysHere(t *testing.T) { TestLoweredLimitHoldsEverywhere(t) }

// 10: the configuration is a key of its own, and gone.
func TestConfigurationInRedis(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Minute))
	s.try(l, 1)
	s.raw.FlushDB(t.Context())
	s.at(0)
	s.want(s.try(l, 1), true, 0)
}

// 11: a limit is set, and its end apart from it. Here that is one command.
func TestLimitAndItsEnd(t *testing.T) { TestStoredLimitEndsByItself(t) }

// 12: a key without a TTL. Every trace of the twin tests in internal/memory looks at all keys.
func TestKeyWithoutTTL(t *testing.T) { TestLifeComesBack(t) }

// 13: a TTL of 0, or rounded down, kills the state before the window ends.
func TestTTLRoundedDown(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for _, window := range []time.Duration{ms, ms + time.Microsecond, 1500 * time.Microsecond, time.Second + 1*time.Microsecond} {
		rule := fmt.Sprint("w", window.Microseconds())
		before := time.Now()
		s.try(s.limiter(rule, throttle.Sliding(1, window)), 1)
		got := s.life("hw:{" + key + "}:" + rule)
		if gone := time.Since(before); got+gone < window || got > window+51*ms {
			t.Errorf("window %v: the key lives %v after %v, want %v and at most 51 ms more", window, got, gone, window)
		}
	}
}

// 14: a client's clock decides.
func TestClientClock(t *testing.T) { TestWrongLocalClockDecidesTheSame(t) }

// 15: time that goes backward credits.
func TestTimeBackward(t *testing.T) { TestClockThatGoesBack(t) }

// 16: who is refused pays, so a storm of retries never ends.
func TestRefusedPays(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(2, time.Second))
	s.try(l, 2)
	for i := range 100 {
		s.at(time.Duration(i) * 9 * ms)
		s.want(s.try(l, 1), false, time.Second)
	}
	s.at(time.Second)
	s.want(s.try(l, 2), true, time.Second)
}

// 17: more than the limit gets a delay that never ends.
func TestMoreThanTheLimit(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(10, time.Second))
	if _, err := l.TryAcquire(t.Context(), key, 11); !errors.Is(err, throttle.ErrExceedsLimit) {
		t.Errorf("TryAcquire(11) of 10 = %v, want %v", err, throttle.ErrExceedsLimit)
	}
	s.want(s.try(l, 10), true, 0)
}

// 19: what was booked under the old limit holds the key for the old period.
func TestOldDebt(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Hour))
	s.want(s.try(l, 1), true, 0)
	s.want(s.job(l, "a", 1), false, time.Hour)
	s.want(s.job(l, "b", 1), false, 2*time.Hour)
	if err := setLimit(t.Context(), l, throttle.Sliding(1, time.Second)); err != nil {
		t.Fatal(err)
	}
	s.want(s.job(l, "b", 1), false, 2*time.Second)
	s.at(time.Second)
	s.want(s.job(l, "a", 1), true, time.Second)
}

// 39: giving back what is not held gives more than there is.
func TestReleaseOfUnknown(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(2, time.Minute))
	s.try(l, 2)
	for range 5 {
		r := throttle.Request{Key: key, Cost: 1, Job: "nobody", Token: throttle.NewToken()}
		_, refund := l.Policy().Refund(t.Context(), r)
		_, back := throttle.ForWorkers.Return(t.Context(), l.Policy(), r)
		_, cancel := l.Policy().Cancel(t.Context(), r)
		if err := errors.Join(refund, back, cancel); err != nil {
			t.Error(err)
		}
	}
	s.want(s.try(l, 1), false, time.Minute)
	if got, err := l.Peek(t.Context(), key, 0); err != nil || got.Waiting != 0 || strings.Contains(fmt.Sprint(got), "nobody") {
		t.Errorf("Peek = %+v, %v, want nobody waiting", got, err)
	}
}

// 2: a caller gives up, and its permit stays charged.
func TestPermitOfOneWhoGaveUp(t *testing.T) { TestDeadlineDuringTheCall(t) }

// 9: a limit that is changed by one client is changed for that client only.
func TestChangeByOneClient(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	of := func(client string) *throttle.Limiter {
		return newLimiter(t, s.rdb, "sms", throttle.Sliding(2, time.Minute), throttle.Config{PerClient: true, Client: client})
	}
	s.want(s.try(of("a"), 2), true, 0)
	s.want(s.try(of("b"), 2), true, 0)
	if err := setLimit(t.Context(), of("a"), throttle.Sliding(3, time.Minute)); err != nil {
		t.Fatal(err)
	}
	for _, client := range []string{"a", "b"} { // what each has spent counts
		s.want(s.try(of(client), 2), false, time.Minute)
		s.want(s.try(of(client), 1), true, 0)
	}
}

// 37: each round of waiting goes one deeper, until the stack is full.
func TestWaitingGoesDeeper(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	const rounds = 100
	var c calls
	var first, deepest int
	c.after = func() {
		depth := runtime.Callers(0, make([]uintptr, 10_000))
		deepest = max(deepest, depth)
		switch c.n.Load() {
		case 2:
			first = depth
		case rounds: // the clock stood still until now
			s.at(time.Second)
		}
	}
	l := newLimiter(t, s.rdb, "sms", throttle.Sliding(1, ms), throttle.Config{InlineWait: throttle.InlineWaitNone})
	s.try(l, 1)
	s.raw.AddHook(&c)
	if err := l.Acquire(t.Context(), key, 1); err != nil {
		t.Fatal(err)
	}
	if c.n.Load() <= rounds || deepest > first+10 {
		t.Errorf("%d rounds, %d calls deep at first and %d at most", c.n.Load(), first, deepest)
	}
}

// 46: a place stays taken by one who was interrupted.
func TestAbandonedPlace(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for i, limit := range kindsOf(time.Second) {
		l := s.limiter(strings.Repeat("r", i+1), limit)
		s.at(0)
		next := s.drain(l).At
		ctx, cancel := context.WithCancelCause(t.Context())
		stopped := errors.New("stopped")
		var c calls
		c.after = func() {
			if c.n.Load() == 1 { // it is in the line
				cancel(stopped)
			}
		}
		raw := redis.NewClient(s.raw.Options())
		raw.AddHook(&c)
		rdb, err := redistest.NewTimed(t.Context(), redistest.LongLived{UniversalClient: raw}, s.now)
		if err != nil {
			t.Fatal(err)
		}
		waiting := newLimiter(t, rdb, l.Rule(), limit, throttle.Config{})
		if err := waiting.Acquire(ctx, key, 1); !errors.Is(err, stopped) {
			t.Errorf("%v: Acquire = %v, want %v", limit, err, stopped)
		}
		cancel(nil)
		raw.Close()
		if got, err := l.Peek(t.Context(), key, 1); err != nil || got.Waiting != 0 || !got.Next.Equal(next) {
			t.Errorf("%v: %d wait, the next at %v, %v, want none, %v", limit, got.Waiting, got.Next, err, next)
		}
	}
}

// commandNames are the names of the commands that a client sends, with the key
// of a GET.
type commandNames struct {
	mu   sync.Mutex
	seen []string
}

func (c *commandNames) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *commandNames) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.add(cmd)
		return next(ctx, cmd)
	}
}

func (c *commandNames) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.add(cmds...)
		return next(ctx, cmds)
	}
}

func (c *commandNames) add(cmds ...redis.Cmder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cmd := range cmds {
		name := cmd.Name()
		if name == "get" {
			name += " " + fmt.Sprint(cmd.Args()[1])
		}
		c.seen = append(c.seen, name)
	}
}

// 48: a client that reads from replicas is told what was. Only commands that
// may write are sent, looks too: no client takes these to a replica. What
// an operator stored, a limit or a closing, is the exception: it is looked at now
// and then only.
func TestReplicaReads(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	var names commandNames
	s.raw.AddHook(&names)
	l := newLimiter(t, s.raw, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
	d := s.job(l, "a", 1)
	s.job(l, "b", 1)
	s.try(l, 1)
	_, book := l.Policy().Book(t.Context(), throttle.Request{Key: key, Cost: 1, Job: "c"})
	_, peek := l.Peek(t.Context(), key, 10)
	check := throttle.ForWorkers.Refresh(t.Context(), s.raw, []throttle.BookingRef{{Policy: l.Policy(), IDs: []string{l.ID(key)}, Job: "b", Costs: []int{1}}})[0].Err
	_, cancel := l.Policy().Cancel(t.Context(), throttle.Request{Key: key, Cost: 1, Job: "b"})
	_, refund := l.Policy().Refund(t.Context(), d.Request)
	_, reset := l.Reset(t.Context(), key)
	if err := errors.Join(book, peek, check, cancel, refund, reset); err != nil {
		t.Fatal(err)
	}
	if len(names.seen) < 9 {
		t.Errorf("%q: want a command for each of 9 calls", names.seen)
	}
	for _, name := range names.seen {
		if !slices.Contains([]string{"fcall", "function", "eval", "evalsha", "script", "hello", "client", "get hw:limit:sms", "get hw:closed:{hw:limit:sms}"}, name) {
			t.Errorf("%q is sent", name)
		}
	}
}

// 20, 21, 22, 24: numbers lose digits on their way through Lua, as text, as
// nanoseconds, or as seconds and microseconds put side by side.
func TestNumbersLoseDigits(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Minute+time.Microsecond))
	for _, at := range []time.Duration{1, 9, 10_000, 99_999, 100_000, 999_999, 123_456} {
		s.raw.FlushDB(t.Context())
		at *= time.Microsecond
		s.at(at)
		s.want(s.job(l, "a", 1), true, at)
		s.want(s.job(l, "b", 1), false, at+time.Minute+time.Microsecond)
		s.want(s.job(l, "b", 1), false, at+time.Minute+time.Microsecond)
		if got := s.job(l, "b", 1).Promised.Sub(start); got != at+time.Minute+time.Microsecond {
			t.Errorf("promised %v, want %v", got, at+time.Minute+time.Microsecond)
		}
	}
}

// 21, 22 and 24: the same digits are lost when an integer is printed as a float,
// when a double holds nanoseconds, and when microseconds are joined unpadded.
func TestIntegersPrintedAsFloats(t *testing.T) { TestNumbersLoseDigits(t) }

func TestNanosecondsInDoubles(t *testing.T) { TestNumbersLoseDigits(t) }

func TestMicrosecondsUnpadded(t *testing.T) { TestNumbersLoseDigits(t) }

// 23: fractions and nil are cut off a reply: the wait of less than a second is
// 0. See also TestReplies of the scripts.
func TestShortWait(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, ms))
	s.try(l, 1)
	s.at(999 * time.Microsecond)
	d := s.try(l, 1)
	if got := d.At.Sub(d.Now); d.Granted || got != time.Microsecond {
		t.Errorf("wait = %v, want 1µs", got)
	}
}

// 27: two permits of one microsecond count as one.
func TestSameInstant(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(50, time.Minute))
	granted := 0
	for range 60 {
		if s.try(l, 1).Granted {
			granted++
		}
	}
	if granted != 50 {
		t.Errorf("%d granted within a microsecond, want 50", granted)
	}
}

// 28: a limit of zero.
func TestZeroLimit(t *testing.T) { TestValidateReportsEveryFault(t) }

// 29: a negative cost gives permits.
func TestNegativeCost(t *testing.T) { TestErrorsOfWhatCanNeverSucceed(t) }

// 31: a wait that is rounded down: a job that waits so long is refused again.
func TestWaitRoundedDown(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	rapid.Check(t, func(rt *rapid.T) {
		s.raw.FlushDB(context.Background())
		window := time.Duration(rapid.Int64Range(1000, 5e6).Draw(rt, "window")) * time.Microsecond
		l, err := throttle.New(s.rdb, "sms", throttle.Sliding(1, window), throttle.Config{})
		if err != nil {
			rt.Fatal(err)
		}
		at := time.Duration(rapid.Int64Range(0, 1e6).Draw(rt, "at")) * time.Microsecond
		s.at(at)
		s.try(l, 1)
		s.at(at + time.Duration(rapid.Int64Range(0, window.Microseconds()-1).Draw(rt, "later"))*time.Microsecond)
		d := s.try(l, 1)
		if d.Granted {
			rt.Fatal("granted within the window")
		}
		s.at(s.now.Add(d.At.Sub(d.Now)).Sub(start))
		if d := s.try(l, 1); !d.Granted {
			rt.Fatalf("after the wait it answered: %v", d)
		}
	})
}

// 25, 26: everything that expired is listed or removed at once: too many for
// Lua, and too long for Redis.
func TestMassExpiry(t *testing.T) {
	t.Parallel()
	s := newScene(t, redistest.Own())
	const n = 100_000
	l := s.limiter("sms", throttle.Sliding(n, time.Minute))
	for range 2 {
		for range 10 {
			s.want(s.try(l, n/10), true, s.now.Sub(start))
		}
		s.at(s.now.Sub(start) + time.Minute)
		if got := commands(t, s.raw, func() { s.try(l, 1) }); got > 25 {
			t.Errorf("%d commands with %d permits expired, want 25 at most", got, n)
		}
		s.at(s.now.Sub(start) + time.Minute)
	}
}

// 26: what expires at once is not cleared away at once.
func TestMassExpiryBlocks(t *testing.T) { TestMassExpiry(t) }

// 32: under contention nobody gets through, or too many.
func TestContention(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var granted atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		l := newLimiter(t, server.Client(t), "sms", throttle.Sliding(100, time.Hour), throttle.Config{})
		for range 16 {
			wg.Go(func() {
				for range 10 {
					d, err := l.TryAcquire(context.Background(), key, 1)
					if err != nil {
						t.Error(err)
					} else if d.Granted {
						granted.Add(1)
					}
				}
			})
		}
	}
	wg.Wait()
	if n := granted.Load(); n != 100 {
		t.Errorf("%d of 640 granted, want 100", n)
	}
}

// 33: keys of one script in several slots.
func TestCrossSlot(t *testing.T) { TestKeysOfAnyKind(t) }

// 34: the server forgets its scripts.
func TestForgottenScripts(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t, redistest.Own()).Client(t)
	l := newLimiter(t, rdb, "sms", throttle.Sliding(10, time.Minute), throttle.Config{})
	for i := range 3 {
		for range 2 {
			if d, err := l.Policy().Redeem(t.Context(), throttle.Request{Key: key, Cost: 1, Job: "a"}); err != nil || !d.Granted {
				t.Errorf("Redeem = %v, %v, want granted", d, err)
			}
		}
		if got := throttle.ForWorkers.Refresh(t.Context(), rdb, []throttle.BookingRef{{Policy: l.Policy(), IDs: []string{l.ID(key)}, Job: "a", Costs: []int{1}}})[0]; got.Err != nil {
			t.Error(got.Err)
		}
		s, err := l.Peek(t.Context(), key, 0)
		if err != nil || s.Available != 10-2*(i+1) {
			t.Errorf("Available = %d, %v, want %d: each charged once", s.Available, err, 10-2*(i+1))
		}
		rdb.ScriptFlush(t.Context())
	}
}
