package throttle_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// Run with go test -run '^$' -bench . ./throttle. What a script costs Redis is
// reported as us/script, beside the round trip.

func benchmark(b *testing.B, limit throttle.Limit, prepare func(rdb *redis.Client, l *throttle.Limiter), call func(l *throttle.Limiter, i int) error) {
	b.Helper()
	rdb := redistest.Start(b).Client(b)
	l := newLimiter(b, rdb, "sms", limit, throttle.Config{})
	prepare(rdb, l)
	if err := call(l, 0); err != nil {
		b.Fatal(err)
	}
	rdb.ConfigResetStat(b.Context())
	b.ReportAllocs()
	i := 1
	for b.Loop() {
		if err := call(l, i); err != nil {
			b.Fatal(err)
		}
		i++
	}
	info := rdb.Info(b.Context(), "commandstats").Val()
	if m := statFcall.FindStringSubmatch(info); m != nil {
		var us float64
		_, _ = fmt.Sscan(m[1], &us)
		b.ReportMetric(us, "us/script")
	}
}

func nothing(*redis.Client, *throttle.Limiter) {}

func BenchmarkAcquireIdleKeys(b *testing.B) {
	benchmark(b, throttle.Sliding(1, time.Minute), nothing, func(l *throttle.Limiter, i int) error {
		_, err := l.TryAcquire(b.Context(), fmt.Sprint("+49170", i), 1)
		return err
	})
}

func BenchmarkAcquireHotKey(b *testing.B) {
	benchmark(b, throttle.Sliding(1000, 10*ms), nothing, func(l *throttle.Limiter, i int) error {
		_, err := l.TryAcquire(b.Context(), key, 1)
		return err
	})
}

func BenchmarkRefused(b *testing.B) {
	benchmark(b, throttle.Sliding(1, time.Hour), nothing, func(l *throttle.Limiter, i int) error {
		_, err := l.TryAcquire(b.Context(), key, 1)
		return err
	})
}

// Each call joins the line's end or asks for a place in the middle.
func BenchmarkAcquireInALine(b *testing.B) {
	for _, waiting := range []int{10_000, 100_000} {
		b.Run(fmt.Sprint(waiting), func(b *testing.B) {
			prepare := func(rdb *redis.Client, l *throttle.Limiter) {
				_, _ = l.TryAcquire(b.Context(), key, 1)
				crowd(b, rdb, waiting, time.Now().Add(time.Hour))
			}
			benchmark(b, throttle.Sliding(1, time.Minute), prepare, func(l *throttle.Limiter, i int) error {
				_, err := l.Policy().Redeem(b.Context(), throttle.Request{Key: key, Cost: 1, Job: fmt.Sprint("w", i*7919%waiting)})
				return err
			})
		})
	}
}

// full is a window of n permits on a clock that the benchmark sets.
type full struct {
	*testing.B
	n   int
	raw *redis.Client
	rdb redistest.Timed
	l   *throttle.Limiter
	now time.Time
}

func newFull(b *testing.B, n int) *full {
	b.Helper()
	raw := redistest.Start(b).Client(b)
	rdb := redistest.NewTimed(raw, start)
	return &full{b, n, raw, rdb, newLimiter(b, rdb, "sms", throttle.Sliding(n, time.Minute), throttle.Config{}), start}
}

func (f *full) pass(d time.Duration) {
	f.Helper()
	f.now = f.now.Add(d)
	f.rdb.SetTime(f.now)
}

func (f *full) take(cost int) throttle.Decision {
	f.Helper()
	for most := f.l.Limit().MaxCost(); cost > most; cost -= most {
		f.take(most)
	}
	d, err := f.l.TryAcquire(f.Context(), key, cost)
	if err != nil || !d.Granted {
		f.Fatalf("TryAcquire(%d) = %v, %v, want granted", cost, d, err)
	}
	return d
}

// measure runs prepare and call by turns and reports what a call's script costs
// Redis, at the median.
func (f *full) measure(prepare, call func()) {
	f.Helper()
	var us []float64
	for f.Loop() {
		f.StopTimer()
		prepare()
		f.raw.ConfigResetStat(f.Context())
		f.StartTimer()
		call()
		f.StopTimer()
		var one float64
		if m := statEval.FindStringSubmatch(f.raw.Info(f.Context(), "commandstats").Val()); m != nil {
			_, _ = fmt.Sscan(m[1], &one)
		}
		us = append(us, one)
		f.StartTimer()
	}
	slices.Sort(us)
	f.ReportMetric(us[len(us)/2], "us/script")
}

// All permits of the window have expired; then one is taken, or as many as may be at once.
func BenchmarkAcquireAfterExpiry(b *testing.B) {
	const n = 100_000
	for _, cost := range []int{1, n / 10} {
		b.Run(fmt.Sprint("cost", cost), func(b *testing.B) {
			f := newFull(b, n)
			f.measure(func() {
				f.pass(time.Minute)
				f.take(n)
				f.pass(time.Minute)
			}, func() { f.take(cost) })
		})
	}
}

// A refund of the newest grant moves the other permits of the window.
func BenchmarkRefund(b *testing.B) {
	for _, n := range []int{100, 10_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			f := newFull(b, n)
			var newest throttle.Decision
			f.measure(func() {
				f.pass(2 * time.Minute)
				f.take(n - 1)
				f.pass(time.Second)
				newest = f.take(1)
			}, func() {
				if _, err := f.l.Policy().Refund(b.Context(), newest.Request); err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}

// BenchmarkTwoRules books and redeems the jobs of a batch: phones of 1/2s behind a
// provider of 1,024/s, 4,096 booked ahead. What Redis spends on each of both is
// reported, in microseconds and in commands.
func BenchmarkTwoRules(b *testing.B) {
	const chunk = 32
	raw := redistest.Start(b).Client(b)
	now := start
	rdb := redistest.NewTimedForLong(raw, now)
	p := newPolicy(b, newLimiter(b, rdb, "phone", throttle.Sliding(1, 2*time.Second), throttle.Config{}),
		newLimiter(b, rdb, "provider", throttle.Sliding(1024, time.Second), throttle.Config{}))
	var ahead []*booked
	job := 0
	book := func(many int) {
		requests := make([]throttle.BookRequest, many)
		for i := range requests {
			job++
			requests[i] = lastRuleRequest(p, strconv.Itoa(49170_1000000+job%10_000), fmt.Sprintf("batch:winter:%08d", job))
		}
		for i, k := range throttle.ForWorkers.BookMany(b.Context(), rdb, requests) {
			if k.Err != nil || k.Refused {
				b.Fatal(k)
			}
			ahead = append(ahead, &booked{requests[i].Request, k.At})
		}
		slices.SortStableFunc(ahead, func(x, y *booked) int { return x.at.Compare(y.at) })
	}
	redeem := func() {
		if last := ahead[chunk-1].at; last.After(now) {
			now = last
			rdb.SetTime(now)
		}
		var wg sync.WaitGroup
		for _, k := range ahead[:chunk] {
			wg.Go(func() {
				if d, err := p.Redeem(b.Context(), k.Request); err != nil || !d.Granted {
					b.Error(d, err)
				}
			})
		}
		wg.Wait()
		ahead = ahead[chunk:]
	}
	for len(ahead) < 4096 {
		book(chunk)
	}
	var booking, redeeming scriptCost
	for b.Loop() {
		booking.of(b, raw, func() { book(chunk) })
		redeeming.of(b, raw, redeem)
	}
	booking.report(b, "booking", chunk)
	redeeming.report(b, "redeem", chunk)
}

type booked struct {
	throttle.Request
	at time.Time
}

// scriptCost is what scripts took of Redis: microseconds, and commands of theirs.
type scriptCost struct{ us, commands float64 }

func (c *scriptCost) of(b *testing.B, rdb *redis.Client, f func()) {
	b.Helper()
	before := scriptsOf(b, rdb)
	f()
	after := scriptsOf(b, rdb)
	c.us, c.commands = c.us+after.us-before.us, c.commands+after.commands-before.commands
}

func (c *scriptCost) report(b *testing.B, of string, chunk int) {
	b.Helper()
	n := float64(b.N * chunk)
	b.ReportMetric(c.us/n, "us/"+of)
	b.ReportMetric(c.commands/n, "commands/"+of)
}

// scriptsOf is what all scripts took since the server began.
func scriptsOf(b *testing.B, rdb *redis.Client) (c scriptCost) {
	b.Helper()
	for line := range strings.Lines(rdb.Info(b.Context(), "commandstats").Val()) {
		var calls, us float64
		name, figures, _ := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":")
		if n, _ := fmt.Sscanf(figures, "calls=%f,usec=%f,", &calls, &us); n != 2 {
			continue
		}
		switch name {
		case "fcall", "eval", "evalsha":
			c.us += us
		case "info", "hset":
		default:
			c.commands += calls
		}
	}
	return c
}
