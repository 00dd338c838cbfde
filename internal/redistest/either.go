package redistest

import (
	"os"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Either is one Redis, or a Redis Cluster where HEADWAY_TEST_CLUSTER is set.
type Either struct {
	one   *Server // nil for a Cluster
	nodes []string
}

const (
	clusterEnv      = "HEADWAY_TEST_CLUSTER"
	mastersOfEither = 2 // of such a Cluster
)

// StartEither starts one Redis or a Cluster for a test that holds on both.
func StartEither(tb testing.TB) Either {
	tb.Helper()
	if os.Getenv(clusterEnv) == "" {
		return Either{one: Start(tb)}
	}
	if addr := os.Getenv(serverEnv); addr != "" { // else all tests would be skipped, and none fail
		tb.Fatalf("redistest: %s asks for a Cluster, and %s names a server: set one of them", clusterEnv, serverEnv)
	}
	rdb := StartCluster(tb, mastersOfEither)
	return Either{nodes: rdb.Options().Addrs}
}

// Client returns a new client that is closed when tb ends.
func (e Either) Client(tb testing.TB) redis.UniversalClient {
	tb.Helper()
	if e.one != nil {
		return e.one.Client(tb)
	}
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: e.nodes})
	closed(tb, rdb)
	return rdb
}

// Client is [StartEither] for a test that has one client.
func Client(tb testing.TB) redis.UniversalClient {
	tb.Helper()
	return StartEither(tb).Client(tb)
}

// OneRedis skips a test of one server where tests are to run on a Cluster, and says why it is one.
func OneRedis(tb testing.TB, why string) {
	tb.Helper()
	if os.Getenv(clusterEnv) != "" {
		tb.Skipf("redistest: this test is of one server (%s), and %s asks for a Cluster", why, clusterEnv)
	}
}
