package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
)

// ErrClosed is returned by [Pool.Run] after [Pool.Shutdown].
var ErrClosed = errors.New("worker: pool is shut down")

// Pool runs asynq tasks under limits: one or several asynq servers in this
// process on one Redis client, which it does not own. Its methods are safe for
// concurrent use; it runs once.
type Pool struct {
	*Adapter
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

// New makes a pool and does not talk to Redis yet. It refuses a bad
// configuration with all its faults at once; a nil client or handler panics.
func New(rdb redis.UniversalClient, handler asynq.Handler, cfg Config) (*Pool, error) {
	if handler == nil {
		panic("worker: nil handler")
	}
	a, err := NewAdapter(rdb, cfg)
	if err != nil {
		return nil, err
	}
	p := &Pool{Adapter: a, handler: a.Handler(handler), asked: make(chan struct{})}
	n := a.cfg.Servers
	for i := range n {
		c := a.cfg.Asynq
		c.Concurrency = (c.Concurrency + i) / n // shares that differ by one at most
		p.servers = append(p.servers, asynq.NewServerFromRedisClient(a.Client(), a.Server(c)))
	}
	return p, nil
}

// Run processes tasks until ctx ends or [Pool.Shutdown] is called, and then
// shuts down gracefully. It returns what kept it from starting, or nil.
func (p *Pool) Run(ctx context.Context) error {
	if err := p.Start(ctx); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-p.asked:
	}
	p.Shutdown()
	return nil
}

// Start starts the pool and returns; Run is Start, a wait, and Shutdown.
func (p *Pool) Start(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch p.state {
	case poolRunning:
		return errors.New("worker: pool runs already")
	case poolClosed:
		return ErrClosed
	}
	if err := p.Adapter.Start(ctx); err != nil {
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
	p.log.Info("started", zap.Int("servers", len(p.servers)), zap.Int("concurrency", p.cfg.Asynq.Concurrency), zap.Int("policies", len(p.policies)))
	return nil
}

// Shutdown hands tasks that wait in a worker slot back at once, gives those
// that run asynq's ShutdownTimeout, and returns when all is through. It is
// idempotent and legal before Run.
func (p *Pool) Shutdown() {
	p.end.Do(func() { close(p.asked) })
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closeLocked()
}

func (p *Pool) closeLocked() {
	if p.state == poolClosed {
		return
	}
	running := p.state == poolRunning
	p.state = poolClosed
	p.Stop()
	if running {
		var wg sync.WaitGroup
		for _, srv := range p.servers {
			wg.Go(srv.Shutdown)
		}
		wg.Wait()
	}
	p.Close()
	p.log.Info("shut down")
}
