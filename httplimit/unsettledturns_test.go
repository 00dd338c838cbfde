package httplimit

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/headwayq/headway/throttle"
)

// dead is a call of a server that is silent.
func dead(ctx context.Context) error {
	<-ctx.Done()
	return throttle.ErrUnavailable
}

// The bound holds also for what comes while a call hangs.
func TestVirtualUnsettledBound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := unsettled{log: zap.NewNop()}
		var settled atomic.Int32
		var back atomic.Bool
		call := func(ctx context.Context) error {
			if !back.Load() {
				return dead(ctx)
			}
			settled.Add(1)
			return nil
		}
		for range 5 {
			for range unsettledMax {
				u.add(call, time.Hour)
			}
			time.Sleep(900 * time.Millisecond)
		}
		back.Store(true)
		time.Sleep(time.Minute)
		if n := settled.Load(); n != unsettledMax {
			t.Errorf("%d were kept, want %d", n, unsettledMax)
		}
	})
}

// On Redis Cluster one master is dead, and new requests of it come all the time. Those of other masters are settled.
func TestVirtualUnsettledTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := unsettled{log: zap.NewNop()}
		var settled atomic.Int32
		u.add(dead, time.Hour)
		u.add(func(context.Context) error {
			settled.Add(1)
			return nil
		}, time.Hour)
		for range 100 {
			u.add(dead, time.Minute)
			time.Sleep(100 * time.Millisecond)
		}
		if n := settled.Load(); n != 1 {
			t.Errorf("that of a live master was made %d times in 10 s, want once", n)
		}
		time.Sleep(2 * time.Hour) // for the others to be dropped
	})
}
