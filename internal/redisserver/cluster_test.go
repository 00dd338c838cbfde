package redisserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/redis/go-redis/v9"
)

// A master that dies is followed by its replica, and a slot moves with its keys, to a master that was
// added and is removed again, and can be left unserved.
func TestCluster(t *testing.T) {
	t.Parallel()
	c, err := LaunchCluster(t.TempDir(), 2, true)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()})
	defer rdb.Close()
	const n = 250 // more than one portion
	for i := range n {
		rdb.Set(t.Context(), fmt.Sprintf("{k}%d", i), i, 0)
	}
	slot := int(rdb.ClusterKeySlot(t.Context(), "k").Val())
	added, err := c.AddMaster()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Move(t.Context(), slot, c.Masters[2*slot/Slots], added); err != nil {
		t.Fatal(err)
	}
	there := client(added.Addr())
	defer there.Close()
	if got := there.DBSize(t.Context()).Val(); got != n {
		t.Errorf("%d keys have moved, want %d", got, n)
	}
	rdb.ReloadState(t.Context())
	rdb.Set(t.Context(), "a", "kept", 0) // in the slots of the second
	if err := c.Masters[1].Kill(); err != nil {
		t.Fatal(err)
	}
	if err := until(t.Context(), formsWithin, func() (bool, error) {
		rdb.ReloadState(t.Context()) // else it looks once a minute
		got, err := rdb.Get(t.Context(), "a").Result()
		return got == "kept", err
	}); err != nil {
		t.Errorf("the replica did not take over: %v", err)
	}
	if err := errors.Join(c.Masters[1].StartAgain(), Following(c.Masters[1])); err != nil {
		t.Fatal(err)
	}
	if err := c.Move(t.Context(), slot, added, c.Masters[0]); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.RemoveMaster(added), c.joined()); err != nil {
		t.Errorf("a master that was added and removed: %v", err)
	}
	serve, err := c.Unserve(t.Context(), slot)
	if err != nil {
		t.Fatal(err)
	}
	owner := client(c.Masters[0].Addr())
	defer owner.Close()
	if err := owner.Get(t.Context(), "{k}0").Err(); !redis.HasErrorPrefix(err, "CLUSTERDOWN") {
		t.Errorf("a slot that is not served answers %v, want CLUSTERDOWN", err)
	}
	if err := errors.Join(serve(), c.Whole(t.Context(), formsWithin)); err != nil {
		t.Fatal(err)
	}
	if got, err := owner.Get(t.Context(), "{k}0").Result(); got != "0" || err != nil {
		t.Errorf("served again, it answers %q, %v, want what was there", got, err)
	}
}

// Sentinels make another server the master, and say which, when they are asked to and when it dies.
func TestWatched(t *testing.T) {
	t.Parallel()
	w, err := LaunchWatched(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	first, err := w.Master(t.Context())
	if err != nil || first != w.Servers[0] {
		t.Fatalf("Master = %v, %v, want the first server", first, err)
	}
	if err := w.Failover(t.Context()); err != nil {
		t.Fatal(err)
	}
	moved := func() (bool, error) {
		m, err := w.Master(t.Context())
		return err == nil && m != first, err
	}
	if err := until(t.Context(), formsWithin, moved); err != nil {
		t.Fatal(err)
	}
	if err := w.Settled(t.Context(), formsWithin); err != nil {
		t.Fatal(err)
	}
	if first, err = w.Master(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := until(t.Context(), formsWithin, func() (bool, error) { return sentinelsKnow(t.Context(), w, first) }); err != nil {
		t.Fatal(err)
	}
	if err := first.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := until(t.Context(), formsWithin, moved); err != nil {
		t.Fatal(err)
	}
	if err := first.StartAgain(); err != nil {
		t.Fatal(err)
	}
	if err := w.Settled(t.Context(), formsWithin); err != nil {
		t.Error(err)
	}
}

// sentinelsKnow says whether each sentinel names a server as the master, and knows its replicas and the other sentinels.
// Before that they might fail to agree on another master when it dies.
func sentinelsKnow(ctx context.Context, w *Watched, master *Process) (bool, error) {
	for _, s := range w.Sentinels {
		c := sentinelClient(s)
		m, err := c.Master(ctx, MasterName).Result()
		if err = errors.Join(err, c.Close()); err != nil {
			return false, err
		}
		known := m["num-slaves"] + " replicas, " + m["num-other-sentinels"] + " sentinels"
		if net.JoinHostPort(m["ip"], m["port"]) != master.Addr() || m["flags"] != "master" || known != "2 replicas, 2 sentinels" {
			return false, fmt.Errorf("a sentinel knows %v with %s", m["flags"], known)
		}
	}
	return true, nil
}

// A target that is busy takes a key, and the source does not hear of it in time. It moves all the same, as it is at the source by then.
func TestMigrateToABusyServer(t *testing.T) {
	t.Parallel()
	from, to := launch(t), launch(t)
	target := client(to.Addr())
	defer target.Close()
	source := redis.NewClient(&redis.Options{Addr: from.Addr(), MaxRetries: -1, ReadTimeout: 2 * migrateWithin})
	defer source.Close()
	source.Set(t.Context(), "k", "before", 0)
	if err := to.Pause(); err != nil {
		t.Fatal(err)
	}
	tries := 0
	source.AddHook(afterEach(func(migrated error) {
		if tries++; tries > 1 {
			return
		}
		if !redis.HasErrorPrefix(migrated, "IOERR") {
			t.Errorf("the first try answered %v, want that the source waited in vain", migrated)
		}
		if err := to.Resume(); err != nil {
			t.Error(err)
		}
		taken := func() (bool, error) {
			got, err := target.Get(t.Context(), "k").Result()
			return got == "before", err
		}
		if err := until(t.Context(), formsWithin, taken); err != nil {
			t.Errorf("the target took nothing of the first try: %v", err)
		}
		writer := client(from.Addr()) // a connection without the hook
		defer writer.Close()
		if err := writer.Append(t.Context(), "k", " and after").Err(); err != nil {
			t.Error(err)
		}
	}))
	if err := migrate(t.Context(), source, to.Addr(), []string{"k"}); err != nil {
		t.Fatal(err)
	}
	if got, err := target.Get(t.Context(), "k").Result(); err != nil || got != "before and after" || tries != 2 {
		t.Errorf("the target has %q, %v after %d tries, want what the source had, after 2", got, err, tries)
	}
}

// afterEach is told how each command of a client ended, before the client's caller is.
type afterEach func(error)

func (afterEach) DialHook(next redis.DialHook) redis.DialHook { return next }

func (afterEach) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (told afterEach) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		told(err)
		return err
	}
}
