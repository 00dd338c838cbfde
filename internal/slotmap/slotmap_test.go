package slotmap_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/internal/slotmap"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A client goes on soon after a replica took over from its killed master. Without Follow it
// goes on when it reads its map the next time, which may be a minute later.
func TestFollow(t *testing.T) {
	t.Parallel()
	rdb, nodes, replicas := redistest.StartReplicated(t, 3)
	slotmap.Follow(rdb)
	key := keyOn(t, rdb, nodes[1])
	if err := rdb.Set(t.Context(), key, "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	nodes[1].Kill()
	tries := map[string]func(context.Context) error{
		"command":  func(ctx context.Context) error { return rdb.Set(ctx, key, "v", 0).Err() },
		"pipeline": func(ctx context.Context) error { return set(ctx, rdb.Pipeline(), key) },
	}
	replica := replicas[1].Client(t)
	within(t, 30*time.Second, func(ctx context.Context) error { return isMaster(ctx, replica) }) // that is Redis' own
	took := time.Now()
	for name, try := range tries {
		within(t, 5*time.Second, try)
		t.Logf("a %s goes on %v after the replica took over", name, time.Since(took).Round(time.Millisecond))
	}
}

// A master stands still: its calls last until all time-outs are over. Others of its keys that are made after its replica took over do
// not wait for that, for the map is read while the first lasts, and from another server.
func TestFollowWhileAMasterIsSilent(t *testing.T) {
	t.Parallel()
	rdb, nodes, replicas := redistest.StartReplicated(t, 3)
	key := keyOn(t, rdb, nodes[1])
	o := *rdb.Options()
	o.ReadTimeout = time.Minute
	fresh := redis.NewClusterClient(&o) // which has met no server
	t.Cleanup(func() { _ = fresh.Close() })
	slotmap.Follow(fresh)
	if err := fresh.Set(t.Context(), key, "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	nodes[1].Pause()
	t.Cleanup(nodes[1].Resume)
	first := make(chan struct{})
	go func() {
		defer close(first)
		_ = fresh.Set(t.Context(), key, "v", 0) // it may fail
	}()
	t.Cleanup(func() {
		_ = fresh.Close()
		<-first
	})
	replica := replicas[1].Client(t)
	within(t, 30*time.Second, func(ctx context.Context) error { return isMaster(ctx, replica) }) // that is Redis' own
	took := time.Now()
	within(t, 20*time.Second, func(ctx context.Context) error { // MasterForKey looks at the map alone
		master, err := fresh.MasterForKey(ctx, key)
		if err == nil && master.Options().Addr != replicas[1].Addr() {
			err = notMaster("known as " + master.Options().Addr)
		}
		return err
	})
	t.Logf("the client knows it %v after the replica took over", time.Since(took).Round(time.Millisecond))
	if err := fresh.Set(t.Context(), key, "v", 0).Err(); err != nil {
		t.Error(err)
	}
}

func set(ctx context.Context, pipe redis.Pipeliner, key string) error {
	pipe.Set(ctx, key, "v", 0)
	_, err := pipe.Exec(ctx)
	return err
}

// keyOn is a key whose slot a node has.
func keyOn(t *testing.T, rdb *redis.ClusterClient, node *redistest.Server) string {
	t.Helper()
	for _, key := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"} {
		master, err := rdb.MasterForKey(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if master.Options().Addr == node.Addr() {
			return key
		}
	}
	t.Fatalf("no key on %s", node.Addr())
	return ""
}

type notMaster string

func (e notMaster) Error() string { return "its role is " + string(e) }

func isMaster(ctx context.Context, rdb *redis.Client) error {
	role, err := rdb.Do(ctx, "role").Slice()
	if err == nil && role[0] != "master" {
		err = notMaster(role[0].(string))
	}
	return err
}

// within repeats a try until it has no error, for d at most.
func within(t *testing.T, d time.Duration, try func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("not within %v: %v", d, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
