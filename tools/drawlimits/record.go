package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/throttle"
)

// lead is how long before its instant a job asks again, as in a worker.
const lead = 15 * time.Millisecond

// job is when one came and went, since the first one came, by Redis' clock.
type job struct{ arrival, grant time.Duration }

// run is what became of a pattern.
type run struct {
	began time.Time // when the first job came, by Redis' clock
	jobs  []job
}

// record lets jobs come as the pattern says, from start on, each with one
// permit of the same key, and returns when the last of them was granted.
func record(ctx context.Context, rdb redis.UniversalClient, limit throttle.Limit, pattern []time.Duration, start time.Time) (run, error) {
	l, err := throttle.New(rdb, "draw", limit, throttle.Config{})
	if err != nil {
		return run{}, err
	}
	came, went := make([]time.Time, len(pattern)), make([]time.Time, len(pattern))
	faults := make([]error, len(pattern))
	var waiting sync.WaitGroup
	for i, offset := range pattern {
		if faults[i] = sleep(ctx, time.Until(start.Add(offset))); faults[i] != nil {
			break
		}
		// In the order of the pattern: the line is joined here.
		d, err := l.Policy().Redeem(ctx, throttle.Request{Key: limit.String(), Cost: 1, Job: strconv.Itoa(i)})
		if faults[i] = err; err != nil {
			break
		}
		came[i] = d.Now
		waiting.Go(func() { went[i], faults[i] = await(ctx, l, d) })
	}
	waiting.Wait()
	if ctx.Err() != nil {
		return run{}, context.Cause(ctx)
	}
	if err := errors.Join(faults...); err != nil {
		return run{}, err
	}
	r := run{began: came[0]}
	for i := range pattern {
		r.jobs = append(r.jobs, job{came[i].Sub(r.began), went[i].Sub(r.began)})
	}
	return r, nil
}

// await asks until a job is granted, and tells the instant.
func await(ctx context.Context, l *throttle.Limiter, d throttle.Decision) (time.Time, error) {
	for !d.Granted {
		if err := sleep(ctx, d.Wait()-lead); err != nil {
			return time.Time{}, err
		}
		var err error
		if d, err = l.Policy().Redeem(ctx, throttle.Request{Key: d.Key, Cost: d.Cost, Job: d.Job}); err != nil {
			return time.Time{}, err
		}
	}
	return d.At, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// grants are the instants at which jobs went, in order.
func (r run) grants() []time.Duration {
	var all []time.Duration
	for _, j := range r.jobs {
		all = append(all, j.grant)
	}
	slices.Sort(all)
	return all
}

// peak is how many went in the fullest half-open window.
func (r run) peak(window time.Duration) int {
	all, most, first := r.grants(), 0, 0
	for i, at := range all {
		for at-all[first] >= window {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

func (r run) longest() time.Duration {
	var longest time.Duration
	for _, j := range r.jobs {
		longest = max(longest, j.grant-j.arrival)
	}
	return longest
}

func (r run) summary(window time.Duration) string {
	return fmt.Sprintf("%d jobs, longest wait %.2f s, fullest %s: %d permits",
		len(r.jobs), r.longest().Seconds(), seconds(window), r.peak(window))
}

// check says what a run did that its limit forbids.
func (r run) check(p picture) error {
	if peak := r.peak(p.limit.Window()); peak > p.bound() {
		return fmt.Errorf("%d permits in %v, want at most %d", peak, p.limit.Window(), p.bound())
	}
	for _, j := range r.jobs {
		if j.grant < j.arrival {
			return fmt.Errorf("a job that came at %v went at %v", j.arrival, j.grant)
		}
	}
	return nil
}

func seconds(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + " s"
}
