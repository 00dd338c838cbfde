package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"go.uber.org/zap"
)

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
