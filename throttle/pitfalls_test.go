package throttle_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

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
