package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/worker"
)

// fillBacklog enqueues the jobs in order. Their ids are their numbers.
func fillBacklog(ctx context.Context, rdb *redis.Client, c backlogCase, name string) error {
	client := asynq.NewClientFromRedisClient(rdb)
	for i := range c.jobs {
		if _, err := client.EnqueueContext(ctx, asynq.NewTask(taskType, nil), asynq.Queue(name), asynq.TaskID(strconv.Itoa(i))); err != nil {
			return err
		}
	}
	return nil
}

// jobNumber is that of the job whose handler runs.
func jobNumber(ctx context.Context) (int, error) {
	id, ok := asynq.GetTaskID(ctx)
	if !ok {
		return 0, errors.New("a task without an id")
	}
	return strconv.Atoi(id)
}

// runOurs runs several backlogs at the same time, each in a pool of its own.
func runOurs(ctx context.Context, rdb *redis.Client, cases []backlogCase, within time.Duration) (out []backlogOf, err error) {
	if err := rdb.FlushAll(ctx).Err(); err != nil {
		return nil, err
	}
	logs, pools := make([]*backlogLog, len(cases)), make([]*worker.Pool, len(cases))
	for i, c := range cases {
		name := "pace" + strconv.Itoa(i)
		if err := fillBacklog(ctx, rdb, c, name); err != nil {
			return nil, err
		}
		logs[i] = newBacklogLog(c)
		if pools[i], err = backlogPool(rdb, logs[i], name); err != nil {
			return nil, err
		}
	}
	end, stop := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer stop()
	for _, p := range pools {
		defer p.Shutdown()
		if err := p.Start(ctx); err != nil {
			return nil, err
		}
	}
	for i, l := range logs {
		if err := l.wait(ctx, end.Done()); err != nil {
			return nil, err
		}
		of, err := l.sum(time.Now())
		if err != nil {
			return nil, err
		}
		if of.ran == l.what.jobs { // what the pool counts itself is more than what it tells
			of.admissions = max(of.admissions, float64(pools[i].Stats().Admissions)/float64(of.ran))
		}
		out = append(out, of)
	}
	return out, nil
}

// backlogPool runs one backlog into a log.
func backlogPool(rdb *redis.Client, l *backlogLog, name string) (*worker.Pool, error) {
	handler := asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		job, err := jobNumber(ctx)
		if err != nil {
			return err
		}
		d, ok := worker.GrantFrom(ctx)
		if !ok {
			return errors.New("a job without a grant")
		}
		due := d.Promised
		if !due.IsZero() && d.From.After(due) {
			due = d.From
		}
		l.started(job, due)
		return nil
	})
	return worker.New(rdb, handler, worker.Config{
		Asynq: asynq.Config{Concurrency: backlogConcurrency, Queues: map[string]int{name: 1}, LogLevel: asynq.FatalLevel},
		Policies: []queue.Policy{{Type: taskType, Rules: []queue.Rule{
			{Name: name, Limit: l.what.limit(), Constant: backlogKey},
		}}},
		Observer: event.Observer{Deferred: l.deferred},
	})
}

// deferred hears of jobs that were told to wait.
func (l *backlogLog) deferred(_ context.Context, e event.Deferred) {
	if job, err := strconv.Atoi(e.Task.ID); err == nil {
		l.refused(job, e.At)
	}
}

// notYet is what a handler of the recipe returns.
type notYet struct{ retryIn time.Duration }

func (e *notYet) Error() string { return fmt.Sprintf("not before %v", e.retryIn) }

// recipeLook is how often asynq looks for tasks that are due and, while it finds
// none, for those that are pending. Zero is asynq's default.
type recipeLook struct{ due, pending time.Duration }

// runRecipe runs one backlog as asynq's wiki has it.
func runRecipe(ctx context.Context, rdb *redis.Client, c backlogCase, look recipeLook, within time.Duration) (backlogOf, error) {
	if err := rdb.FlushAll(ctx).Err(); err != nil {
		return backlogOf{}, err
	}
	if err := fillBacklog(ctx, rdb, c, "recipe"); err != nil {
		return backlogOf{}, err
	}
	c.evenly = true
	l := newBacklogLog(c)
	limiter := redis_rate.NewLimiter(rdb)
	limit := redis_rate.Limit{Rate: c.permits, Burst: c.permits, Period: c.window}
	handler := asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		job, err := jobNumber(ctx)
		if err != nil {
			return err
		}
		answer, err := limiter.Allow(ctx, backlogKey, limit)
		if err != nil {
			return err
		}
		if answer.Allowed == 0 {
			l.refused(job, time.Now().Add(answer.RetryAfter))
			return &notYet{answer.RetryAfter}
		}
		l.started(job, l.promise(job))
		return nil
	})
	srv := asynq.NewServerFromRedisClient(rdb, asynq.Config{
		Concurrency: backlogConcurrency, Queues: map[string]int{"recipe": 1}, LogLevel: asynq.FatalLevel,
		DelayedTaskCheckInterval: look.due, TaskCheckInterval: look.pending,
		IsFailure: func(err error) bool { return !isNotYet(err) },
		RetryDelayFunc: func(n int, err error, task *asynq.Task) time.Duration {
			if e := (*notYet)(nil); errors.As(err, &e) {
				return e.retryIn
			}
			return asynq.DefaultRetryDelayFunc(n, err, task)
		},
	})
	if err := srv.Start(handler); err != nil {
		return backlogOf{}, err
	}
	defer srv.Shutdown()
	end, stop := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer stop()
	if err := l.wait(ctx, end.Done()); err != nil {
		return backlogOf{}, err
	}
	return l.sum(time.Now())
}

func isNotYet(err error) bool {
	var e *notYet
	return errors.As(err, &e)
}
