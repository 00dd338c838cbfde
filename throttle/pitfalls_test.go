package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// The bugs of other limiters, by their number in the table that the project
// keeps of them. Each test would fail if this one had the bug; where another
// test shows that already, it is named. "Of each kind" are the tests in
// pitfallkinds_test.go.
//
//	 1  TestPitfall01RetriedScript
//	 2  TestPitfall02PermitOfOneWhoGaveUp
//	 3  TestPitfall03WaitForManyPermits
//	 4  TestPitfall04SameDelayForAll; TestLineOfEachKind
//	 5  TestPitfall05TwoTruths
//	 6  TestPitfall06LostKey
//	 7  TestPitfall07RefundOverAdmits; TestPitfall07RefundsOfEachKind
//	 8  TestPitfall08LoweredLimitCredits; TestChangedLimitIsNeverExceeded
//	 9  TestPitfall09ChangeStaysHere; TestPitfall09ChangeByOneClient
//	10  TestPitfall10ConfigurationInRedis
//	11  TestPitfall11LimitAndItsEnd
//	12  TestPitfall12KeyWithoutTTL; TestEveryKeyHasALife of the scripts
//	13  TestPitfall13TTLRoundedDown, and of each kind
//	14  TestPitfall14ClientClock; TestPitfall14CalendarByRedisClock
//	15  TestPitfall15TimeBackward, and of each kind
//	16  TestPitfall16RefusedPays, and of each kind
//	17  TestPitfall17MoreThanTheLimit, and of each kind
//	18  TestPitfall18AvailableIsWhole
//	19  TestPitfall19OldDebt; TestPitfall19RateChangeKeepsNoOldDebt
//	20  TestPitfall20NumbersLoseDigits
//	21  TestPitfall21IntegersPrintedAsFloats; TestNumbersBecomeTextByFormat of the scripts, for the servers that print 2e+8
//	22  TestPitfall22NanosecondsInDoubles
//	23  TestPitfall23ShortWait; TestReplies of the scripts
//	24  TestPitfall24MicrosecondsUnpadded
//	25  TestPitfall25MassExpiry
//	26  TestPitfall26MassExpiryBlocks
//	27  TestPitfall27SameInstant
//	28  TestPitfall28ZeroLimit, and of each kind; TestGuava2730WarmUpOfZero
//	29  TestPitfall29NegativeCost, and of each kind
//	30  TestPitfall30RestOfADivision; TestGuava5290RestOfAMicrosecond
//	31  TestPitfall31WaitRoundedDown, and of each kind
//	32  TestPitfall32Contention
//	33  TestPitfall33CrossSlot; TestKeysShareATag of the scripts
//	34  TestPitfall34ForgottenScripts
//	35  can't be: no text of an error of Lua is read, a script answers a status; TestReplies of the scripts
//	36  TestPitfall36FullRedis of the scripts
//	37  TestPitfall37WaitingGoesDeeper
//	38  TestPitfall38LostWakeUp
//	39  TestPitfall39ReleaseOfUnknown, TestPitfall39ReleaseInflates
//	40  TestPitfall40NoWakeUpOnRelease
//	41  TestPitfall41LeaseEndsWhileHolderRuns
//	42  TestPitfall42PartialCharge
//	43  TestPitfall43RefundOfAnotherWindow, TestPitfall43RefundAtTheEdge
//	44  TestPitfall44LongAndShortDay, and those of limit_civil_test.go
//	45  can't be: nothing is refilled in the background, what a change does is computed by the next call
//	46  TestPitfall46AbandonedPlace
//	47  can't be: no process holds permits ahead of its grants
//	48  TestPitfall48ReplicaReads

// 1: the client library sends a script again, and it is charged each time.
func TestPitfall01RetriedScript(t *testing.T) { TestLostReplyIsChargedOnce(t) }

// 3: the wait for n permits is computed from the first that expires.
func TestPitfall03WaitForManyPermits(t *testing.T) {
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
func TestPitfall04SameDelayForAll(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Second))
	for i := range 100 {
		s.want(s.job(l, fmt.Sprint("job", i), 1), i == 0, time.Duration(i)*time.Second)
	}
}

// 5: a counter beside a log drifts. Here the ledger is the only truth: after
// any use all permits are there again.
func TestPitfall05TwoTruths(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(5, time.Second))
	for i := range 200 {
		s.at(time.Duration(i) * 130 * ms)
		d := s.try(l, 1+i%5)
		if i%3 == 0 {
			_, _ = l.Refund(t.Context(), d.Request)
		}
	}
	s.at(time.Minute)
	s.want(s.try(l, 5), true, time.Minute)
}

// 6: one of the keys is lost, and the limiter is stuck or fails for ever.
func TestPitfall06LostKey(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Second))
	for _, lost := range []string{"", ":line", ":tokens"} {
		s.raw.FlushDB(t.Context())
		s.at(0)
		d := s.job(l, "a", 1)
		_, _ = l.Refund(t.Context(), d.Request)
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
func TestPitfall07RefundOverAdmits(t *testing.T) {
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
			_, _ = l.Refund(t.Context(), d.Request)
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
func TestPitfall08LoweredLimitCredits(t *testing.T) { TestStoredLimitGoesBeforeTheOneInCode(t) }

// 9: a change reaches only the keys, or the limiters, of who made it.
func TestPitfall09ChangeStaysHere(t *testing.T) { TestLoweredLimitHoldsEverywhere(t) }

// 10: the configuration is a key of its own, and gone.
func TestPitfall10ConfigurationInRedis(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Minute))
	s.try(l, 1)
	s.raw.FlushAll(t.Context())
	s.at(0)
	s.want(s.try(l, 1), true, 0)
}

// 11: a limit is set, and its end apart from it. Here that is one command.
func TestPitfall11LimitAndItsEnd(t *testing.T) { TestStoredLimitEndsByItself(t) }

// 12: a key without a TTL. Every trace of the model test looks at all keys.
func TestPitfall12KeyWithoutTTL(t *testing.T) { TestLifeComesBack(t) }

// 13: a TTL of 0, or rounded down, kills the state before the window ends.
func TestPitfall13TTLRoundedDown(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for _, window := range []time.Duration{ms, ms + time.Microsecond, 1500 * time.Microsecond, time.Second + 1*time.Microsecond} {
		rule := fmt.Sprint("w", window.Microseconds())
		before := time.Now()
		s.try(s.limiter(rule, throttle.Sliding(1, window)), 1)
		got := s.life("hw:{" + key + "}:" + rule)
		if gone := time.Since(before); got+gone < window || got > window+251*ms {
			t.Errorf("window %v: the key lives %v after %v, want %v and at most 251 ms more", window, got, gone, window)
		}
	}
}

// 14: a client's clock decides.
func TestPitfall14ClientClock(t *testing.T) { TestWrongLocalClockDecidesTheSame(t) }

// 15: time that goes backward credits.
func TestPitfall15TimeBackward(t *testing.T) { TestClockThatGoesBack(t) }

// 16: who is refused pays, so a storm of retries never ends.
func TestPitfall16RefusedPays(t *testing.T) {
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
func TestPitfall17MoreThanTheLimit(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(10, time.Second))
	if _, err := l.TryAcquire(t.Context(), key, 11); !errors.Is(err, throttle.ErrExceedsLimit) {
		t.Errorf("TryAcquire(11) of 10 = %v, want %v", err, throttle.ErrExceedsLimit)
	}
	s.want(s.try(l, 10), true, 0)
}

// 19: what was booked under the old limit holds the key for the old period.
func TestPitfall19OldDebt(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Hour))
	s.want(s.try(l, 1), true, 0)
	s.want(s.job(l, "a", 1), false, time.Hour)
	s.want(s.job(l, "b", 1), false, 2*time.Hour)
	if err := l.SetLimit(t.Context(), throttle.Sliding(1, time.Second)); err != nil {
		t.Fatal(err)
	}
	s.want(s.job(l, "b", 1), false, 2*time.Second)
	s.at(time.Second)
	s.want(s.job(l, "a", 1), true, time.Second)
}

// 20, 21, 22, 24: numbers lose digits on their way through Lua, as text, as
// nanoseconds, or as seconds and microseconds put side by side.
func TestPitfall20NumbersLoseDigits(t *testing.T) {
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
func TestPitfall21IntegersPrintedAsFloats(t *testing.T) { TestPitfall20NumbersLoseDigits(t) }
func TestPitfall22NanosecondsInDoubles(t *testing.T)    { TestPitfall20NumbersLoseDigits(t) }
func TestPitfall24MicrosecondsUnpadded(t *testing.T)    { TestPitfall20NumbersLoseDigits(t) }

// 23: fractions and nil are cut off a reply: the wait of less than a second is
// 0. See also TestReplies of the scripts.
func TestPitfall23ShortWait(t *testing.T) {
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

// 25, 26: everything that expired is listed or removed at once: too many for
// Lua, and too long for Redis.
func TestPitfall25MassExpiry(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	const n = 100_000
	l := s.limiter("sms", throttle.Sliding(n, time.Minute))
	for range 2 {
		s.want(s.try(l, n), true, s.now.Sub(start))
		s.at(s.now.Sub(start) + time.Minute)
		if got := commands(t, s.raw, func() { s.try(l, 1) }); got > 25 {
			t.Errorf("%d commands with %d permits expired, want 25 at most", got, n)
		}
		s.at(s.now.Sub(start) + time.Minute)
	}
}

// 26: what expires at once is not cleared away at once.
func TestPitfall26MassExpiryBlocks(t *testing.T) { TestPitfall25MassExpiry(t) }

// 27: two permits of one microsecond count as one.
func TestPitfall27SameInstant(t *testing.T) {
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
func TestPitfall28ZeroLimit(t *testing.T) { TestValidateReportsEveryFault(t) }

// 29: a negative cost gives permits.
func TestPitfall29NegativeCost(t *testing.T) { TestErrorsOfWhatCanNeverSucceed(t) }

// 31: a wait that is rounded down: who waits so long is refused again.
func TestPitfall31WaitRoundedDown(t *testing.T) {
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

// 32: under contention nobody gets through, or too many.
func TestPitfall32Contention(t *testing.T) {
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
func TestPitfall33CrossSlot(t *testing.T) { TestKeysOfAnyKind(t) }

// 34: the server forgets its scripts.
func TestPitfall34ForgottenScripts(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	l := newLimiter(t, rdb, "sms", throttle.Sliding(10, time.Minute), throttle.Config{})
	for i := range 3 {
		for range 2 {
			if d, err := l.Redeem(t.Context(), throttle.Request{Key: key, Cost: 1, Job: "a"}); err != nil || !d.Granted {
				t.Errorf("Redeem = %v, %v, want granted", d, err)
			}
		}
		if got := throttle.Check(t.Context(), rdb, []throttle.Place{{Policy: l.Policy(), IDs: []string{l.ID(key)}, Job: "a", Costs: []int{1}}})[0]; got.Err != nil {
			t.Error(got.Err)
		}
		s, err := l.Peek(t.Context(), key, 0)
		if err != nil || s.Available != 10-2*(i+1) {
			t.Errorf("Available = %d, %v, want %d: each charged once", s.Available, err, 10-2*(i+1))
		}
		rdb.ScriptFlush(t.Context())
	}
}

// 39: giving back what is not held gives more than there is.
func TestPitfall39ReleaseOfUnknown(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(2, time.Minute))
	s.try(l, 2)
	for range 5 {
		r := throttle.Request{Key: key, Cost: 1, Job: "nobody", Token: throttle.NewToken()}
		_, refund := l.Refund(t.Context(), r)
		_, back := l.Return(t.Context(), r)
		_, cancel := l.Cancel(t.Context(), r)
		if err := errors.Join(refund, back, cancel); err != nil {
			t.Error(err)
		}
	}
	s.want(s.try(l, 1), false, time.Minute)
	if got, err := l.Peek(t.Context(), key, 0); err != nil || got.Waiting != 0 || strings.Contains(fmt.Sprint(got), "nobody") {
		t.Errorf("Peek = %+v, %v, want nobody waiting", got, err)
	}
}
