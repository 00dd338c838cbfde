package throttle_test

import (
	"context"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/headwayq/headway/throttle"
)

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

func TestPitfall22NanosecondsInDoubles(t *testing.T) { TestPitfall20NumbersLoseDigits(t) }
func TestPitfall24MicrosecondsUnpadded(t *testing.T) { TestPitfall20NumbersLoseDigits(t) }

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
