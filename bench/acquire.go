package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// acquireCase is one way to ask: by how many goroutines, of how many keys, and
// whether the answer is yes.
type acquireCase struct {
	goroutines int
	keys       int // 1 is the hot key
	granted    bool
}

func (c acquireCase) String() string {
	answer, keys := "refused", "one hot key"
	if c.granted {
		answer = "granted"
	}
	if c.keys > 1 {
		keys = number(float64(c.keys)) + " keys"
	}
	at := number(float64(c.goroutines)) + " goroutines"
	if c.goroutines == 1 {
		at = "1 goroutine"
	}
	return at + ", " + keys + ", " + answer
}

// limit of a case: a hot key that grants has one that never binds; otherwise a
// key has one permit, fresh where it grants and spent where it refuses.
func (c acquireCase) limit() terms {
	if c.granted && c.keys == 1 {
		return never
	}
	return sms
}

// acquire measures acquires a second.
func acquire(ctx context.Context, b *bench) error {
	_, rdb, err := b.server()
	if err != nil {
		return err
	}
	keys, lasts := 100_000, time.Second
	if b.short {
		keys, lasts = 5_000, 50*time.Millisecond
	}
	r := &acquireRun{b, rdb, b.rounds, lasts}
	lone := &acquireRun{b, rdb, 5 * b.rounds, lasts / 5} // near its target: many short turns, close together
	counts := []int{1, 16, 128}
	for _, goroutines := range counts {
		hot, many := acquireCase{goroutines, 1, true}, acquireCase{goroutines, keys, true}
		ofHot, ofMany := []maker{headway, redisRate}, []maker{headway, redisRate}
		if goroutines == 128 {
			ofHot = append(ofHot, headwayGCRA)
		}
		if goroutines != 16 {
			ofMany = append(append(ofMany, libraries[1:]...), floors...)
		}
		run := r
		if goroutines == 1 {
			run = lone
		}
		if err := errors.Join(run.compare(ctx, ofHot, hot), run.compare(ctx, ofMany, many)); err != nil {
			return err
		}
	}
	for _, n := range []int{1, keys} {
		var cases []acquireCase
		for _, goroutines := range counts {
			cases = append(cases, acquireCase{goroutines, n, false})
		}
		if err := r.compare(ctx, []maker{headway, redisRate}, cases...); err != nil {
			return err
		}
	}
	b.say("Granted on one hot key: a limit of %v, which never binds. Granted on %s keys: %v, each key asked once, for %v or until all are used up. "+
		"Refused: %v, all spent before. "+
		"GCRA limiters have a burst of as many. One goroutine that is granted takes %d turns of %v.", never, number(float64(keys)), sms, lasts, sms,
		lone.rounds, lone.lasts)
	b.say("Headway counts by an exact sliding window; “Headway, gcra” beside it is ours by the algorithm of redis_rate and throttled.")
	return nil
}

// acquireRun is the section while it runs.
type acquireRun struct {
	b      *bench
	rdb    *redis.Client
	rounds int
	lasts  time.Duration
}

// compare adds a row for each case and rival of the first. The cases differ in
// their goroutines alone, and are measured one after the other on the same keys.
func (r *acquireRun) compare(ctx context.Context, makers []maker, cases ...acquireCase) error {
	all, err := makeAll(ctx, r.rdb, cases[0].limit(), makers...)
	if err != nil {
		return err
	}
	figures := make([][][]float64, len(cases)) // by case and contender
	for k := range cases {
		figures[k] = make([][]float64, len(all))
	}
	var measures []func() (float64, error)
	for i, one := range all {
		measures = append(measures, func() (float64, error) {
			err := r.prepare(ctx, cases[0], one)
			for k, c := range cases {
				if err != nil {
					break
				}
				var rate float64
				rate, err = r.measure(ctx, c, one)
				figures[k][i] = append(figures[k][i], rate)
			}
			return 0, err
		})
	}
	if _, err := takeTurns(r.rounds, measures...); err != nil {
		return err
	}
	for k, c := range cases {
		for i, one := range all[1:] {
			r.b.row(r.target(c, against(c.String(), "/s", higher, one.name, figures[k][0], figures[k][i+1])))
		}
		if c.granted && c.goroutines == 128 {
			r.b.draw(acquireChart(c, all, figures[k]))
		}
	}
	return nil
}

func acquireChart(c acquireCase, all []contender, figures [][]float64) chart {
	picture := chart{file: "acquire-hot", title: "Acquires a second: " + c.String(), unit: "/s"}
	if c.keys > 1 {
		picture.file = "acquire-keys"
	}
	for i, one := range all {
		picture.bars = append(picture.bars, bar{one.name, median(figures[i]), strings.HasPrefix(one.name, "Headway")})
	}
	return picture
}

// target puts the targets of redis_rate's row on it.
func (r *acquireRun) target(c acquireCase, w row) row {
	switch {
	case w.Rival != "redis_rate" || !c.granted:
		return w
	case c.goroutines == 128:
		return w.holding("≥ 2.5 x, ≥ 100,000/s", w.Ratio >= 2.5 && w.Ours >= 100_000)
	case c.goroutines == 1: // a time of at most 1.15 times theirs is so much of their rate
		return w.holding("≥ 0.87 x (time ≤ 1.15 x)", w.Theirs/w.Ours <= 1.15)
	}
	return w
}

// prepare empties Redis, and spends the keys that are to refuse.
func (r *acquireRun) prepare(ctx context.Context, c acquireCase, one contender) error {
	if err := r.rdb.FlushAll(ctx).Err(); err != nil {
		return err
	}
	if c.granted && decides(one) {
		return nil
	}
	return spend(ctx, r.rdb, c, one)
}

// measure returns how many answers a second one contender got. Every answer must
// be the one of the case.
func (r *acquireRun) measure(ctx context.Context, c acquireCase, one contender) (float64, error) {
	most := int64(0)
	if c.granted && c.keys > 1 && decides(one) {
		most = int64(c.keys)
	}
	return drive(ctx, c.goroutines, r.lasts, most, func(ctx context.Context, i int64) error {
		allowed, err := one.try(ctx, phone(i%int64(c.keys)))
		if err == nil && allowed != c.granted && decides(one) {
			err = fmt.Errorf("%s: call %d allowed %t, want %t", one.name, i, allowed, c.granted)
		}
		return err
	})
}

// decides is false for the floors.
func decides(one contender) bool { return one.name != "GET" && one.name != "empty script" }

// spend takes the permits of all keys, before the clock starts.
func spend(ctx context.Context, rdb *redis.Client, c acquireCase, one contender) error {
	if !decides(one) { // a GET finds what it asks for
		pipe := rdb.Pipeline()
		for i := range int64(c.keys) {
			pipe.Set(ctx, phone(i), "1700000000000000", time.Hour)
		}
		_, err := pipe.Exec(ctx)
		return err
	}
	_, err := drive(ctx, 128, time.Minute, int64(c.keys), func(ctx context.Context, i int64) error {
		_, err := one.try(ctx, phone(i))
		return err
	})
	return err
}

// phone is a number of a length as phone numbers have.
func phone(i int64) string { return "+49170" + strconv.FormatInt(10_000_000+i, 10) }

// drive calls do from many goroutines, with 0, 1, 2 ... until the time is over or
// most calls are made (0 is no bound), and returns the calls a second. The first
// error ends it.
func drive(ctx context.Context, goroutines int, lasts time.Duration, most int64, do func(ctx context.Context, i int64) error) (float64, error) {
	var next, done atomic.Int64
	var stop atomic.Bool
	var errs = make([]error, goroutines)
	timer := time.AfterFunc(lasts, func() { stop.Store(true) })
	defer timer.Stop()
	var all sync.WaitGroup
	began := time.Now()
	for g := range goroutines {
		all.Go(func() {
			for !stop.Load() {
				i := next.Add(1) - 1
				if most > 0 && i >= most {
					return
				}
				if errs[g] = do(ctx, i); errs[g] != nil {
					stop.Store(true)
					return
				}
				done.Add(1)
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	return float64(done.Load()) / took.Seconds(), errors.Join(errs...)
}
