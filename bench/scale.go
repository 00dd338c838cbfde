package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// crowdSizes are how many jobs wait, the smallest first.
var crowdSizes = []int{10_000, 100_000, 1_000_000}

// scale measures what one job costs Redis while others wait.
func scale(ctx context.Context, b *bench) error {
	r := scaleRun{b: b, sizes: crowdSizes, rounds: 5 * b.rounds, sample: 900}
	if b.short {
		r.sizes, r.rounds, r.sample = []int{1_000, 10_000}, 1, 50
	}
	for i := range r.sizes {
		for range r.crowds(i) {
			_, rdb, err := b.server()
			if err != nil {
				return err
			}
			r.servers = append(r.servers, rdb)
		}
	}
	b.say("Every crowd waits on a tenth as many keys at %v each, and all under one cap: %s lets everybody through here, %s holds up whom his phone lets through. "+
		"All crowds are there at once, each in a Redis of its own, the smallest once for each of %d rounds. In a round %d jobs of each size are "+
		"measured, one size after the other; a crowd stays as large as it is, and in one of %s no key has two jobs that are granted. "+
		"One caller: a job comes and is booked, is looked at once when it is due, "+
		"and is granted; under the cap that holds up it is also booked once more, at the cap. Not measured is what makes room for them: a refund "+
		"of the grant before, instead of a wait. "+
		"To book all was measured once for each crowd. Time in scripts is by the clock, so it holds what others took of the processor.",
		perPhone, roomyCap, narrowCap, r.rounds, r.sample, number(float64(r.sizes[0])))
	for _, limit := range []string{roomyCap, narrowCap} {
		costs, err := r.measure(ctx, limit)
		if err != nil {
			return fmt.Errorf("a cap of %s: %w", limit, err)
		}
		for i, size := range r.sizes {
			with := fmt.Sprintf("%s jobs wait, cap %s", number(float64(size)), limit)
			b.row(alone(with+": time in scripts per job", "µs", lower, costs[i].scripts))
			b.row(alone(with+": to book all, per job ("+strconv.Itoa(assemblers)+" callers)", "µs", lower, costs[i].booking))
		}
		for i, size := range r.sizes[1:] {
			b.row(growth(limit, r.sizes[0], size, costs[0].total, costs[i+1].total))
		}
	}
	return nil
}

// scaleRun is the section while it runs.
type scaleRun struct {
	b       *bench
	sizes   []int
	rounds  int
	sample  int             // jobs of each size in a round
	servers []*redis.Client // of all crowds, by size
}

// crowds is how many there are of a size: a round takes nearly all keys of the smallest.
func (r *scaleRun) crowds(size int) int {
	if size == 0 {
		return r.rounds
	}
	return 1
}

// jobCost is in microseconds per job, by round or, of booking, by crowd.
type jobCost struct{ total, scripts, booking []float64 }

// measure takes the sizes in turn, a sample of each in a round: what slows the machine down
// for a while slows all of them. Shorter turns would have each Redis begin with caches that
// are another's.
func (r *scaleRun) measure(ctx context.Context, limit string) ([]jobCost, error) {
	costs, crowds := make([]jobCost, len(r.sizes)), make([][]*crowd, len(r.sizes))
	servers := r.servers
	for i := len(r.sizes) - 1; i >= 0; i-- { // the smallest last: it takes the least time to grow as old as the others
		for range r.crowds(i) {
			c, all, err := assembled(ctx, servers[len(servers)-1], r.sizes[i], limit)
			if err != nil {
				return nil, err
			}
			servers = servers[:len(servers)-1]
			crowds[i] = append(crowds[i], c)
			costs[i].booking = append(costs[i].booking, all.cpu/float64(r.sizes[i]))
		}
	}
	for round := range r.rounds {
		sums := make([]work, len(r.sizes))
		for i, size := range r.sizes {
			for range r.sample / passSize {
				w, err := crowds[i][round%len(crowds[i])].measure(ctx)
				if err != nil {
					return nil, fmt.Errorf("%d jobs: %w", size, err)
				}
				sums[i].cpu += w.cpu
				sums[i].scripts += w.scripts
			}
		}
		for i, sum := range sums {
			costs[i].total = append(costs[i].total, sum.cpu/float64(r.sample))
			costs[i].scripts = append(costs[i].scripts, sum.scripts/float64(r.sample))
		}
	}
	return costs, nil
}

// assembled is a crowd that is in place, and what Redis did for that.
func assembled(ctx context.Context, rdb *redis.Client, jobs int, limit string) (*crowd, work, error) {
	if err := rdb.FlushAll(ctx).Err(); err != nil {
		return nil, work{}, err
	}
	c, err := newCrowd(rdb, jobs/jobsPerKey, limit)
	if err != nil {
		return nil, work{}, err
	}
	all, err := workOf(ctx, rdb, func() error { return c.assemble(ctx) })
	return c, all, err
}

// growth compares a crowd with the smallest.
func growth(limit string, small, large int, before, after []float64) row {
	r := against(fmt.Sprintf("%s jobs wait, cap %s: Redis' processor time per job", number(float64(large)), limit), "µs", lower,
		number(float64(small))+" jobs wait", after, before)
	if large < 1_000_000 {
		return r
	}
	return r.holding("≤ 1.10", r.Ratio <= 1.1)
}

// measure tells what Redis does for one pass.
func (c *crowd) measure(ctx context.Context) (work, error) {
	reading, err := workOf(ctx, c.rdb, func() error { return nil })
	if err != nil {
		return work{}, err
	}
	turn, before := c.next()
	if err := c.makeRoom(ctx, before); err != nil {
		return work{}, err
	}
	w, err := workOf(ctx, c.rdb, func() error { return c.pass(ctx, turn, before) })
	w.cpu -= reading.cpu
	return w, err
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
	for _, command := range []string{"fcall", "eval", "eval_ro", "evalsha", "evalsha_ro"} {
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
