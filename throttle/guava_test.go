package throttle_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

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
			s.now = s.rdb.Now().Add(d) // callers move the clock, too
			s.rdb.SetTime(s.now)
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

// payer is a caller that has Redis from a client.
func payer(ctx context.Context, rdb redistest.Timed, rule string) func(throttle.Limit, int) (time.Duration, error) {
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

// The same digits when two processes take turns: nothing of it is in a process.
func TestGuavaSequencesAcrossProcesses(t *testing.T) {
	t.Parallel()
	s := newSceneOnOne(t, "the other process is told one address")
	other := s.startTurns()
	for i, c := range guavaSequences {
		t.Run(c.name, func(t *testing.T) {
			s.T = t
			s.at(0)
			rule := fmt.Sprint("rule", i)
			s.playGuava(c.steps, callers{
				payer(t.Context(), s.rdb, rule),
				func(limit throttle.Limit, n int) (time.Duration, error) { return other(rule, limit, n) },
			})
		})
	}
}

// turnsEnv makes the test binary a process that takes permits on demand, and
// names its Redis.
const turnsEnv = "HEADWAY_TEST_TURNS"

// startTurns starts that process. It ends with its standard input.
func (s *scene) startTurns() func(rule string, limit throttle.Limit, n int) (time.Duration, error) {
	s.Helper()
	self, err := os.Executable()
	if err != nil {
		s.Fatal(err)
	}
	cmd := exec.Command(self)
	o := s.raw.(*redis.Client).Options()
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", turnsEnv, o.Addr, o.DB))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		s.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	t := s.T
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the other process: %v", err)
		}
	})
	answers := bufio.NewReader(out)
	return func(rule string, limit throttle.Limit, n int) (time.Duration, error) {
		now := s.rdb.Now()
		if _, err := fmt.Fprintf(in, "%s %d %d %v\n", rule, n, now.UnixMicro(), limit); err != nil {
			return 0, err
		}
		var waited time.Duration
		_, err := fmt.Fscanln(answers, (*int64)(&waited))
		s.rdb.SetTime(now.Add(waited))
		return waited, err
	}
}

// takeTurns is that process: a line is a rule, a number of permits, the time in microseconds and
// a limit, and is answered by what was waited for them, in nanoseconds.
func takeTurns(redisAt string, in io.Reader, out io.Writer) error {
	var o redis.Options
	if _, err := fmt.Sscan(redisAt, &o.Addr, &o.DB); err != nil {
		return err
	}
	ctx := context.Background()
	raw := redis.NewClient(&o)
	defer raw.Close()
	rdb := redistest.NewTimedForLong(raw, time.Time{})
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		word := strings.SplitN(lines.Text(), " ", 4)
		limit, err := throttle.ParseLimit(word[3])
		if err != nil {
			return err
		}
		var n, us int64
		if _, err := fmt.Sscan(word[1]+" "+word[2], &n, &us); err != nil {
			return err
		}
		rdb.SetTime(time.UnixMicro(us))
		waited, err := payer(ctx, rdb, word[0])(limit, int(n))
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(out, int64(waited)); err != nil {
			return err
		}
	}
	return lines.Err()
}

// The permits that warm a limiter up take the time to warm up, however they are
// split.
func TestGuavaWarmUpTimeWithWeights(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	rapid.Check(t, func(rt *rapid.T) {
		ctx := context.Background()
		redistest.Flush(t, s.raw)
		s.at(0)
		cold := rapid.SampledFrom([]int{1, 2, 3, 10}).Draw(rt, "cold")
		n := rapid.SampledFrom([]int{1, 2, 4, 8}).Draw(rt, "n")
		permits := 10
		per := time.Second / time.Duration(n)
		over := time.Duration(permits*(1+cold)) * per / 2
		take := payer(ctx, s.rdb, "rule")
		limit := throttle.WarmUp(n, time.Second, over, float64(cold))
		for left := permits; left > 0; {
			cost := rapid.IntRange(1, left).Draw(rt, "cost")
			if _, err := take(limit, cost); err != nil {
				rt.Fatal(err)
			}
			left -= cost
		}
		if _, err := take(limit, 1); err != nil {
			rt.Fatal(err)
		}
		if got := s.rdb.Now().Sub(start); got < over || got > over+us*time.Duration(permits) {
			rt.Fatalf("%v: warm after %v", limit, got)
		}
	})
}

// A warm-up that takes no time is refused. With Guava such a limiter admits everything.
func TestWarmUpOfZeroIsRefused(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{})
	defer rdb.Close()
	for _, over := range []time.Duration{0, 1, us, -time.Second} {
		limit := throttle.WarmUp(2, time.Second, over, 3)
		if err := limit.Validate(); !errors.Is(err, throttle.ErrInvalidLimit) {
			t.Errorf("a warm-up of %v: %v, want %v", over, err, throttle.ErrInvalidLimit)
		}
		if _, err := throttle.New(rdb, "rule", limit, throttle.Config{}); !errors.Is(err, throttle.ErrInvalidLimit) {
			t.Errorf("New with a warm-up of %v: %v, want %v", over, err, throttle.ErrInvalidLimit)
		}
	}
}

// 80,000 permits a second are one each 12.5 µs. Guava rounds that interval down to 12 µs, and
// admits 83,300 a second.
func TestVirtualRestOfAMicrosecondIsKept(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	const n, permits = 80_000, 200
	for i, limit := range []throttle.Limit{
		throttle.Smooth(n, time.Second, 1), throttle.Bucket(n, time.Second, 2),
		throttle.Leaky(n, time.Second), throttle.GCRA(n, time.Second, 1), throttle.WarmUp(n, time.Second, ms, 1),
	} {
		s.at(0)
		take := payer(t.Context(), s.rdb, fmt.Sprint("rule", i))
		for range permits {
			if _, err := take(limit, 1); err != nil {
				t.Fatal(err)
			}
		}
		ideal := (permits - time.Duration(limit.Burst()) - 1) * time.Second / n
		slowest := (permits-1)*time.Second/n + 2*us
		if got := s.rdb.Now().Sub(start); got < ideal || got > slowest {
			t.Errorf("%v: %d permits in %v, want %v to %v", limit, permits, got, ideal, slowest)
		}
	}
	// What is promised in a line loses nothing either.
	l := s.limiter("line", throttle.Leaky(n, time.Second))
	s.at(0)
	for i := range 9 {
		s.want(s.job(l, fmt.Sprint("job", i), n+1), i == 0, time.Duration(i*1_000_012_500).Round(us))
	}
}

// Any cost is admitted at once when nothing is owed, and the next call waits for it, as with Guava.
func TestSmoothLetsTheNextPay(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.follow(s.limiter("rule", throttle.Smooth(5, time.Second, 5)),
		step{0, 5000, true, 0, false}, step{0, 1, false, 1000 * time.Second, false}, step{1000*time.Second - us, 1, false, us, false},
		step{1000 * time.Second, 5000, true, 0, false})
}

// Guava's tryAcquire with a time-out decides at once, by the instant alone, and
// takes nothing when it says no.
func TestGuavaTryAcquireSomeWaitAllowed(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := newLimiter(t, s.rdb, "rule", throttle.Smooth(5, time.Second, 5), throttle.Config{InlineWait: time.Second})
	for i, c := range []struct {
		at, within time.Duration
		cost       int
		granted    bool
	}{{0, -1, 1, true}, {0, 200, 1, true}, {200, 100, 1000, false}, {300, 100, 1, true}} {
		s.at(c.at * ms)
		_, err := l.Policy().Redeem(t.Context(), throttle.Request{Key: key, Cost: c.cost, Job: fmt.Sprint("job", i), MaxWait: c.within * ms})
		if errors.Is(err, throttle.ErrTooLate) == c.granted || (c.granted && err != nil) {
			t.Errorf("at %v within %v: %v, want granted %v", c.at*ms, c.within*ms, err, c.granted)
		}
	}
}
