package redisserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
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

	// Of [LaunchDivisible], else empty. Peers stand before the servers, in their order: replicas and sentinels reach a server through
	// its proxy, and sentinels name that as its address. Asked stand before the sentinels, for clients that are to be cut off.
	Peers, Asked []*Proxy
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

// LaunchDivisible is [LaunchWatched] with servers that can be cut off from each other and from the sentinels by [Watched.Divide].
func LaunchDivisible(dir string, opts ...Option) (*Watched, error) {
	w := &Watched{Peers: []*Proxy{}}
	if err := w.start(dir, opts); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	for _, s := range w.Sentinels {
		p, err := ListenProxy(s.Addr(), nil)
		if err != nil {
			return nil, errors.Join(err, w.Close())
		}
		w.Asked = append(w.Asked, p)
	}
	return w, nil
}

// Divide cuts a server off: no replica and no sentinel reaches it any more, and who asks the sentinels through [Watched.Asked] hears
// nothing from them. Clients that reach the server itself still do. With false it is one network again.
func (w *Watched) Divide(server *Process, cut bool) {
	for i, p := range w.Peers {
		if w.Servers[i] == server {
			p.Refuse(cut)
		}
	}
	for _, p := range w.Asked {
		p.Refuse(cut)
	}
}

// Close ends all of them.
func (w *Watched) Close() error {
	err := errors.Join(closeAll(w.Sentinels), closeAll(w.Servers)) // first: they speak to the ports of the proxies
	for _, p := range slices.Concat(w.Peers, w.Asked) {
		p.Close()
	}
	return err
}

// Known is the address under which the sentinels know a server.
func (w *Watched) Known(server *Process) string {
	if i := slices.Index(w.Servers, server); i < len(w.Peers) {
		return w.Peers[i].Addr()
	}
	return server.Addr()
}

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
		if 2*votes[w.Known(server)] > len(w.Sentinels) {
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
			_, port, _ := net.SplitHostPort(w.Known(master))
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
	if err := w.add(master); err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(w.Known(master))
	if err != nil {
		return err
	}
	for i := 1; i <= 2; i++ {
		replica, err := launchIn(dir, i, opts...)
		if err != nil {
			return err
		}
		if err := errors.Join(w.add(replica), tell(replica.Addr(), "replicaof", host, port)); err != nil {
			return err
		}
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

// add takes a server in. One that can be cut off tells others to reach it through its proxy.
func (w *Watched) add(server *Process) error {
	w.Servers = append(w.Servers, server)
	if w.Peers == nil {
		return nil
	}
	p, err := ListenProxy(server.Addr(), nil)
	if err != nil {
		return err
	}
	w.Peers = append(w.Peers, p)
	host, port, err := net.SplitHostPort(p.Addr())
	if err != nil {
		return err
	}
	return tell(server.Addr(), "config", "set", "replica-announce-ip", host, "replica-announce-port", port)
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
