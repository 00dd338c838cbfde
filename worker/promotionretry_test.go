package worker_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// scriptAway is a Redis that does not answer the calls of one script while it is away, as if they alone were for a master of a Cluster that
// is away. It knows a script by the name of its function, so a test that uses it calls [redistest.NeedFunctions].
type scriptAway struct {
	script string
	away   atomic.Bool
	asked  atomic.Int32 // meanwhile
}

func (*scriptAway) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *scriptAway) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := h.fail(cmd); err != nil {
			return err
		}
		return next(ctx, cmd)
	}
}

func (h *scriptAway) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if err := h.fail(cmd); err != nil {
				return err
			}
		}
		return next(ctx, cmds)
	}
}

func (h *scriptAway) fail(cmd redis.Cmder) error {
	if args := cmd.Args(); !h.away.Load() || len(args) < 2 || !strings.HasSuffix(fmt.Sprint(args[1]), "_"+h.script) {
		return nil
	}
	h.asked.Add(1)
	err := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	cmd.SetErr(err)
	return err
}

// A task gives its permit back, and Redis does not take just then that the next one may come now. It would wait for an hour if nobody said
// so again.
func TestPromotionThatRedisDidNotTake(t *testing.T) {
	t.Parallel()
	redistest.NeedFunctions(t)
	r, seen := newRig(t), &runs{}
	hook := &scriptAway{script: "retime"}
	r.rdb.AddHook(hook)
	limit := throttle.Sliding(1, time.Hour)
	give := make(chan struct{})
	handler := seen.handler()
	r.start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		if id, _ := asynq.GetTaskID(ctx); id != "first" {
			return handler.ProcessTask(ctx, task)
		}
		<-give
		return errors.Join(worker.NotCharged(errors.New("not sent")), asynq.SkipRetry)
	}), policies(smsLimit(limit)))
	r.enqueue("sms", "first", to("+1"))
	r.eventually("the first runs", func() bool { return r.queueInfo().Active == 1 })
	r.enqueue("sms", "second", to("+1"))
	r.eventually("the second waits", func() bool { return r.queueInfo().Retry == 1 })
	hook.away.Store(true)
	close(give)
	r.eventually("two tries", func() bool { return hook.asked.Load() > 1 })
	hook.away.Store(false)
	seen.ran(t, 1)
}

// heldScript is a Redis of which one master is silent: the calls of a script with a key that contains a text wait until they are let go.
type heldScript struct {
	script, key string
	came, leave chan struct{}
	once        sync.Once
}

func (*heldScript) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *heldScript) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); len(args) > 3 && strings.HasSuffix(fmt.Sprint(args[1]), "_"+h.script) && strings.Contains(fmt.Sprint(args[3]), h.key) {
			h.once.Do(func() { close(h.came) })
			<-h.leave
		}
		return next(ctx, cmd)
	}
}

func (*heldScript) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// The master of one queue is silent while a task of it is to come earlier. Those of another queue hear of it all the same.
func TestPromotionsOfAQueueDoNotWaitForAnother(t *testing.T) {
	t.Parallel()
	redistest.NeedFunctions(t)
	r, seen := newRig(t), &runs{}
	hook := &heldScript{script: "retime", key: "{silent}", came: make(chan struct{}), leave: make(chan struct{})}
	r.rdb.AddHook(hook)
	give := map[string]chan struct{}{"first silent": make(chan struct{}), "first other": make(chan struct{})}
	handler := seen.handler()
	cfg := policies(smsLimit(throttle.Sliding(1, time.Hour)))
	cfg.Asynq.Queues = map[string]int{"silent": 1, "other": 1}
	var running atomic.Int32
	p, _ := r.start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		if give[id] == nil {
			return handler.ProcessTask(ctx, task)
		}
		running.Add(1)
		<-give[id]
		return errors.Join(worker.NotCharged(errors.New("not sent")), asynq.SkipRetry)
	}), cfg)
	leave := sync.OnceFunc(func() { close(hook.leave) })
	t.Cleanup(leave) // before the pool ends
	for _, queue := range []string{"silent", "other"} {
		r.enqueue("sms", "first "+queue, to("+"+queue), asynq.Queue(queue))
	}
	r.eventually("both run", func() bool { return running.Load() == 2 })
	for _, queue := range []string{"silent", "other"} {
		r.enqueue("sms", queue, to("+"+queue), asynq.Queue(queue))
	}
	r.eventually("both wait", func() bool { return p.Stats().Deferred == 2 })
	close(give["first silent"])
	<-hook.came
	close(give["first other"])
	r.eventually("the other one runs", func() bool { return seen.count("other") == 1 })
	leave()
	seen.ran(t, 2)
}
