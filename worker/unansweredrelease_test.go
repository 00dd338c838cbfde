package worker_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// failingReleases keeps calls that match from Redis while it is on, as an outage does.
type failingReleases struct {
	call   *regexp.Regexp
	on     atomic.Bool
	failed atomic.Int32
}

var errNoAnswer = &net.OpError{Op: "read", Err: errors.New("nobody answers")}

// newFailingReleases is for a Redis with functions, which are called by their names.
func newFailingReleases() *failingReleases {
	return &failingReleases{call: regexp.MustCompile(`_release `)}
}

func (f *failingReleases) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *failingReleases) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (f *failingReleases) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if f.on.Load() && f.call.MatchString(fmt.Sprint(cmd.Args())) {
			f.failed.Add(1)
			cmd.SetErr(errNoAnswer)
			return errNoAnswer
		}
		return next(ctx, cmd)
	}
}

// slotForAnHour is a policy of one slot for all tasks, with the longest lease that anybody would take.
func slotForAnHour() queue.Policy {
	return queue.Policy{Type: "job", Rules: []queue.Rule{{Name: "slots", Limit: throttle.Concurrent(1, time.Hour), Constant: "all"}}}
}

// Redis does not answer the release of a lease for 4 s, while its handler ends. The next task runs
// when Redis answers again, and not when the lease would have ended.
func TestReleaseThatIsNotAnsweredIsRepeated(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]error{"the handler succeeds": nil, "the handler fails": asynq.SkipRetry} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, seen, away := newRig(t), &runs{}, newFailingReleases()
			rdb := redis.NewClient(r.srv.ClientOptions())
			t.Cleanup(func() { _ = rdb.Close() })
			rdb.AddHook(away)
			began, goOn := make(chan struct{}), make(chan struct{})
			r.startOn(rdb, asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
				if seen.note(ctx, task).id == "first" {
					close(began)
					<-goOn
					return first
				}
				return nil
			}), policies(slotForAnHour()))
			r.enqueue("job", "first", "")
			<-began
			r.enqueue("job", "second", "")
			r.eventually("the second waits", func() bool { return r.is("second", asynq.TaskStateRetry) })

			away.on.Store(true)
			close(goOn)
			r.eventually("a release that fails", func() bool { return away.failed.Load() > 0 })
			never(t, 4*time.Second, "the second runs beside a lease", func() bool { return seen.count("second") > 0 })
			away.on.Store(false)
			back := time.Now()
			seen.ran(t, 2)
			if took := time.Since(back); took > 5*time.Second {
				t.Errorf("the second ran %v after Redis had answered again, want a few seconds at most", took)
			}
			r.eventually("no lease left", func() bool {
				return r.peek(r.limiter("slots", throttle.Concurrent(1, time.Hour)), "all").Available == 1
			})
		})
	}
}

// A grant that goes back after its handler has adjusted what it paid is not refunded as a whole: its lease
// ends by the release alone.
func TestReleaseOfAnAdjustedGrantIsRepeated(t *testing.T) {
	t.Parallel()
	r, seen, away := newRig(t), &runs{}, newFailingReleases()
	rdb := redis.NewClient(r.srv.ClientOptions())
	t.Cleanup(func() { _ = rdb.Close() })
	rdb.AddHook(away)
	p := slotForAnHour()
	p.Rules = append([]queue.Rule{{Name: "bytes", Limit: throttle.Bucket(1000, time.Second, 1000), Constant: "all"}}, p.Rules...)
	p.Charge = queue.ChargeSuccess
	r.startOn(rdb, asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		if seen.note(ctx, task).id != "first" {
			return nil
		}
		away.on.Store(true)
		return errors.Join(worker.Adjust(ctx, 5, "bytes"), errors.New("no"), asynq.SkipRetry)
	}), policies(p))
	r.enqueue("job", "first", "")
	r.eventually("a release that fails", func() bool { return away.failed.Load() > 0 })
	away.on.Store(false)
	r.enqueue("job", "second", "")
	back := time.Now()
	seen.ran(t, 2)
	if took := time.Since(back); took > 5*time.Second {
		t.Errorf("the second ran after %v, want a few seconds at most", took)
	}
}

// A release that Redis did not answer so far is tried once more at the end of the pool, and the task that
// comes next runs in another pool.
func TestPendingReleasesAreMadeAtClose(t *testing.T) {
	t.Parallel()
	r, seen, away := newRig(t), &runs{}, newFailingReleases()
	rdb := redis.NewClient(r.srv.ClientOptions())
	t.Cleanup(func() { _ = rdb.Close() })
	rdb.AddHook(away)
	a, _ := r.withdrawals(rdb)
	l, err := throttle.New(rdb, "slots", throttle.Concurrent(1, time.Hour), throttle.Config{})
	if err != nil {
		t.Fatal(err)
	}
	d := r.take(l, "all")
	r.start(seen.handler(), policies(slotForAnHour()))
	r.enqueue("job", "waits", "")
	r.eventually("it waits", func() bool { return r.is("waits", asynq.TaskStateRetry) })
	away.on.Store(true)
	a.ReleaseLater(l, d)
	r.eventually("a release that fails", func() bool { return away.failed.Load() > 0 })
	away.on.Store(false)
	closing := time.Now()
	a.Close()
	seen.ran(t, 1)
	if took := time.Since(closing); took > 5*time.Second {
		t.Errorf("the task ran %v after the end of the other pool, want a few seconds at most", took)
	}
}

// A lease that would have ended by itself is not released any more.
func TestVirtualReleaseIsTriedAsLongAsTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const lease = 10 * time.Minute
		clients, _ := mini(t, 1)
		rdb, away := clients[0], &failingReleases{call: regexp.MustCompile(`:slots`)} // nothing else is asked about the rule
		r := rigOn(t, nil, rdb)
		a, _ := r.withdrawals(rdb)
		l := r.limiter("slots", throttle.Concurrent(1, lease))
		d := r.take(l, "all")
		rdb.AddHook(away)
		away.on.Store(true)
		a.ReleaseLater(l, d)
		time.Sleep(lease - time.Second) // of the bubble
		tried := away.failed.Load()
		time.Sleep(2 * time.Second)
		if away.failed.Load() == tried {
			t.Error("no release is tried any more while the lease stands")
		}
		tried = away.failed.Load()
		time.Sleep(time.Minute)
		if away.failed.Load() != tried {
			t.Error("a lease that has ended is released still")
		}
		a.Close()
	})
}
