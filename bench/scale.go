package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// crowdSize is a population, how often it is put in place, and how many samples
// are measured in it: no two of them on the same key.
type crowdSize struct{ jobs, times, samples int }

// scale measures what one job costs Redis while others wait.
func scale(ctx context.Context, b *bench) error {
	crowds, sample := []crowdSize{{10_000, 5, 1}, {100_000, 1, 5}, {1_000_000, 1, 5}}, 900
	if b.short {
		crowds, sample = []crowdSize{{1_000, 1, 1}, {10_000, 1, 1}}, 50
	}
	b.say("Every crowd waits on a tenth as many keys at 1/60s each, and all under one cap: %s lets everybody through here, %s holds up whom his phone lets through. "+
		"Samples of %d jobs are measured while the crowd stays as large as it is, none of them on the key of another, one caller: a job comes and is booked, is looked at once when it is due, "+
		"and is granted; under the cap that holds up it is also booked once more, at the cap. Not measured is what makes room for them: a refund of the grant before, instead of a wait. "+
		"The median of %d samples, each in a crowd of its own where it is small. Time in scripts is by the clock, so it holds what others took of the processor.",
		roomyCap, narrowCap, sample, crowds[0].times)
	for _, limit := range []string{roomyCap, narrowCap} {
		var costs []jobCost
		for _, size := range crowds {
			cost, err := measureCrowds(ctx, b, size, sample, limit)
			if err != nil {
				return fmt.Errorf("%d jobs under a cap of %s: %w", size.jobs, limit, err)
			}
			costs = append(costs, cost)
			with := fmt.Sprintf("%s jobs wait, cap %s", number(float64(size.jobs)), limit)
			b.row(alone(with+": time in scripts per job", "µs", lower, []float64{cost.scripts}))
			b.row(alone(with+": to book all, per job ("+strconv.Itoa(assemblers)+" callers)", "µs", lower, []float64{cost.booking}))
		}
		for i, size := range crowds[1:] {
			b.row(growth(limit, crowds[0], size, costs[0].totals, costs[i+1].totals))
		}
	}
	return nil
}

// measureCrowds is the median of all samples of a size.
func measureCrowds(ctx context.Context, b *bench, size crowdSize, sample int, limit string) (jobCost, error) {
	var totals, scripts, bookings []float64
	for range size.times {
		_, rdb, err := b.server()
		if err != nil {
			return jobCost{}, err
		}
		c, err := newCrowd(rdb, size.jobs/jobsPerKey, limit)
		if err != nil {
			return jobCost{}, err
		}
		all, err := workOf(ctx, rdb, func() error { return c.assemble(ctx) })
		if err != nil {
			return jobCost{}, err
		}
		bookings = append(bookings, all.cpu/float64(size.jobs))
		for range size.samples {
			w, err := c.measure(ctx, sample)
			if err != nil {
				return jobCost{}, err
			}
			totals, scripts = append(totals, w.cpu/float64(sample)), append(scripts, w.scripts/float64(sample))
		}
		if err := rdb.FlushAll(ctx).Err(); err != nil {
			return jobCost{}, err
		}
	}
	return jobCost{totals, median(scripts), median(bookings)}, nil
}

// growth compares a crowd with the smallest.
func growth(limit string, small, large crowdSize, before, after []float64) row {
	r := against(fmt.Sprintf("%s jobs wait, cap %s: Redis' processor time per job", number(float64(large.jobs)), limit), "µs", lower,
		number(float64(small.jobs))+" jobs wait", after, before)
	if large.jobs < 1_000_000 {
		return r
	}
	return r.holding("≤ 1.10", r.Ratio <= 1.1)
}

// jobCost is in microseconds per job.
type jobCost struct {
	totals           []float64 // by sample
	scripts, booking float64
}

// measure tells what Redis does for a sample of jobs.
func (c *crowd) measure(ctx context.Context, sample int) (work, error) {
	reading, err := workOf(ctx, c.rdb, func() error { return nil })
	if err != nil {
		return work{}, err
	}
	var sum work
	for done := 0; done < sample; done += passSize {
		turn, before := c.next()
		if err := c.makeRoom(ctx, before); err != nil {
			return work{}, err
		}
		w, err := workOf(ctx, c.rdb, func() error { return c.pass(ctx, turn, before) })
		if err != nil {
			return work{}, err
		}
		sum.cpu += w.cpu - reading.cpu
		sum.scripts += w.scripts
	}
	return sum, nil
}

// work is what a Redis has done, in microseconds.
type work struct{ cpu, scripts float64 }

// workOf tells what Redis does meanwhile.
func workOf(ctx context.Context, rdb *redis.Client, f func() error) (work, error) {
	before, err := readWork(ctx, rdb)
	if err != nil {
		return work{}, err
	}
	if err := f(); err != nil {
		return work{}, err
	}
	after, err := readWork(ctx, rdb)
	return work{after.cpu - before.cpu, after.scripts - before.scripts}, err
}

func readWork(ctx context.Context, rdb *redis.Client) (work, error) {
	cpu, err := rdb.Info(ctx, "cpu").Result()
	if err != nil {
		return work{}, err
	}
	stats, err := rdb.Info(ctx, "commandstats").Result()
	if err != nil {
		return work{}, err
	}
	return parseWork(cpu, stats)
}

// parseWork adds up the processor time of all threads, and the time of the calls
// that run scripts: what a script calls is counted beside it, too.
func parseWork(cpu, stats string) (work, error) {
	var w work
	for _, field := range []string{"used_cpu_sys", "used_cpu_user"} {
		s, err := strconv.ParseFloat(infoField(cpu, field), 64)
		if err != nil {
			return work{}, fmt.Errorf("%s in INFO cpu: %w", field, err)
		}
		w.cpu += 1e6 * s
	}
	for _, command := range []string{"eval", "eval_ro", "evalsha", "evalsha_ro"} {
		text := infoField(stats, "cmdstat_"+command)
		if text == "" {
			continue // never called
		}
		_, after, _ := strings.Cut(text, "usec=")
		digits, _, _ := strings.Cut(after, ",")
		us, err := strconv.ParseFloat(digits, 64)
		if err != nil {
			return work{}, fmt.Errorf("%s in INFO commandstats: %w", command, err)
		}
		w.scripts += us
	}
	return w, nil
}
