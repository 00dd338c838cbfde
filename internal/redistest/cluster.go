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
		node := Start(tb, Arg("cluster-enabled", "yes"), Arg("cluster-node-timeout", "2000"))
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
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	tb.Cleanup(func() { _ = rdb.Close() })
	for _, addr := range addrs {
		if err := joined(addr, masters); err != nil {
			tb.Fatal(err)
		}
	}
	return rdb, nodes
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
