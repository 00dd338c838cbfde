package worker_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/worker"
)

// A subscription whose peer is gone without a word is given up; one that is only quiet
// is not.
func TestVirtualDeadSubscriptionIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, m := redistest.Mini(t)
		var dead, ended atomic.Bool
		o := redistest.MiniOptions(m)
		dial := o.Dialer
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dial(ctx, network, addr)
			return &mute{c, &dead}, err
		}
		rdb := redis.NewClient(o)
		defer rdb.Close()
		sub := rdb.Subscribe(t.Context(), "c")
		var wg sync.WaitGroup
		wg.Go(func() {
			defer ended.Store(true)
			worker.ReceiveUntilSilent(t.Context(), sub)
		})
		time.Sleep(10 * worker.SilenceMax)
		if ended.Load() {
			t.Error("a quiet subscription was given up")
		}
		dead.Store(true)
		time.Sleep(3 * worker.SilenceMax)
		if !ended.Load() {
			t.Error("a dead subscription is still listened to")
			_ = sub.Close()
		}
		_ = sub.Close()
		wg.Wait()
	})
}

// mute is a connection whose peer may be dead.
type mute struct {
	net.Conn
	dead *atomic.Bool
}

func (c *mute) Write(b []byte) (int, error) {
	if c.dead.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}
