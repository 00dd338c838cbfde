package throttle_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

var replicated = throttle.Config{Replicas: 1, ReplicasWithin: 200 * time.Millisecond}

// wantUnreplicated checks that a call fails because no replica has its grant.
func wantUnreplicated(t *testing.T, l *throttle.Limiter, key string) {
	t.Helper()
	d, err := l.TryAcquire(t.Context(), key, 1)
	if !errors.Is(err, throttle.ErrUnavailable) || !strings.Contains(err.Error(), "0 of 1 replicas") || d.Granted {
		t.Errorf("TryAcquire(%q) without a replica = granted %v, %v, want that 0 of 1 replicas have it", key, d.Granted, err)
	}
}

// A replica that is promoted right after a grant knows of it.
func TestGrantsWaitForReplicas(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	limit := throttle.Sliding(1, time.Hour)
	l := newLimiter(t, p.a, "sms", limit, replicated)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			if d, err := l.TryAcquire(t.Context(), fmt.Sprint(i), 1); err != nil || !d.Granted {
				t.Errorf("TryAcquire = %+v, %v, want a grant", d, err)
			}
		})
	}
	wg.Wait()
	p.promote(p.b)
	after := newLimiter(t, p.b, "sms", limit, throttle.Config{})
	for i := range 50 {
		if d, err := after.TryAcquire(t.Context(), fmt.Sprint(i), 1); err != nil || d.Granted {
			t.Errorf("TryAcquire on the new master = granted %v, %v, want that it knows the grant", d.Granted, err)
		}
	}
}

// While replicas are too few nothing is granted, and nothing is charged. Limits that don't wait
// for replicas go on, also when their calls are merged with others.
func TestTooFewReplicas(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	limit := throttle.Sliding(1, time.Hour)
	for name, rdb := range map[string]*redis.Client{"functions": p.a, "scripts": p.withoutFunctions()} {
		l, careless := newLimiter(t, rdb, name, limit, replicated), newLimiter(t, rdb, name+"-careless", limit, throttle.Config{})
		p.serverB.Pause()
		wantUnreplicated(t, l, "a")
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				if i%2 == 0 {
					wantUnreplicated(t, l, fmt.Sprint(i))
				} else if d, err := careless.TryAcquire(t.Context(), fmt.Sprint(i), 1); err != nil || !d.Granted {
					t.Errorf("TryAcquire without Replicas = %+v, %v, want a grant", d, err)
				}
			})
		}
		wg.Wait()
		p.serverB.Resume()
		for _, key := range []string{"a", "0", "2"} {
			eventually(t, "the replica is back", func() bool {
				d, err := l.TryAcquire(t.Context(), key, 1)
				return err == nil && d.Granted
			})
		}
	}
}

// withoutFunctions is a client of a user who may not call functions of the first server.
func (p pair) withoutFunctions() *redis.Client {
	p.Helper()
	if err := p.a.Do(p.Context(), "acl", "setuser", "app", "on", ">secret", "~*", "&*", "+@all", "-fcall").Err(); err != nil {
		p.Fatal(err)
	}
	o := *p.a.Options()
	o.Username, o.Password = "app", "secret"
	rdb := redis.NewClient(&o)
	p.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// On Redis Cluster each slot's master waits for its own replica.
func TestReplicasOnCluster(t *testing.T) {
	t.Parallel()
	rdb, _, replicas := redistest.StartReplicated(t, 3)
	limit := throttle.Sliding(1, time.Hour)
	l := newLimiter(t, rdb, "sms", limit, replicated)
	for i := range 30 { // so that each shard has some
		eventually(t, "replicas follow", func() bool {
			_, err := l.TryAcquire(t.Context(), fmt.Sprint("early", i), 1)
			return err == nil
		})
	}
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			if d, err := l.TryAcquire(t.Context(), fmt.Sprint(i), 1); err != nil || !d.Granted {
				t.Errorf("TryAcquire = %+v, %v, want a grant", d, err)
			}
		})
	}
	wg.Wait()
	policy, err := throttle.NewPolicy(l, newLimiter(t, rdb, "all", throttle.Sliding(1000, time.Hour), replicated))
	if err != nil {
		t.Fatal(err)
	}
	all := func(key string) throttle.Request {
		return throttle.Request{Key: key, Cost: 1, More: []throttle.KeyCost{{Key: "all", Cost: 1}}}
	}
	if d, err := policy.TryAcquire(t.Context(), all("several slots")); err != nil || !d.Granted {
		t.Errorf("TryAcquire of a policy = %+v, %v, want a grant", d, err)
	}
	// go-redis asks any node what commands there are when it needs that first: not one that stands still.
	if _, err := l.Peek(t.Context(), "any", 0); err != nil {
		t.Fatal(err)
	}
	for _, r := range replicas {
		r.Pause()
	}
	wantUnreplicated(t, l, "without")
	if d, err := policy.TryAcquire(t.Context(), all("without")); !errors.Is(err, throttle.ErrUnavailable) {
		t.Errorf("TryAcquire of a policy = granted %v, %v, want ErrUnavailable", d.Granted, err)
	}
	for _, r := range replicas {
		r.Resume()
	}
	eventually(t, "replicas are back", func() bool {
		d, err := l.TryAcquire(t.Context(), "without", 1)
		return err == nil && d.Granted
	})
}

// Neither option goes with a limiter that grants when Redis does not answer, nor with clients that ask several servers.
func TestHoldAndReplicasAreRefusedWhereTheyDontHelp(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	limit := throttle.Sliding(1, time.Minute)
	for _, mode := range []throttle.FailureMode{throttle.FailOpen, throttle.FailLocal} {
		for _, cfg := range []throttle.Config{{HoldAfterFailover: true, OnUnavailable: mode}, {Replicas: 1, OnUnavailable: mode}} {
			if _, err := throttle.New(rdb, "sms", limit, cfg); !errors.Is(err, throttle.ErrInvalidConfig) || !strings.Contains(err.Error(), mode.String()) {
				t.Errorf("New(%+v) = %v, want that it is refused", cfg, err)
			}
		}
	}
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": rdb.Options().Addr}})
	defer ring.Close()
	if _, err := throttle.New(ring, "sms", limit, throttle.Config{Replicas: 1}); !errors.Is(err, throttle.ErrInvalidConfig) {
		t.Errorf("New on a ring = %v, want ErrInvalidConfig", err)
	}
}

func TestReplicasAreChecked(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	for want, cfg := range map[string]throttle.Config{
		"Replicas -1, want 0 to 16":             {Replicas: -1},
		"Replicas 17, want 0 to 16":             {Replicas: 17},
		"ReplicasWithin 1s without Replicas":    {ReplicasWithin: time.Second},
		"ReplicasWithin 2s, want 1ms to 1s":     {Replicas: 1, ReplicasWithin: 2 * time.Second},
		"ReplicasWithin -1ns, want 1ms to 1s":   {Replicas: 1, ReplicasWithin: -1},
		"ReplicasWithin 1µs, want 1ms to 1s":    {Replicas: 1, ReplicasWithin: time.Microsecond},
		"ReplicasWithin -1ns without Replicas":  {ReplicasWithin: -1},
		"ReplicasWithin 999µs, want 1ms to 1s":  {Replicas: 16, ReplicasWithin: 999 * time.Microsecond},
		"ReplicasWithin 1.001s, want 1ms to 1s": {Replicas: 16, ReplicasWithin: 1001 * time.Millisecond},
	} {
		_, err := throttle.New(rdb, "sms", throttle.Sliding(1, time.Minute), cfg)
		if !errors.Is(err, throttle.ErrInvalidConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("New(%+v) = %v, want %q", cfg, err, want)
		}
	}
}
