package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	client   *e2e.GatewayClient
	own      *e2e.Gateway // nil if -gateway was given
	backlog  *e2e.Backlog
	progress *e2e.Progress
	log      *zap.Logger

	grants e2e.GrantLog
	tally  e2e.Tally
	watch  e2e.Watch
	total  atomic.Int64 // messages that this run expects to see sent; -1 if unknown
}

func newSender(ctx context.Context, rdb redis.UniversalClient, cfg config, e env) (*sender, error) {
	s := &sender{cfg: cfg, env: e, own: e.gateway, backlog: e2e.NewBacklog(rdb, queueName, cfg.role == roleWork)}
	s.total.Store(-1)
	s.progress = e2e.NewProgress(e.stderr, s.snapshot)
	s.log = e2e.NewLogger(s.progress)
	var err error
	if s.secret, err = e2e.LoadSecret(ctx, rdb, queueName+":secret", cfg.policy.Longest()); err != nil {
		return nil, err
	}
	url := cfg.gateway
	if url == "" && s.own == nil {
		if s.own, err = e2e.StartGateway(ctx, cfg.policy, e2e.Faults{}, s.secret); err != nil {
			return nil, err
		}
		url = s.own.URL()
	}
	if s.client, err = e2e.NewGatewayClient(cmp.Or(url, "http://gateway/"), 0); err != nil {
		return nil, err
	}
	if e.gateway != nil {
		s.client.HTTP.Transport = e2e.InMemory(e.gateway)
	}
	return s, nil
}

func (s *sender) close() {
	s.client.Close()
	if s.own != nil {
		ctx, cancel := context.WithTimeout(context.Background(), e2e.GatewayTimeoutDefault)
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
	if s.cfg.role == roleAll {
		before, _ := s.backlog.Look()
		s.total.Store(int64(before.Left + len(msgs)))
		var n int
		n, err = enqueue(ctx, rdb, s.cfg, msgs)
		s.total.Store(int64(before.Left + n))
		if s.cfg.once {
			s.say("%s enqueued, %d already there", e2e.Count(n, "message"), len(msgs)-n)
		}
	}
	if err == nil {
		s.backlog.Complete()
		s.backlog.Wait(ctx, s.cfg.drain)
	}
	pool.Shutdown()
	_, lost := s.backlog.Look()
	left := s.backlog.Left()
	hide()
	wg.Wait()
	switch {
	case ctx.Err() == nil || lost != nil || left == 0:
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
			ShutdownTimeout: e2e.GatewayTimeoutDefault + time.Second, // so that no POST is cut off and sent again
		},
		Policies: []queue.Policy{s.cfg.policy.Policy},
		Throttle: throttle.Config{Secret: s.secret}, // no phone number stands in a key
		Logger:   s.log,
		Observer: s.watch.Observer(),
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
	err = s.client.Send(ctx, m, granted.At.UnixMicro())
	unsent := errors.Is(err, e2e.ErrNotConnected)
	if unsent || err != nil && s.cfg.policy.Charge == queue.ChargeSuccess {
		g.Unused = true // its permits go back
		return errors.Join(answer(err), s.grants.Add(g))
	}
	if err == nil {
		s.tally.Sent(m.To, granted.At.UnixMicro())
	}
	return answer(err)
}

// answer makes of an error of the gateway's client what tells the pool what comes next:
//
//   - 429 or 503 with a Retry-After: nothing goes to this phone until then, and it costs no retry
//   - any other 4xx, or a redirect: no further try
//   - no connection: asynq tries again by its rules, and as nothing was sent its permits go back
//   - any other 5xx or 429, or no answer: asynq tries again by its rules
func answer(err error) error {
	if later, ok := errors.AsType[*e2e.RetryLaterError](err); ok {
		return worker.RetryAfter(err, later.After)
	}
	if rejected, ok := errors.AsType[*e2e.RejectedError](err); ok {
		return fmt.Errorf("%w: %w", rejected, asynq.SkipRetry)
	}
	if errors.Is(err, e2e.ErrNotConnected) {
		return worker.NotCharged(err)
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
