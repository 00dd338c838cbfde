package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// clusterPatience is after how many milliseconds the others say that a node is gone.
const clusterPatience = "2000"

// clusterSlots is how many slots a Redis Cluster has.
const clusterSlots = 16384

// StartCluster starts a Redis Cluster of so many masters without replicas, which
// share the slots evenly, and returns a client of it. It ends with the test, and
// is skipped where HEADWAY_TEST_REDIS names a server.
func StartCluster(tb testing.TB, masters int) *redis.ClusterClient {
	tb.Helper()
	rdb, _ := StartNodes(tb, masters)
	return rdb
}

// StartNodes is [StartCluster], and returns the masters in the order of their slots.
func StartNodes(tb testing.TB, masters int) (*redis.ClusterClient, []*Server) {
	tb.Helper()
	if addr := os.Getenv(serverEnv); addr != "" {
		tb.Skipf("redistest: this test starts a cluster, and %s names a server", serverEnv)
	}
	var addrs []string
	var nodes []*Server
	for range masters {
		node := startNode(tb)
		nodes, addrs = append(nodes, node), append(addrs, node.Addr())
	}
	for i, addr := range addrs {
		first, last := i*clusterSlots/masters, (i+1)*clusterSlots/masters-1
		host, port, err := net.SplitHostPort(addrs[0])
		if err != nil {
			tb.Fatal(err)
		}
		tell(tb, addr, "cluster", "addslotsrange", first, last)
		if i > 0 {
			tell(tb, addr, "cluster", "meet", host, port)
		}
	}
	for _, addr := range addrs {
		if err := joined(addr, masters); err != nil {
			tb.Fatal(err)
		}
	}
	return clusterClient(tb, addrs), nodes
}

// StartReplicated is [StartNodes], and gives each master a replica, which takes over about
// two seconds after its master died. It returns them in the order of their masters.
func StartReplicated(tb testing.TB, masters int) (rdb *redis.ClusterClient, nodes, replicas []*Server) {
	tb.Helper()
	_, nodes = StartNodes(tb, masters)
	var addrs []string
	host, port, err := net.SplitHostPort(nodes[0].Addr())
	if err != nil {
		tb.Fatal(err)
	}
	for _, master := range nodes {
		replica := startNode(tb)
		tell(tb, replica.Addr(), "cluster", "meet", host, port)
		replicas, addrs = append(replicas, replica), append(addrs, master.Addr(), replica.Addr())
	}
	for _, addr := range addrs {
		if err := joined(addr, 2*masters); err != nil {
			tb.Fatal(err)
		}
	}
	for i, replica := range replicas {
		id, err := ask(nodes[i].Addr(), "cluster myid")
		if err != nil {
			tb.Fatal(err)
		}
		tell(tb, replica.Addr(), "cluster", "replicate", id)
	}
	for _, replica := range replicas {
		if err := following(replica.Addr()); err != nil {
			tb.Fatal(err)
		}
	}
	return clusterClient(tb, addrs), nodes, replicas
}

func startNode(tb testing.TB) *Server {
	tb.Helper()
	return Start(tb, Arg("cluster-enabled", "yes"), Arg("cluster-node-timeout", clusterPatience), Arg("repl-diskless-sync-delay", "0"))
}

func clusterClient(tb testing.TB, addrs []string) *redis.ClusterClient {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	tb.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// following waits until a replica has the data of its master.
func following(addr string) error {
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		info, err := ask(addr, "info replication")
		if err == nil && strings.Contains(info, "master_link_status:up") {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("redistest: a replica did not follow its master, it says %q: %w", info, err)
		}
	}
}

func tell(tb testing.TB, addr string, args ...any) {
	tb.Helper()
	c := redis.NewClient(&redis.Options{Addr: addr})
	defer c.Close()
	if err := c.Do(context.Background(), args...).Err(); err != nil {
		tb.Fatalf("redistest: %v: %v", args, err)
	}
}

// joined waits until a node knows the whole cluster.
func joined(addr string, nodes int) error {
	c := redis.NewClient(&redis.Options{Addr: addr})
	defer c.Close()
	want := fmt.Sprintf("cluster_known_nodes:%d", nodes)
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		info, err := c.ClusterInfo(context.Background()).Result()
		if err == nil && strings.Contains(info, "cluster_state:ok") && strings.Contains(info, want) {
			return nil
		}
		if err == nil {
			err = errors.New("not all nodes are known yet")
		}
		if time.Now().After(end) {
			return fmt.Errorf("redistest: the cluster did not form, the last node says %q: %w", info, err)
		}
	}
}
