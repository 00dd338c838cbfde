package faults

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/redisserver"
)

// address is where a process finds Redis.
type address struct {
	Addrs   []string `json:"addrs"`
	Cluster bool     `json:"cluster,omitempty"`
	Master  string   `json:"master,omitempty"` // its name; Addrs are the sentinels

	Via map[string]string `json:"via,omitempty"` // where to dial in place of an address
}

func (a address) client() redis.UniversalClient {
	opts := &redis.UniversalOptions{Addrs: a.Addrs, IsClusterMode: a.Cluster, MasterName: a.Master}
	if len(a.Via) > 0 {
		opts.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			dialer := net.Dialer{Timeout: 5 * time.Second}
			return dialer.DialContext(ctx, network, cmp.Or(a.Via[addr], addr))
		}
	}
	return redis.NewUniversalClient(opts)
}

// system is the Redis of a run: one of its kinds.
type system struct {
	address address
	cutOff  *address // for every second worker process: where it finds Redis, when a partition cuts these off; nil for none
	about   string
	one     *redisserver.Process // also where a proxy leads to
	proxy   *redisserver.Proxy
	watched *redisserver.Watched
	cluster *redisserver.Cluster

	proxyFault atomic.Value // a string: what kept the proxy from listening again
}

func (s *system) close() error {
	var errs []error
	if s.proxy != nil {
		s.proxy.Close()
	}
	if s.one != nil {
		errs = append(errs, s.one.Close())
	}
	if s.watched != nil {
		errs = append(errs, s.watched.Close())
	}
	if s.cluster != nil {
		errs = append(errs, s.cluster.Close())
	}
	return errors.Join(errs...)
}

// version is what the servers say they are.
func (s *system) version(ctx context.Context) string {
	rdb := s.address.client()
	defer rdb.Close()
	info, err := rdb.Info(ctx, "server").Result()
	if err != nil {
		return "unknown"
	}
	if v, err := redisserver.InfoField(info, "valkey_version"); err == nil {
		return "Valkey " + v
	}
	v, err := redisserver.InfoField(info, "redis_version")
	if err != nil {
		return "unknown"
	}
	return "Redis " + v
}

// starter starts the Redis of a run, which keeps its files in a directory.
type starter func(dir string) (*system, error)

// alone is one server.
func alone(about string, opts ...redisserver.Option) starter {
	return func(dir string) (*system, error) {
		one, err := redisserver.Launch(dir, opts...)
		if err != nil {
			return nil, err
		}
		return &system{one: one, about: about, address: address{Addrs: []string{one.Addr()}}}, nil
	}
}

// clocked makes the clocks of a system's servers settable, as far as Headway's functions see them.
func clocked(start starter) starter {
	return func(dir string) (*system, error) {
		s, err := start(dir)
		if err != nil {
			return nil, err
		}
		master := s.one
		if s.watched != nil {
			master = s.watched.Servers[0]
		}
		if err := setAhead(context.Background(), master, 0); err != nil {
			return nil, errors.Join(err, s.close())
		}
		return s, nil
	}
}

// setAhead sets the clock of a server by how much it is ahead of the real one.
func setAhead(ctx context.Context, p *redisserver.Process, d time.Duration) error {
	rdb := redis.NewClient(&redis.Options{Addr: p.Addr()})
	defer rdb.Close()
	_, library := luascripts.Library()
	return rdb.FunctionLoadReplace(ctx, redisserver.Ahead(library, d)).Err()
}

// setReplicaAhead does the same on a replica. It stays so when the replica becomes the master, which has that clock from its first
// moment on.
func setReplicaAhead(ctx context.Context, p *redisserver.Process, d time.Duration) error {
	rdb := redis.NewClient(&redis.Options{Addr: p.Addr()})
	defer rdb.Close()
	return errors.Join(
		rdb.ConfigSet(ctx, "replica-read-only", "no").Err(),
		setAhead(ctx, p, d),
		rdb.ConfigSet(ctx, "replica-read-only", "yes").Err(),
	)
}

// behindProxy is one server that is reached through a proxy.
func behindProxy(about string, opts ...redisserver.Option) starter {
	return func(dir string) (*system, error) {
		s, err := alone(about, opts...)(dir)
		if err != nil {
			return nil, err
		}
		s.proxy, err = redisserver.ListenProxy(s.one.Addr(), func(format string, a ...any) { s.proxyFault.Store(fmt.Sprintf(format, a...)) })
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
		s.address.Addrs = []string{s.proxy.Addr()}
		return s, nil
	}
}

// watched is a master with two replicas and three sentinels.
func watched(opts ...redisserver.Option) starter {
	return func(dir string) (*system, error) {
		w, err := redisserver.LaunchWatched(dir, opts...)
		if err != nil {
			return nil, err
		}
		return &system{
			watched: w, about: "a master, two replicas, three sentinels",
			address: address{Addrs: w.Addrs(), Master: redisserver.MasterName},
		}, nil
	}
}

// divisible is a master with two replicas and three sentinels, of which a partition can cut the master off, together with every second
// worker process.
func divisible(opts ...redisserver.Option) starter {
	return func(dir string) (*system, error) {
		w, err := redisserver.LaunchDivisible(dir, opts...)
		if err != nil {
			return nil, err
		}
		direct := map[string]string{} // clients are on the same side as the server that they use
		for _, s := range w.Servers {
			direct[w.Known(s)] = s.Addr()
		}
		cutOff := maps.Clone(direct)
		for i, s := range w.Sentinels {
			cutOff[s.Addr()] = w.Asked[i].Addr()
		}
		return &system{
			watched: w, about: "a master, two replicas, three sentinels, half of the workers on the side of the master",
			address: address{Addrs: w.Addrs(), Master: redisserver.MasterName, Via: direct},
			cutOff:  &address{Addrs: w.Addrs(), Master: redisserver.MasterName, Via: cutOff},
		}, nil
	}
}

// cluster is a Redis Cluster of three masters with a replica each.
func cluster(dir string) (*system, error) {
	c, err := redisserver.LaunchCluster(dir, 3, true)
	if err != nil {
		return nil, err
	}
	return &system{cluster: c, about: "a cluster of three masters, each with a replica", address: address{Addrs: c.Addrs(), Cluster: true}}, nil
}

// startIn starts a system in a directory of its own below dir.
func startIn(start starter, dir string) (*system, error) {
	own := filepath.Join(dir, "redis")
	if err := os.Mkdir(own, 0o700); err != nil {
		return nil, fmt.Errorf("faults: %w", err)
	}
	s, err := start(own)
	if err != nil {
		return nil, fmt.Errorf("faults: %w", err)
	}
	return s, nil
}
