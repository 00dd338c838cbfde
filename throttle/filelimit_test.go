package throttle_test

import (
	"slices"
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
)

// follow lets a process that has a limit in code follow its policy file.
func follow(t *testing.T, l *throttle.Limiter, was, now, want throttle.Limit) throttle.LimitStatus {
	t.Helper()
	got, err := throttle.ForWorkers.FollowFile(t.Context(), l, was, now)
	if err != nil || got.Limit != want {
		t.Errorf("FollowFile(%v, %v) = %v, %v, want %v", was, now, got.Limit, err, want)
	}
	return got
}

// A file that is edited while a program runs changes the limit of all programs. What is
// started later goes by its own file, unless that is an older state of the file.
func TestAFileThatWasEditedWhileNothingRanDecides(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	var none throttle.Limit
	per := func(n int) throttle.Limit { return throttle.Sliding(n, time.Minute) }
	a, b := s.limiter("sms", per(1)), s.limiter("sms", per(1))

	if got := follow(t, a, none, per(1), per(1)); got.Stored {
		t.Errorf("a file that says what the code says was stored: %+v", got)
	}
	if got := follow(t, a, per(1), per(2), per(2)); !slices.Equal(got.Replaced, []string{per(1).String()}) {
		t.Errorf("replaced %q, want the limit before", got.Replaced)
	}
	wantInForce(t, s.limiter("sms", per(1)), per(2))

	// started with the older file, or with the newer one: nothing changes
	follow(t, s.limiter("sms", per(1)), none, per(1), per(2))
	follow(t, s.limiter("sms", per(2)), none, per(2), per(2))
	// slower to see its file change, and behind by one: nothing changes
	follow(t, a, per(2), per(3), per(3))
	follow(t, b, per(1), per(2), per(3))
	follow(t, b, per(2), per(3), per(3))
	// edited back while it runs: that is what was wanted
	follow(t, a, per(3), per(1), per(1))
	follow(t, b, none, per(3), per(1))
	// edited while nothing ran
	if got := follow(t, s.limiter("sms", per(7)), none, per(7), per(7)); len(got.Replaced) != 3 {
		t.Errorf("replaced %q, want the three limits before", got.Replaced)
	}
	wantInForce(t, s.limiter("sms", per(1)), per(7))
}

// An operator's limit stays, whatever the files say, until it is taken away.
func TestAFileDoesNotReplaceAnOperatorsLimit(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	code, edited, operators := throttle.Sliding(1, time.Minute), throttle.Sliding(2, time.Minute), throttle.Sliding(9, time.Minute)
	l := s.limiter("sms", code)
	if err := setLimit(t.Context(), s.limiter("sms", code), operators); err != nil {
		t.Fatal(err)
	}
	if got := follow(t, l, code, edited, operators); !got.Stored || got.Replaced != nil {
		t.Errorf("in force is %+v, want the operator's", got)
	}
	if err := l.UnsetLimit(t.Context()); err != nil {
		t.Fatal(err)
	}
	follow(t, l, code, edited, edited)
	if err := setLimit(t.Context(), s.limiter("sms", code), edited); err != nil { // the same number, and his own now
		t.Fatal(err)
	}
	follow(t, l, edited, code, edited)
}

// Many edits leave a history that is bounded.
func TestLimitsThatAFileHadAreBounded(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Minute))
	for n := 2; n <= 40; n++ {
		follow(t, l, throttle.Sliding(n-1, time.Minute), throttle.Sliding(n, time.Minute), throttle.Sliding(n, time.Minute))
	}
	if got := l.LimitStatus(t.Context()); len(got.Replaced) != 16 || got.Replaced[0] != throttle.Sliding(39, time.Minute).String() {
		t.Errorf("replaced %q, want the last 16", got.Replaced)
	}
}
