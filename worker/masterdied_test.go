package worker_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
)

// goesOnWithin is how soon after the first answer of a new master a task that is enqueued then has run.
const goesOnWithin = 5 * time.Second

// A master is killed and a replica takes over: enqueuers and pools go on soon after that. On a Cluster, where a client read
// its map of slots once a minute only, they stood still for about as long.
func TestPoolGoesOnAfterAMasterDied(t *testing.T) {
	t.Parallel()
	t.Run("of a Cluster", func(t *testing.T) {
		t.Parallel()
		rdb, nodes, replicas := redistest.StartReplicated(t, 3)
		of := redistest.NodeOf(t, rdb, nodes, "{default}")
		goesOn(t, rdb, nodes[of].Kill, map[string]*redis.Client{replicas[of].Addr(): replicas[of].Client(t)})
	})
	t.Run("that Sentinels watch", func(t *testing.T) {
		t.Parallel()
		rdb, watched := redistest.StartWatched(t)
		replicas := map[string]*redis.Client{}
		for _, r := range watched.Servers[1:] {
			replicas[r.Addr()] = redis.NewClient(&redis.Options{Addr: r.Addr()})
			t.Cleanup(func() { _ = replicas[r.Addr()].Close() })
		}
		kill := func() {
			if err := watched.Servers[0].Kill(); err != nil {
				t.Fatal(err)
			}
		}
		goesOn(t, rdb, kill, replicas)
	})
}

// goesOn kills a master, and one of some replicas, by address, takes over.
func goesOn(t *testing.T, rdb redis.UniversalClient, kill func(), replicas map[string]*redis.Client) {
	t.Helper()
	seen := &runs{}
	cfg := policies(phone("sms", 100*ms))
	replaced := make(chan string, 10)
	cfg.Observer.RedisReplaced = func(_ context.Context, e event.RedisReplaced) { replaced <- e.Addr }
	started(t, rdb, seen.handler(), cfg)
	client, err := queue.NewClient(rdb, queue.ClientConfig{Policies: cfg.Policies})
	if err != nil {
		t.Fatal(err)
	}
	send := func(id string) bool {
		_, err := client.Enqueue(t.Context(), queue.NewTask("sms", []byte(to("+1")), asynq.TaskID(id)))
		return err == nil || errors.Is(err, asynq.ErrTaskIDConflict) // the answer was lost
	}
	eventually(t, "one is enqueued", func() bool { return send("before") })
	seen.ran(t, 1)
	kill()
	master := ""
	eventually(t, "a replica took over", func() bool {
		for addr, replica := range replicas {
			if role, err := replica.Do(t.Context(), "role").Slice(); err == nil && role[0] == "master" {
				master = addr
			}
		}
		return master != ""
	})
	began := time.Now()
	eventually(t, "another is enqueued", func() bool { return send("after") })
	enqueued := time.Since(began)
	eventually(t, "it runs", func() bool { return seen.count("after") > 0 })
	took := time.Since(began)
	t.Logf("enqueued %v after the replica took over, run after %v", enqueued.Round(ms), took.Round(ms))
	if took > goesOnWithin {
		t.Errorf("it ran %v after the replica took over, want %v at most", took, goesOnWithin)
	}
	select {
	case addr := <-replaced:
		_, port, _ := net.SplitHostPort(master)
		if !strings.HasSuffix(addr, port) { // behind Sentinels the port is all that is known of the address
			t.Errorf("the pool says that %s took over, want %s", addr, master)
		}
	case <-time.After(within):
		t.Error("the pool does not say that another server took over")
	}
}
