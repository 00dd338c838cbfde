package redisserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// MasterName is what sentinels call the master that they watch.
const MasterName = "main"

// Watched is a master with two replicas, and three sentinels that make one of these the master
// about two seconds after the master died.
type Watched struct {
	Servers   []*Process // the first is the master at first
	Sentinels []*Process
}

// LaunchWatched starts all of them. They keep their files below dir. The options are for the
// servers. The caller ends them with [Watched.Close].
func LaunchWatched(dir string, opts ...Option) (*Watched, error) {
	w := &Watched{}
	if err := w.start(dir, opts); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// Close ends all of them.
func (w *Watched) Close() error { return errors.Join(closeAll(w.Sentinels), closeAll(w.Servers)) }

// Addrs are the addresses of the sentinels, which say where the master is.
func (w *Watched) Addrs() []string { return addrsOf(w.Sentinels) }

// Master returns the server that most sentinels say is the master.
func (w *Watched) Master(ctx context.Context) (*Process, error) {
	votes := map[string]int{}
	for _, s := range w.Sentinels {
		c := sentinelClient(s)
		if at, err := c.GetMasterAddrByName(ctx, MasterName).Result(); err == nil && len(at) == 2 {
			votes[net.JoinHostPort(at[0], at[1])]++
		}
		_ = c.Close()
	}
	for _, server := range w.Servers {
		if 2*votes[server.Addr()] > len(w.Sentinels) {
			return server, nil
		}
	}
	return nil, errors.New("redisserver: the sentinels do not agree on a master")
}

// Failover asks a sentinel to make another server the master, as for maintenance.
func (w *Watched) Failover(ctx context.Context) error {
	c := sentinelClient(w.Sentinels[0])
	defer c.Close()
	if err := c.Failover(ctx, MasterName).Err(); err != nil {
		return fmt.Errorf("redisserver: sentinel failover: %w", err)
	}
	return nil
}

// Settled waits until the sentinels agree on a master, and all other servers that run follow it.
func (w *Watched) Settled(ctx context.Context, within time.Duration) error {
	return until(ctx, within, func() (bool, error) {
		master, err := w.Master(ctx)
		if err != nil {
			return false, err
		}
		for _, s := range w.Servers {
			if s.Pid() == 0 {
				continue
			}
			info, err := ask(s.Addr(), "info replication")
			if err != nil {
				return false, err
			}
			_, port, _ := net.SplitHostPort(master.Addr())
			follows := strings.Contains(info, "master_link_status:up") && strings.Contains(info, "master_port:"+port)
			if leads := strings.Contains(info, "role:master"); leads != (s == master) || !leads && !follows {
				return false, nil
			}
		}
		return true, nil
	})
}

func (w *Watched) start(dir string, opts []Option) error {
	opts = append([]Option{Arg("repl-diskless-sync-delay", "0")}, opts...)
	master, err := launchIn(dir, 0, opts...)
	if err != nil {
		return err
	}
	w.Servers = append(w.Servers, master)
	host, port, err := net.SplitHostPort(master.Addr())
	if err != nil {
		return err
	}
	for i := 1; i <= 2; i++ {
		replica, err := launchIn(dir, i, append(opts, Arg("replicaof", host, port))...)
		if err != nil {
			return err
		}
		w.Servers = append(w.Servers, replica)
	}
	for _, replica := range w.Servers[1:] {
		if err := Following(replica); err != nil {
			return err
		}
	}
	for i := 3; i <= 5; i++ {
		s, err := launchIn(dir, i, watching(host, port))
		if err != nil {
			return err
		}
		w.Sentinels = append(w.Sentinels, s)
	}
	err = until(context.Background(), formsWithin, func() (bool, error) {
		for _, s := range w.Sentinels {
			info, err := ask(s.Addr(), "info sentinel")
			if err != nil || !strings.Contains(info, "slaves=2,sentinels=3") {
				return false, err
			}
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("redisserver: the sentinels did not find each other: %w", err)
	}
	return nil
}

// watching makes a server a sentinel.
func watching(host, port string) Option {
	return func(s *settings) {
		s.watch = []string{
			fmt.Sprintf("sentinel monitor %s %s %s 2", MasterName, host, port),
			"sentinel down-after-milliseconds " + MasterName + " 1500",
			"sentinel failover-timeout " + MasterName + " 6000",
			"sentinel parallel-syncs " + MasterName + " 2",
		}
	}
}

func sentinelClient(s *Process) *redis.SentinelClient {
	return redis.NewSentinelClient(&redis.Options{Addr: s.Addr()})
}
