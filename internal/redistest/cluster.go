package redistest

import (
	"os"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redisserver"
)

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
	rdb, c := launchCluster(tb, masters, false)
	return rdb, servers(tb, c.Masters)
}

// StartWithEmpty is [StartNodes], and starts one more master, which has no slots.
func StartWithEmpty(tb testing.TB, masters int) (rdb *redis.ClusterClient, nodes []*Server, empty *Server) {
	tb.Helper()
	rdb, c := launchCluster(tb, masters, false)
	nodes = servers(tb, c.Masters)
	node, err := c.AddMaster()
	if err != nil {
		tb.Fatal(err)
	}
	return rdb, nodes, servers(tb, []*redisserver.Process{node})[0]
}

// StartReplicated is [StartNodes], and gives each master a replica, which takes over about
// two seconds after its master died. It returns them in the order of their masters.
func StartReplicated(tb testing.TB, masters int) (rdb *redis.ClusterClient, nodes, replicas []*Server) {
	tb.Helper()
	rdb, c := launchCluster(tb, masters, true)
	return rdb, servers(tb, c.Masters), servers(tb, c.Replicas)
}

// Watched is a master with two replicas and three sentinels, see [redisserver.Watched].
type Watched = redisserver.Watched

// StartWatched starts a master with two replicas, and three sentinels that make one of these the master about two seconds
// after the master died. The client asks the sentinels where the master is. All ends with the test, which is skipped where
// HEADWAY_TEST_REDIS names a server.
func StartWatched(tb testing.TB) (*redis.Client, *Watched) {
	tb.Helper()
	needsProcesses(tb, "sentinels")
	w, err := redisserver.LaunchWatched(tb.TempDir())
	if err != nil {
		tb.Fatal(err)
	}
	closed(tb, w)
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: redisserver.MasterName, SentinelAddrs: w.Addrs()})
	tb.Cleanup(func() { _ = rdb.Close() })
	return rdb, w
}

// Cluster moves slots, or leaves them unserved, see [redisserver.Cluster].
type Cluster = redisserver.Cluster

// StartMovable is [StartCluster] for a test that moves slots, or leaves them unserved.
func StartMovable(tb testing.TB, masters int) (*redis.ClusterClient, *Cluster) {
	tb.Helper()
	return launchCluster(tb, masters, false)
}

func launchCluster(tb testing.TB, masters int, replicated bool) (*redis.ClusterClient, *redisserver.Cluster) {
	tb.Helper()
	needsProcesses(tb, "a cluster")
	c, err := redisserver.LaunchCluster(tb.TempDir(), masters, replicated)
	if err != nil {
		tb.Fatal(err)
	}
	closed(tb, c)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()})
	tb.Cleanup(func() { _ = rdb.Close() })
	return rdb, c
}

// needsProcesses skips a test that starts more than one server where it is to run on a named one.
func needsProcesses(tb testing.TB, what string) {
	tb.Helper()
	if os.Getenv(serverEnv) != "" {
		tb.Skipf("redistest: this test starts %s, and %s names a server", what, serverEnv)
	}
}

// closed closes servers when the test ends.
func closed(tb testing.TB, c interface{ Close() error }) {
	tb.Cleanup(func() {
		if err := c.Close(); err != nil {
			tb.Error(err)
		}
	})
}

func servers(tb testing.TB, all []*redisserver.Process) []*Server {
	var out []*Server
	for _, p := range all {
		out = append(out, &Server{tb: tb, options: redis.Options{Addr: p.Addr()}, process: p})
	}
	return out
}

// ServeInPart lets the nodes of a Cluster answer also while one of them is away.
func ServeInPart(tb testing.TB, nodes []*Server) {
	tb.Helper()
	for _, n := range nodes {
		if err := n.Client(tb).ConfigSet(tb.Context(), "cluster-require-full-coverage", "no").Err(); err != nil {
			tb.Fatal(err)
		}
	}
}

// NodeOf is the index of the node that has a key.
func NodeOf(tb testing.TB, rdb *redis.ClusterClient, nodes []*Server, key string) int {
	tb.Helper()
	owner, err := rdb.MasterForKey(tb.Context(), key)
	if err != nil {
		tb.Fatal(err)
	}
	return slices.IndexFunc(nodes, func(n *Server) bool { return n.Addr() == owner.Options().Addr })
}
