package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// unreachable makes the scripts fail that a client runs on keys with a tag.
type unreachable struct {
	tag string
	on  atomic.Bool
}

func (*unreachable) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*unreachable) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (u *unreachable) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if u.on.Load() && redistest.IsScript(cmd) && strings.Contains(fmt.Sprint(cmd.Args()[3]), u.tag) {
			err := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

// A server that does not answer keeps nothing from being given back in the other slots. What is
// left is given back when the call is repeated.
func TestClusterGivesBackBesideAServerThatIsAway(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3)
	away := &unreachable{tag: "{phone1}"}
	rdb.AddHook(away)
	p := clusterPolicy(t, rdb, throttle.Sliding(2, time.Minute), throttle.Sliding(5, time.Hour))
	d, err := p.TryAcquire(t.Context(), clusterRequest(1))
	if err != nil || !d.Granted {
		t.Fatalf("TryAcquire = %v, %v, want a grant", d, err)
	}
	available := func(phone, provider int) {
		t.Helper()
		for i, want := range []int{phone, provider} {
			if n, err := p.Rules()[i].Available(t.Context(), []string{"phone1", "acme"}[i]); err != nil || n != want {
				t.Errorf("rule %d has %d left, %v, want %d", i, n, err, want)
			}
		}
	}
	available(1, 4)
	away.on.Store(true)
	if _, err := p.Refund(t.Context(), d.Request); !errors.Is(err, throttle.ErrUnavailable) {
		t.Errorf("Refund = %v, want %v", err, throttle.ErrUnavailable)
	}
	away.on.Store(false)
	available(1, 5)
	if _, err := p.Refund(t.Context(), d.Request); err != nil {
		t.Error(err)
	}
	available(2, 5)
}

// A server that does not answer keeps nothing from being adjusted in the other slots, and what these have answered is not
// forgotten: all that was charged more comes back in the end.
func TestClusterAdjustsBesideAServerThatIsAway(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3)
	away := &unreachable{tag: "{phone1}"}
	rdb.AddHook(away)
	p := clusterPolicy(t, rdb, throttle.Sliding(10, time.Hour), throttle.Sliding(10, time.Hour))
	d, err := p.TryAcquire(t.Context(), clusterRequest(1))
	if err != nil || !d.Granted {
		t.Fatalf("TryAcquire = %v, %v, want a grant", d, err)
	}
	charge := p.Charge(d)
	for _, step := range []struct {
		to              int
		away            bool
		phone, provider int // that are left after it
	}{
		{to: 4, away: true, phone: 9, provider: 6},
		{to: 4, phone: 6, provider: 6},
		{to: 2, away: true, phone: 6, provider: 8},
		{to: 1, phone: 9, provider: 9},
	} {
		away.on.Store(step.away)
		_, err := charge.Adjust(t.Context(), map[string]int{"phone": step.to, "provider": step.to})
		if errors.Is(err, throttle.ErrUnavailable) != step.away || err != nil && !step.away {
			t.Errorf("Adjust to %d = %v", step.to, err)
		}
		away.on.Store(false)
		for i, want := range []int{step.phone, step.provider} {
			if n, err := p.Rules()[i].Available(t.Context(), []string{"phone1", "acme"}[i]); err != nil || n != want {
				t.Errorf("adjusted to %d: rule %d has %d left, %v, want %d", step.to, i, n, err, want)
			}
		}
	}
}
