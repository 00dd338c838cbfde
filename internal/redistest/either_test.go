package redistest

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

//nolint:paralleltest // it sets an environment variable
func TestEitherIsAClusterWhenAsked(t *testing.T) {
	t.Setenv(serverEnv, "")
	t.Setenv(clusterEnv, "1")
	e := StartEither(t)
	rdb, ok := e.Client(t).(*redis.ClusterClient)
	if !ok {
		t.Fatal("the client is not one of a Cluster")
	}
	for _, key := range []string{"foo", "bar"} { // of slots 12182 and 5061: one on each master
		rdb.Set(t.Context(), key, 1, 0)
	}
	if keys := Keys(t, e.Client(t), "*"); len(keys) != 2 {
		t.Errorf("Keys = %q, want one of each master", keys)
	}

	one := &fakeTB{TB: t}
	if how := one.run(func(tb testing.TB) { Start(tb) }); !strings.HasPrefix(how, "skip: ") {
		t.Errorf("Start ended with %q, want that it skips", how)
	}
	t.Setenv(serverEnv, "127.0.0.1:1")
	both := &fakeTB{TB: t}
	if how := both.run(func(tb testing.TB) { StartEither(tb) }); !strings.HasPrefix(how, "fatal: ") || !strings.Contains(how, serverEnv) {
		t.Errorf("StartEither ended with %q, want a fault that names %s", how, serverEnv)
	}
}
