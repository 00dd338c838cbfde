package throttle_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// unreachable makes the scripts fail that a client runs on keys with a tag.
type unreachable struct {
	tag   string
	after int32 // so many scripts run before, from when it is on
	on    atomic.Bool
	ran   atomic.Int32
	says  error // of a server that answers; nil for one that can't be reached
}

func (*unreachable) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*unreachable) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (u *unreachable) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if u.on.Load() && redistest.IsScript(cmd) && strings.Contains(fmt.Sprint(cmd.Args()[3]), u.tag) && u.ran.Add(1) > u.after {
			err := cmp.Or[error](u.says, &net.OpError{Op: "dial", Err: errors.New("connection refused")})
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

// becomesAvailable waits until a key has so many permits left.
func becomesAvailable(t *testing.T, l *throttle.Limiter, key string, want int) {
	t.Helper()
	var n int
	var err error
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if n, err = l.Available(t.Context(), key); err == nil && n == want {
			return
		}
	}
	t.Errorf("rule %q has %d left, %v, want %d", l.Rule(), n, err, want)
}

// A phone's server goes away after it has granted, and the provider's refuses. The permit of the phone comes back when its server does.
// Meanwhile a call with the same token is refused: the grant that it would find is about to be taken away.
func TestClusterGivesBackWhenTheServerIsBack(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3)
	away := &unreachable{tag: "{phone1}", after: 1}
	rdb.AddHook(away)
	p := clusterPolicy(t, rdb, throttle.Sliding(1, 24*time.Hour), throttle.Sliding(1, time.Hour))
	if d, err := p.TryAcquire(t.Context(), clusterRequest(2)); err != nil || !d.Granted {
		t.Fatalf("TryAcquire = %v, %v, want a grant", d, err)
	}
	r := clusterRequest(1)
	r.Job, r.Token = "job", throttle.NewToken()
	away.on.Store(true)
	if d, err := p.Redeem(t.Context(), r); err != nil || d.Granted || d.Rule != "provider" {
		t.Fatalf("Redeem = %v, %v, want that the provider holds it up", d, err)
	}
	if _, err := p.Redeem(t.Context(), r); !errors.Is(err, throttle.ErrWithdrawn) {
		t.Errorf("Redeem with the same token = %v, want %v", err, throttle.ErrWithdrawn)
	}
	away.on.Store(false)
	becomesAvailable(t, p.Rules()[0], "phone1", 1)
}

// A worker has a queue of its own for what is given back late. It hears of the jobs that may come earlier then.
func TestWorkerHearsOfALateGiveBack(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3)
	client := func(hooks ...redis.Hook) *redis.ClusterClient {
		own := redis.NewClusterClient(rdb.Options())
		t.Cleanup(func() { _ = own.Close() })
		for _, h := range hooks {
			own.AddHook(h)
		}
		return own
	}
	away := &unreachable{tag: "{phone1}", after: 1}
	phone, provider := throttle.Sliding(1, 24*time.Hour), throttle.Sliding(1, time.Hour)
	p, other := clusterPolicy(t, client(away), phone, provider), clusterPolicy(t, client(), phone, provider)
	if d, err := other.TryAcquire(t.Context(), clusterRequest(2)); err != nil || !d.Granted {
		t.Fatalf("TryAcquire = %v, %v, want a grant", d, err)
	}
	heard := make(chan throttle.Promotion, 10)
	queue := throttle.ForWorkers.NewGiveBacks(time.Second, nil)
	defer queue.Close(time.Second)
	ctx := throttle.ForWorkers.WithGiveBacks(t.Context(), queue, func(promoted ...throttle.Promotion) {
		for _, p := range promoted {
			heard <- p
		}
	})
	r := clusterRequest(1)
	r.Job = "first"
	away.on.Store(true)
	if d, err := p.Redeem(ctx, r); err != nil || d.Granted {
		t.Fatalf("Redeem = %v, %v, want that the provider holds it up", d, err)
	}
	d, err := other.Rules()[0].Policy().Redeem(t.Context(), throttle.Request{Key: "phone1", Cost: 1, Job: "second"})
	if err != nil || d.Granted {
		t.Fatalf("Redeem = %v, %v, want that the phone holds it up", d, err)
	}
	away.on.Store(false)
	select {
	case p := <-heard:
		if p.Job != "second" || p.Wait > time.Minute {
			t.Errorf("%q may come in %v, want the second job at once", p.Job, p.Wait)
		}
	case <-time.After(20 * time.Second):
		t.Error("nobody was told that the second job may come")
	}
}

// While one process is on its way through three slots, another one changes the limit of the second slot and is granted by it. So the
// grant of the first process has to go back by a limit that it does not know yet.
func TestClusterGivesBackByALimitThatHasChanged(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3)
	for name, of := range map[string]func(n int) throttle.Limit{
		"sliding":    func(n int) throttle.Limit { return throttle.Sliding(n, 24*time.Hour) },
		"concurrent": func(n int) throttle.Limit { return throttle.Concurrent(n, time.Hour) },
	} {
		t.Run(name, func(t *testing.T) { // one after the other: they have one client
			passes := &meanwhile{tag: "{tenant" + name + "}"}
			own := redis.NewClusterClient(rdb.Options())
			defer func() { _ = own.Close() }()
			own.AddHook(passes)
			limiter := func(rdb redis.UniversalClient, rule string, limit throttle.Limit) *throttle.Limiter {
				return newLimiter(t, rdb, rule+name, limit, throttle.Config{})
			}
			p, err := throttle.NewPolicy(limiter(own, "phone", throttle.Sliding(9, time.Hour)), limiter(own, "tenant", of(5)), limiter(own, "provider", of(1)))
			if err != nil {
				t.Fatal(err)
			}
			tenant, provider := limiter(rdb, "tenant", of(5)), limiter(rdb, "provider", of(1))
			try := func(l *throttle.Limiter, key string) {
				if d, err := l.TryAcquire(t.Context(), key, 1); err != nil || !d.Granted {
					t.Errorf("TryAcquire = %v, %v, want a grant", d, err)
				}
			}
			try(provider, "acme")
			passes.do = func() {
				if err := setLimit(t.Context(), tenant, of(6)); err != nil {
					t.Error(err)
				}
				try(tenant, "tenant"+name)
			}
			r := throttle.Request{Key: "phone", Cost: 1, More: []throttle.KeyCost{{Key: "tenant" + name, Cost: 1}, {Key: "acme", Cost: 1}}}
			if d, err := p.TryAcquire(t.Context(), r); err != nil || d.Granted || d.Rule != "provider"+name {
				t.Fatalf("TryAcquire = %v, %v, want that the provider refuses", d, err)
			}
			if n, err := tenant.Available(t.Context(), "tenant"+name); err != nil || n != 5 {
				t.Errorf("%d left of the tenant, %v, want 5: only the other process has one", n, err)
			}
		})
	}
}

// meanwhile does something once, after the first script of a client on keys with a tag.
type meanwhile struct {
	tag  string
	do   func()
	once sync.Once
}

func (*meanwhile) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*meanwhile) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (m *meanwhile) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if redistest.IsScript(cmd) && !redistest.IsUnknown(err) && strings.Contains(fmt.Sprint(cmd.Args()[3]), m.tag) {
			m.once.Do(m.do)
		}
		return err
	}
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
