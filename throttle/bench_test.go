package throttle_test

import (
	"fmt"
	"slices"
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
	if m := statEvalsha.FindStringSubmatch(info); m != nil {
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
				_, err := l.Redeem(b.Context(), throttle.Request{Key: key, Cost: 1, Job: fmt.Sprint("w", i*7919%waiting)})
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
	rdb *redistest.Timed
	l   *throttle.Limiter
	now time.Time
}

func newFull(b *testing.B, n int) *full {
	b.Helper()
	raw := redistest.Start(b).Client(b)
	rdb, err := redistest.NewTimed(b.Context(), raw, start)
	if err != nil {
		b.Fatal(err)
	}
	return &full{b, n, raw, rdb, newLimiter(b, rdb, "sms", throttle.Sliding(n, time.Minute), throttle.Config{}), start}
}

func (f *full) pass(d time.Duration) {
	f.Helper()
	f.now = f.now.Add(d)
	if err := f.rdb.SetTime(f.Context(), f.now); err != nil {
		f.Fatal(err)
	}
}

func (f *full) take(cost int) throttle.Decision {
	f.Helper()
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

// All permits of the window have expired; then one is taken, or all at once.
func BenchmarkAcquireAfterExpiry(b *testing.B) {
	const n = 100_000
	for _, cost := range []int{1, n} {
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
				if _, err := f.l.Refund(b.Context(), newest.Request); err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}
