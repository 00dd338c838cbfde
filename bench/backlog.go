package main

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/throttle"
)

const (
	backlogConcurrency = 16
	backlogKey         = "+8613900000000"
	oursWithin         = 110 * time.Second
	recipeWithin       = 20 * time.Second // alone, so that none is disturbed by another
)

// backlogCase is jobs that are all there at the start, for one key.
type backlogCase struct {
	permits int
	window  time.Duration
	jobs    int
	evenly  bool // permits come back one by one, as with redis_rate, and not each after a window
}

func (c backlogCase) limit() throttle.Limit { return throttle.Sliding(c.permits, c.window) }

func (c backlogCase) String() string {
	return fmt.Sprintf("%s jobs at %d/%v", number(float64(c.jobs)), c.permits, c.window)
}

// permitted is how many jobs may start within d from the first on.
func (c backlogCase) permitted(d time.Duration) int {
	if c.evenly {
		return c.permits + int(d*time.Duration(c.permits)/c.window)
	}
	return c.permits * (int(d/c.window) + 1)
}

// ideal is how long after the first job the n-th may start.
func (c backlogCase) ideal(n int) time.Duration {
	if c.evenly {
		return time.Duration(max(0, n-c.permits)) * c.window / time.Duration(c.permits)
	}
	return time.Duration((n-1)/c.permits) * c.window
}

// backlogOf is what a contender made of a case.
type backlogOf struct {
	ran        int             // jobs that started in time
	admissions float64         // per job that ran
	share      float64         // of the permitted rate, %
	inversions float64         // pairs out of order per job that ran
	late       []time.Duration // sorted
}

// backlogs measures jobs that wait for one key.
func backlogs(ctx context.Context, b *bench) error {
	_, rdb, err := b.server()
	if err != nil {
		return err
	}
	paces := []backlogCase{{permits: 1, window: 100 * time.Millisecond}, {permits: 10, window: time.Second}, {permits: 100, window: time.Second}}
	sizes, within, theirs := []int{100, 1_000, 10_000}, oursWithin, recipeWithin
	if b.short {
		paces, sizes, within, theirs = paces[1:], []int{30}, 20*time.Second, 2*time.Second
	}
	b.say("All jobs of a backlog are in the queue, in order, before the start, for one key; handlers do nothing; concurrency %d each; one round. "+
		"Ours: the three paces of a size at the same time, one pool, queue and key each, cut after %v. "+
		"asynq's recipe: the handler asks redis_rate and returns an error that is no failure, and RetryDelayFunc the exact delay of the answer; "+
		"one backlog after the other, so that none disturbs another, cut after %v. "+
		"(asynq's DelayedTaskCheckInterval and TaskCheckInterval are 10 ms for it, and in the remarks its defaults of 5 s and 1 s.) The share is "+
		"of what each limiter permits by its own rules: ours, n in any window; redis_rate, n at first and then one by one. Jobs that did not "+
		"start by then are not counted. Admissions are entries into the limiter, of the jobs that started: where a backlog was cut, its other "+
		"jobs have more by the end. Inversions are pairs of jobs that started in the other order, per job. "+
		"Lateness is from what a job was promised last (ours: from the instant at which the ledger admitted it, if that is later) to its start; "+
		"jobs that never waited have none.",
		backlogConcurrency, within, theirs)
	for _, jobs := range sizes {
		cases := make([]backlogCase, len(paces))
		for i, pace := range paces {
			cases[i] = backlogCase{permits: pace.permits, window: pace.window, jobs: jobs}
		}
		ours, err := runOurs(ctx, rdb, cases, within)
		if err != nil {
			return err
		}
		for i, c := range cases {
			if err := compareBacklog(ctx, b, rdb, c, ours[i], theirs); err != nil {
				return err
			}
		}
	}
	return nil
}

// compareBacklog measures the recipe twice: with an asynq that looks for tasks
// all the time, and as it comes.
func compareBacklog(ctx context.Context, b *bench, rdb *redis.Client, c backlogCase, ours backlogOf, within time.Duration) error {
	often, err := runRecipe(ctx, rdb, c, recipeLook{10 * time.Millisecond, 10 * time.Millisecond}, within)
	if err != nil {
		return err
	}
	const rival = "asynq's recipe, polling every 10 ms"
	beside := func(what, unit string, wins better, ours, theirs float64) row {
		if theirs == 0 || often.ran == 0 {
			return alone(what, unit, wins, []float64{ours})
		}
		return against(what, unit, wins, rival, []float64{ours}, []float64{theirs})
	}
	b.row(beside(c.String()+": admissions per job", "", lower, ours.admissions, often.admissions).holding("≤ 2.05", ours.admissions <= 2.05))
	if c.ideal(c.jobs) > 0 {
		b.row(beside(c.String()+": share of the permitted rate", "%", higher, ours.share, often.share))
	}
	b.row(beside(c.String()+": inversions per job", "", lower, ours.inversions, often.inversions))
	if len(ours.late) > 0 {
		b.row(beside(c.String()+": lateness, p99", "ms", lower, millis(quantile(ours.late, 0.99)), millis(quantile(often.late, 0.99))))
	}
	text := fmt.Sprintf("%v: ours ran %s, %s; the recipe, polling every 10 ms, ran %s, %s", c, number(float64(ours.ran)), latenessOf(ours.late),
		number(float64(often.ran)), latenessOf(often.late))
	if !b.short {
		seldom, err := runRecipe(ctx, rdb, c, recipeLook{}, within)
		if err != nil {
			return err
		}
		text += fmt.Sprintf("; polling as asynq does by default it ran %s, with %s admissions per job", number(float64(seldom.ran)), number(seldom.admissions))
		if c.ideal(c.jobs) > 0 {
			text += fmt.Sprintf(", at %s %% of the permitted rate", number(seldom.share))
		}
	}
	b.say("%s.", text)
	return nil
}
