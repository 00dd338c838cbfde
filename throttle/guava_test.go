package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// guavaSequences are what Guava publishes of its RateLimiter, as steps: "a3"
// takes 3 permits and "a3 1.38" waited 1.38 s for them, "sleep 500ms" is a pause
// of the caller, and all else a limit, which is in force from then on. Guava
// starts to store when a limiter is made, and we when it is first used: so where
// that shows a permit is taken and paid first.
var guavaSequences = []struct{ name, steps string }{
	{"simple", "smooth 5/1s burst 5; a 0.00; a 0.20; a 0.20"},
	{"immediate", "smooth 1/1s burst 1; a 0.00; a 1.00"},
	{"weights", "smooth 1/1s burst 1; a1 0.00; a1 1.00; a2 1.00; a4 2.00; a8 4.00; a1 8.00"},
	{"many permits", "smooth 5/1s burst 5; a1 0.00; a1 0.20; a3 0.20; a1 0.60"},
	{"with a wait", "smooth 5/1s burst 5; a 0.00; sleep 200ms; a 0.00; a 0.20"},
	{"burst of a second", "smooth 5/1s burst 5; a 0.00; sleep 1200ms; sleep 1000ms; a1 0.00; a1 0.00; a3 0.00; a1 0.00; a1 0.20"},
	{"rate changed", "smooth 1/1s burst 1; a1 0.00; a1 1.00; smooth 2/1s burst 2; a1 1.00; a2 0.50; a4 1.00; a1 2.00"},

	{"warm up", "warmup 2/1s over 4s cold 3; " +
		"a 0.00; a 1.38; a 1.13; a 0.88; a 0.63; a 0.50; a 0.50; a 0.50; sleep 500ms; sleep 4s; " +
		"a 0.00; a 1.38; a 1.13; a 0.88; a 0.63; a 0.50; a 0.50; a 0.50; sleep 500ms; sleep 2s; " +
		"a 0.00; a 0.50; a 0.50; a 0.50; a 0.50; a 0.50; a 0.50; a 0.50"},
	{"cold factor 10", "warmup 5/1s over 4s cold 10; " +
		"a 0.00; a 1.75; a 1.26; a 0.76; a 0.30; a 0.20; a 0.20; a 0.20; sleep 200ms; sleep 4s; " +
		"a 0.00; a 1.75; a 1.26; a 0.76; a 0.30; a 0.20; a 0.20; a 0.20; sleep 200ms; sleep 1s; " +
		"a 0.00; a 0.20; a 0.20; a 0.20; a 0.20; a 0.20; a 0.20; a 0.20"},
	{"cold factor 1", "warmup 5/1s over 4s cold 1; " +
		"a 0.00; a 0.20; a 0.20; a 0.20; a 0.20; a 0.20; a 0.20; a 0.20; sleep 340ms; " +
		"a 0.00; a 0.20; a 0.20; a 0.20; a 0.20; a 0.20; a 0.20; a 0.20"},
	{"rate changed while it warms up", "warmup 2/1s over 4s cold 3; " +
		"a 0.00; a 1.38; a 1.13; a 0.88; a 0.63; a 0.50; a 0.50; a 0.50; sleep 4500ms; a 0.00; a 1.38; a 1.13; " +
		"warmup 4/1s over 4s cold 3; a 0.88; a 0.34; a 0.28; a 0.25; a 0.25; sleep 4250ms; " +
		"a 0.00; a 0.72; a 0.66; a 0.59; a 0.53; a 0.47; a 0.41; a 0.34; a 0.28; a 0.25; a 0.25"},
	{"rate changed with cold factor 10", "warmup 5/1s over 4s cold 10; " +
		"a 0.00; a 1.75; a 1.26; a 0.76; a 0.30; a 0.20; a 0.20; a 0.20; sleep 4200ms; a 0.00; a 1.75; a 1.26; " +
		"warmup 10/1s over 4s cold 10; a 0.76; a 0.20; a 0.10; a 0.10; a 0.10; sleep 4100ms; " +
		"a 0.00; a 0.94; a 0.81; a 0.69; a 0.57; a 0.44; a 0.32; a 0.20; a 0.10; a 0.10; a 0.10"},
}

// callers take permits of one rule in turn, and answer what they waited.
type callers []func(limit throttle.Limit, n int) (time.Duration, error)

// playGuava plays a sequence, each permit by the next of the callers.
func (s *scene) playGuava(steps string, who callers) {
	s.Helper()
	var limit throttle.Limit
	for i, text := range strings.Split(steps, "; ") {
		var err error
		switch word, rest, _ := strings.Cut(text, " "); {
		case word == "sleep":
			var d time.Duration
			d, err = time.ParseDuration(rest)
			s.now = s.clock().Add(d)
			err = errors.Join(err, s.rdb.SetTime(s.Context(), s.now))
		case word[0] == 'a':
			n := 1
			_, _ = fmt.Sscanf(word, "a%d", &n)
			var waited time.Duration
			waited, err = who[i%len(who)](limit, n)
			if got := fmt.Sprintf("%.2f", waited.Round(10*ms).Seconds()); got != rest {
				s.Errorf("step %d, %s: waited %s (%v)", i, text, got, waited)
			}
		default:
			limit, err = throttle.ParseLimit(text)
		}
		if err != nil {
			s.Fatalf("step %d, %s: %v", i, text, err)
		}
	}
}

// clock is what the scripts read: callers move it, too.
func (s *scene) clock() time.Time {
	s.Helper()
	now, err := readClock(s.Context(), s.raw)
	if err != nil {
		s.Fatal(err)
	}
	return now
}

func readClock(ctx context.Context, rdb redis.UniversalClient) (time.Time, error) {
	v, err := rdb.HMGet(ctx, "redistest:clock", "s", "us").Result()
	if err != nil {
		return time.Time{}, err
	}
	var sec, micro int64
	_, err = fmt.Sscan(fmt.Sprintln(v...), &sec, &micro)
	return time.Unix(sec, micro*1000), err
}

// payer is a caller that has Redis from a client.
func payer(ctx context.Context, rdb *redistest.Timed, rule string) func(throttle.Limit, int) (time.Duration, error) {
	return func(limit throttle.Limit, n int) (time.Duration, error) {
		l, err := throttle.New(rdb, rule, limit, throttle.Config{})
		if err != nil {
			return 0, err
		}
		return pay(ctx, rdb, l, n)
	}
}

func TestGuavaSequences(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for i, c := range guavaSequences {
		t.Run(c.name, func(t *testing.T) {
			s.T = t
			s.at(0)
			s.playGuava(c.steps, callers{payer(t.Context(), s.rdb, fmt.Sprint("rule", i))})
		})
	}
}
