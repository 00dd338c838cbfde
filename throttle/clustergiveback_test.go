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

	away.on.Store(true)
	defer away.on.Store(false)
	if _, err := charge.Adjust(t.Context(), map[string]int{"provider": 3}); err != nil {
		t.Errorf("Adjust of the provider alone = %v, want that the phone's server is not asked", err)
	}
	if n, err := p.Rules()[1].Available(t.Context(), "acme"); err != nil || n != 7 {
		t.Errorf("%d left of the provider, %v, want 7", n, err)
	}
}

// A job that a rule in a later slot holds up has its turn in the earlier one, which would admit it at once. Nobody tells it to
// come by that: it would be asked about, refused and told again, over and over.
func TestClusterJobIsNotToldToComeByItsOwnTurn(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3)
	p := clusterPolicy(t, rdb, throttle.Sliding(1, time.Minute), throttle.Sliding(1, time.Hour))
	if d, err := p.TryAcquire(t.Context(), clusterRequest(1)); err != nil || !d.Granted {
		t.Fatalf("TryAcquire = %v, %v, want a grant", d, err)
	}
	r := clusterRequest(2)
	r.Job = "job"
	for range 2 { // it comes anew, and then with its place
		if d, err := p.Redeem(t.Context(), r); err != nil || d.Rule != "provider" || len(d.Promoted) > 0 {
			t.Errorf("Redeem = %v, %v, promoted %v, want that the provider holds it up, and nobody to come earlier", d, err, d.Promoted)
		}
	}

	var calls atomic.Int64
	counted := redis.NewClusterClient(rdb.Options())
	t.Cleanup(func() { _ = counted.Close() })
	counted.AddHook(scriptCounter{&calls})
	blocked := clusterPolicy(t, counted, throttle.Sliding(1, time.Minute), throttle.Sliding(1, time.Hour))
	ctx, cancel := context.WithCancel(t.Context())
	defer time.AfterFunc(500*time.Millisecond, cancel).Stop()
	if _, err := blocked.Acquire(ctx, clusterRequest(3)); !errors.Is(err, context.Canceled) {
		t.Errorf("Acquire = %v, want %v", err, context.Canceled)
	}
	// two slots, one of them given back, and both at the end
	if n := calls.Load(); n > 10 {
		t.Errorf("a caller that waits for half a second sent %d scripts, want about 5", n)
	}
}

// scriptCounter counts the scripts that a client runs.
type scriptCounter struct{ n *atomic.Int64 }

func (scriptCounter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c scriptCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if redistest.IsScript(cmd) {
			c.n.Add(1)
		}
		return next(ctx, cmd)
	}
}

func (c scriptCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if redistest.IsScript(cmd) {
				c.n.Add(1)
			}
		}
		return next(ctx, cmds)
	}
}
