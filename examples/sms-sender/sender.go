package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// sender is the handler of sms:send. The pool calls it when the limits allow the
// message to go, so it only sends. It is safe for concurrent use.
type sender struct {
	cfg      config
	env      env
	secret   []byte // common to all processes on one Redis
	client   *gatewayClient
	own      *e2e.Gateway // nil if -gateway was given
	progress *e2e.Progress
	log      *zap.Logger

	grants e2e.GrantLog
	tally  e2e.Tally
	watch  e2e.Watch
	total  atomic.Int64 // messages that this run expects to see sent; -1 if unknown
	left   atomic.Int64 // messages in the queue that are not done
}

func newSender(ctx context.Context, rdb redis.UniversalClient, cfg config, e env) (*sender, error) {
	s := &sender{cfg: cfg, env: e, own: e.gateway}
	s.total.Store(-1)
	s.progress = e2e.NewProgress(e.stderr, s.snapshot)
	s.log = e2e.NewLogger(s.progress)
	var err error
	if s.secret, err = loadSecret(ctx, rdb, cfg.policy.Longest()); err != nil {
		return nil, err
	}
	switch {
	case cfg.gateway != "":
		s.client = newGatewayClient(cfg.gateway, http.DefaultTransport.(*http.Transport).Clone())
	case s.own != nil:
		s.client = newGatewayClient("http://gateway/", e2e.InMemory(s.own))
	default:
		if s.own, err = e2e.StartGateway(ctx, cfg.policy, e2e.Faults{}, s.secret); err != nil {
			return nil, err
		}
		s.client = newGatewayClient(s.own.URL(), http.DefaultTransport.(*http.Transport).Clone())
	}
	return s, nil
}

func (s *sender) close() {
	s.client.http.CloseIdleConnections()
	if s.own != nil {
		ctx, cancel := context.WithTimeout(context.Background(), postTimeout)
		defer cancel()
		_ = s.own.Shutdown(ctx) // all POSTs of this process have ended before
	}
}

// work runs a pool until the queue is empty or ctx ends, and sums up.
func (s *sender) work(ctx context.Context, rdb redis.UniversalClient, msgs []e2e.Message) error {
	pool, err := s.pool(rdb)
	if err != nil {
		return err
	}
	if err := pool.Start(ctx); err != nil {
		return err
	}
	s.announce(msgs)
	start := time.Now()
	var wg sync.WaitGroup
	showing, hide := context.WithCancel(context.WithoutCancel(ctx))
	wg.Go(func() { s.progress.Run(showing) })
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	if s.cfg.role == roleAll {
		before, _, _ := look(inspector)
		s.total.Store(int64(before + len(msgs)))
		var n int
		n, err = enqueue(ctx, rdb, s.cfg, msgs)
		s.total.Store(int64(before + n))
		if s.cfg.once {
			s.say("%s enqueued, %d already there", e2e.Count(n, "message"), len(msgs)-n)
		}
	}
	if err == nil {
		s.wait(ctx, inspector)
	}
	pool.Shutdown()
	left, _, _ := look(inspector)
	s.left.Store(int64(left))
	hide()
	wg.Wait()
	switch {
	case ctx.Err() == nil || left == 0:
	case s.cfg.redis == nil:
		s.say("interrupted: %s not sent, and lost with the embedded Redis", e2e.Count(left, "message"))
	default:
		s.say("interrupted: %s left in Redis, -role work goes on", e2e.Count(left, "message"))
	}
	return errors.Join(err, s.sumUp(pool.Stats(), time.Since(start)))
}

// pool is how a program uses Headway: a handler, policies, a pool.
func (s *sender) pool(rdb redis.UniversalClient) (*worker.Pool, error) {
	mux := asynq.NewServeMux()
	mux.Handle(e2e.TaskType, s)
	return worker.New(rdb, mux, worker.Config{
		Asynq: asynq.Config{
			Concurrency:     s.cfg.concurrency,
			Queues:          map[string]int{queueName: 1},
			ErrorHandler:    s,
			ShutdownTimeout: postTimeout + time.Second, // so that no POST is cut off and sent again
		},
		Policies: []queue.Policy{s.cfg.policy.Policy},
		Throttle: throttle.Config{Secret: s.secret}, // no phone number stands in a key
		Logger:   s.log,
		Observer: &s.watch,
	})
}

// ProcessTask implements [asynq.Handler].
func (s *sender) ProcessTask(ctx context.Context, task *asynq.Task) error {
	m, err := e2e.DecodeMessage(task.Payload())
	if err != nil {
		return fmt.Errorf("%w: %w", err, asynq.SkipRetry)
	}
	granted, ok := worker.GrantFrom(ctx)
	if !ok {
		return errors.New("the task type has no policy")
	}
	g, err := s.cfg.policy.GrantOf(m, task.Payload(), s.secret, granted.Token.String(), granted.Promised, granted.At)
	if err == nil {
		err = s.grants.Add(g) // for the count of breaches
	}
	if err != nil {
		return err
	}
	err = s.client.send(ctx, m, granted.At)
	_, unsent := errors.AsType[notConnectedError](err)
	if unsent {
		err = worker.NotCharged(err)
	}
	if unsent || err != nil && s.cfg.policy.Charge == queue.ChargeSuccess {
		g.Unused = true // its permits go back
		return errors.Join(err, s.grants.Add(g))
	}
	if err == nil {
		s.tally.Sent(m.To, granted.At.UnixMicro())
	}
	return err
}

// HandleError implements [asynq.ErrorHandler]. asynq calls it before it retries or
// archives a message that was not sent. One that a limit defers never comes here.
func (s *sender) HandleError(ctx context.Context, _ *asynq.Task, err error) {
	id, _ := asynq.GetTaskID(ctx)
	retried, _ := asynq.GetRetryCount(ctx)
	most, _ := asynq.GetMaxRetry(ctx)
	if retried < most && !errors.Is(err, asynq.SkipRetry) {
		s.log.Warn("message not sent, asynq tries again", zap.String("id", id), zap.Error(err))
		return
	}
	s.tally.Failed()
	s.log.Error("message failed for good", zap.String("id", id), zap.Error(err))
}
