package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// A limit of a wider rule has changed, in another process, a moment ago: on Redis
// Cluster its slot says so when the narrower one has granted already.
func TestClusterHearsOfAChangedLimit(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3)
	here := clusterPolicy(t, rdb, throttle.Sliding(5, time.Minute), throttle.Sliding(5, time.Hour))
	there := clusterPolicy(t, rdb, throttle.Sliding(5, time.Minute), throttle.Sliding(5, time.Hour))
	if d, err := here.TryAcquire(t.Context(), clusterRequest(1)); err != nil || !d.Granted {
		t.Fatalf("TryAcquire = %v, %v, want a grant", d, err)
	}
	if err := there.Rules()[1].SetLimit(t.Context(), throttle.Sliding(6, time.Hour)); err != nil {
		t.Fatal(err)
	}
	if d, err := there.TryAcquire(t.Context(), clusterRequest(2)); err != nil || !d.Granted {
		t.Fatalf("TryAcquire = %v, %v, want a grant", d, err)
	}
	if d, err := here.TryAcquire(t.Context(), clusterRequest(3)); err != nil || !d.Granted {
		t.Errorf("TryAcquire = %v, %v, want a grant", d, err)
	}
	for i, want := range []int{4, 3} {
		if n, err := here.Rules()[i].Available(t.Context(), []string{"phone3", "acme"}[i]); err != nil || n != want {
			t.Errorf("rule %d has %d left, %v, want %d", i, n, err, want)
		}
	}
}

// lostHook loses the answer of one script that a client runs on a key.
type lostHook struct {
	armed atomic.Bool
	tag   string
}

func (h *lostHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *lostHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *lostHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil && cmd.Name() == "evalsha" && strings.Contains(fmt.Sprint(cmd.Args()[3]), h.tag) && h.armed.CompareAndSwap(true, false) {
			err = &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}
			cmd.SetErr(err)
		}
		return err
	}
}

// The wider slot has granted, and its answer is lost: nothing stays charged there
// that nobody uses.
func TestClusterLostAnswerOfTheSecondSlot(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3)
	p := clusterPolicy(t, rdb, throttle.Sliding(5, time.Minute), throttle.Sliding(5, time.Hour))
	if d, err := p.TryAcquire(t.Context(), clusterRequest(1)); err != nil || !d.Granted {
		t.Fatalf("TryAcquire = %v, %v, want a grant", d, err)
	}
	lost := &lostHook{tag: "{acme}"}
	rdb.AddHook(lost)
	lost.armed.Store(true)
	r := clusterRequest(2)
	r.Job, r.Token = "job", throttle.NewToken()
	if _, err := p.Redeem(t.Context(), r); !errors.Is(err, throttle.ErrUnavailable) || lost.armed.Load() {
		t.Fatalf("Redeem = %v, want %v", err, throttle.ErrUnavailable)
	}
	for i, want := range []int{5, 4} {
		if n, err := p.Rules()[i].Available(t.Context(), []string{"phone2", "acme"}[i]); err != nil || n != want {
			t.Errorf("rule %d has %d left, %v, want %d", i, n, err, want)
		}
	}
}
