package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/policyset"
	"github.com/headwayq/headway/throttle"
)

// ErrClosed is returned by [Pool.Run] after [Pool.Shutdown].
var ErrClosed = errors.New("worker: pool is shut down")

// Pool runs asynq tasks under limits: one or several asynq servers in this
// process on one Redis client, which it does not own. Its methods are safe for
// concurrent use; it runs once.
type Pool struct {
	adapter *Adapter
	handler asynq.Handler
	servers []*asynq.Server

	mu    sync.Mutex
	state poolState
	end   sync.Once
	asked chan struct{} // closed when a shutdown is asked for
}

// poolState goes one way:
//
//	new -> running -> closed
//	 \-----------------^
type poolState int

const (
	poolNew poolState = iota
	poolRunning
	poolClosed
)

// New makes a pool and does not talk to Redis yet: [Pool.Run] or [Pool.Start] does.
//
// rdb stays the caller's, who closes it after Run. The pool sends everything over it: the
// commands of asynq's server, its own, and, when handlers use it too, theirs. The client's
// PoolSize should be above Concurrency then.
//
// handler is called under the permits that the policy of the task's type asks for. A task
// whose type has no policy is called as Config.Unlimited says. When handler is an
// [asynq.ServeMux], a task that it has no handler for spends nothing.
//
// New refuses a bad configuration with all its faults at once. Each unwraps to
// [ErrInvalidConfig], or to the error of the part that it is in: queue.ErrInvalidPolicy,
// throttle.ErrInvalidLimit, throttle.ErrInvalidConfig. A nil client or handler panics.
func New(rdb redis.UniversalClient, handler asynq.Handler, cfg Config) (*Pool, error) {
	if policyset.IsNil(handler) {
		panic("worker: nil handler")
	}
	a, err := NewAdapter(rdb, cfg)
	if err != nil {
		return nil, err
	}
	p := &Pool{adapter: a, handler: a.Handler(handler), asked: make(chan struct{})}
	n := a.cfg.Servers
	for i := range n {
		c := a.cfg.Asynq
		c.Concurrency = (c.Concurrency + i) / n // shares that differ by one at most
		if i > 0 {
			c.HealthCheckFunc = nil // the first server calls it, for all use one client
		}
		rdb := &client{UniversalClient: a.rdb, a: a, skipRecovery: i > 0} // the first server recovers
		p.servers = append(p.servers, asynq.NewServerFromRedisClient(rdb, a.Server(c)))
	}
	return p, nil
}

// Run processes tasks until SIGTERM or SIGINT comes, ctx ends, or [Pool.Shutdown]
// is called, and then shuts down gracefully, as that does. It returns nil then.
//
// It returns an error when it could not start: [ErrRedisUnfit] with all that is wrong with
// the server, [ErrClockSkew], [ErrClosed] after a Shutdown, or that Redis does not answer, see
// [Config.WaitForRedis].
// Once it runs, no error ends it: while Redis is away it waits, and goes on afterwards.
// A pool runs once.
//
// Once the first SIGTERM or SIGINT has come, Run lets go of both. A second one
// meets what the program itself has set, which is to end the process at once if
// it has set nothing: its tasks run again, and pay again. SIGTSTP is
// [Pool.Stop]. All this is as an asynq.Server's Run has it, except that asynq
// ignores a second signal. [Config.NoSignals] leaves all signals to the program.
func (p *Pool) Run(ctx context.Context) error {
	ctx, release := p.heedSignals(ctx)
	defer release()
	if err := p.Start(ctx); err != nil {
		if errors.Is(context.Cause(ctx), errSignal) {
			p.Shutdown()
			return nil
		}
		return err
	}
	select {
	case <-ctx.Done():
	case <-p.asked:
	}
	p.Shutdown()
	return nil
}

// Start starts the pool and returns; Run is Start, a wait, and Shutdown. The context is for the start only: Shutdown ends the pool.
// Start heeds no signals. Its errors are those of Run.
func (p *Pool) Start(ctx context.Context) error {
	if err := p.adapter.awaitRedis(ctx); err != nil { // without the lock, so that Shutdown can end it
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch p.state {
	case poolRunning:
		return errors.New("worker: pool runs already")
	case poolClosed:
		return ErrClosed
	}
	if err := p.adapter.Start(ctx); err != nil {
		return err
	}
	p.state = poolRunning
	for i, srv := range p.servers {
		if err := srv.Start(p.handler); err != nil {
			p.servers = p.servers[:i]
			p.closeLocked()
			return fmt.Errorf("worker: starting server %d: %w", i+1, err)
		}
	}
	a := p.adapter
	if c, ok := a.rdb.(interface{ Options() *redis.Options }); ok && c.Options().ClientName == "" {
		a.log.Info("the connections have no name in CLIENT LIST: set ClientName in the options of the Redis client")
	}
	a.log.Info("started", zap.Int("servers", len(p.servers)), zap.Int("concurrency", a.cfg.Asynq.Concurrency), zap.Int("policies", len(a.policies)))
	return nil
}

// Stop fetches no more tasks from now on, for good. Tasks that were fetched go on
// to their end, and so does what else the pool does, until [Pool.Shutdown]: it is
// what an asynq.Server's Stop is. A task that waits in a worker slot goes on to wait there:
// [Adapter.Stop] hands it back. Deferred tasks are woken by other pools.
func (p *Pool) Stop() {
	p.mu.Lock()
	running := p.state == poolRunning
	p.mu.Unlock()
	if !running {
		return // as asynq has it
	}
	p.adapter.stopFetching()
	var wg sync.WaitGroup
	for _, srv := range p.servers {
		wg.Go(srv.Stop) // asynq's own tools show the server as stopped
	}
	wg.Wait()
}

// Shutdown hands tasks that wait in a worker slot back at once, gives those
// that run asynq's ShutdownTimeout, and returns when all is through. A task that
// runs longer goes back to its queue. Its handler, whose context ends then, has one
// more second to return: its slot of a concurrent limit is free after that. A handler that
// takes longer keeps its slot until the lease ends. Shutdown is idempotent and legal before Run.
func (p *Pool) Shutdown() {
	p.end.Do(func() { close(p.asked) })
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closeLocked()
}

// Stats returns a snapshot of the counters.
func (p *Pool) Stats() Stats { return p.adapter.Stats() }

// ReloadPolicies is [Adapter.ReloadPolicies].
func (p *Pool) ReloadPolicies(ctx context.Context) error { return p.adapter.ReloadPolicies(ctx) }

// Limiter returns the limiter of a policy's rule, or nil.
func (p *Pool) Limiter(rule string) *throttle.Limiter { return p.adapter.Limiter(rule) }

func (p *Pool) closeLocked() {
	if p.state == poolClosed {
		return
	}
	running := p.state == poolRunning
	p.state = poolClosed
	p.adapter.Stop()
	if running {
		var wg sync.WaitGroup
		for _, srv := range p.servers {
			wg.Go(srv.Shutdown)
		}
		wg.Wait()
	}
	p.adapter.Close()
	p.adapter.log.Info("shut down")
}

// errSignal ends a Run: the process was told to end.
var errSignal = errors.New("worker: a signal asked for the shutdown")

// heedSignals returns a context that ends with the first SIGTERM or SIGINT. From then on
// these signals do again what they did before: a second one ends the process. Where there
// is a SIGTSTP it stops the pool. release ends the listening.
func (p *Pool) heedSignals(ctx context.Context) (_ context.Context, release func()) {
	if p.adapter.cfg.NoSignals {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	end, stop, over := make(chan os.Signal, 1), make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(end, syscall.SIGTERM, os.Interrupt)
	if stopSignal != nil {
		signal.Notify(stop, stopSignal)
	}
	var stopping, listening sync.WaitGroup
	listening.Go(func() {
		for {
			select {
			case s := <-end:
				signal.Stop(end)
				p.adapter.log.Info("shutting down; a second signal ends the process at once", zap.Stringer("signal", s))
				cancel(fmt.Errorf("%w: %v", errSignal, s))
			case s := <-stop:
				p.adapter.log.Info("stopping: no more tasks are fetched", zap.Stringer("signal", s))
				stopping.Go(p.Stop) // it may take a moment
			case <-over:
				return
			}
		}
	})
	return ctx, func() {
		signal.Stop(end)
		signal.Stop(stop)
		close(over)
		listening.Wait()
		stopping.Wait()
		cancel(nil)
	}
}
