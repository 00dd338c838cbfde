package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/headwayq/headway/httplimit"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// keptFrom keeps scripts on a rule's keys from Redis while it is on, as an outage does.
type keptFrom struct {
	rule  string
	on    atomic.Bool
	tried atomic.Int32
}

func (*keptFrom) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*keptFrom) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (k *keptFrom) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if k.on.Load() && redistest.IsScript(cmd) && strings.Contains(fmt.Sprint(cmd.Args()), k.rule) {
			k.tried.Add(1)
			err := &net.OpError{Op: "read", Err: errors.New("nobody answers")}
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

// Redis is away for half a minute while a handler ends. When Redis is back, its slot is free and its permit comes back, long
// before the lease would have ended.
func TestVirtualSettlementIsRepeatedUntilRedisAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		away := &keptFrom{rule: ":r"}
		rdb.AddHook(away)
		rate, slots := limiter(t, rdb, "rate", "sliding 1/1h", throttle.Config{}), limiter(t, rdb, "room", "concurrent 1 lease 1h", throttle.Config{})
		m := newLimit(t, httplimit.Config{Logger: zap.NewNop(), Refund: func(int) bool { return true }},
			httplimit.Rule{Limiter: rate, Key: httplimit.Same("all")}, httplimit.Rule{Limiter: slots, Key: httplimit.Same("all")})
		h := m.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { away.on.Store(true) }))
		if w := get(t.Context(), h, "/"); w.Code != http.StatusOK {
			t.Fatalf("the first request got %d", w.Code)
		}
		time.Sleep(30 * time.Second) // of the bubble
		away.on.Store(false)
		time.Sleep(3 * time.Second)
		if w := get(t.Context(), m.Handler(ok), "/"); w.Code != http.StatusOK {
			t.Errorf("the next request got %d after Redis was back, want %d", w.Code, http.StatusOK)
		}
		tried := away.tried.Load()
		away.on.Store(true)
		time.Sleep(time.Minute)
		if away.tried.Load() != tried {
			t.Error("what is settled is tried still")
		}
	})
}

// A lease that has ended by itself is not released any more.
func TestVirtualSettlementEndsWithTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		away := &keptFrom{rule: ":room"}
		rdb.AddHook(away)
		m := newLimit(t, httplimit.Config{Logger: zap.NewNop()},
			httplimit.Rule{Limiter: limiter(t, rdb, "room", "concurrent 1 lease 10m", throttle.Config{}), Key: httplimit.Same("all")})
		get(t.Context(), m.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { away.on.Store(true) })), "/")
		time.Sleep(9 * time.Minute)
		tried := away.tried.Load()
		time.Sleep(30 * time.Second)
		if away.tried.Load() == tried {
			t.Error("no release is tried any more while the lease stands")
		}
		time.Sleep(time.Minute)
		tried = away.tried.Load()
		time.Sleep(time.Minute)
		if away.tried.Load() != tried {
			t.Error("a lease that has ended is released still")
		}
	})
}
