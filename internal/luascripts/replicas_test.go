package luascripts_test

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/limitscripts"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/redistest"
)

// A grant that is repeated, on another connection, is confirmed by what it was made with, or not
// at all: a WAIT is about what its own connection wrote.
func TestRepeatedGrantIsConfirmed(t *testing.T) {
	t.Parallel()
	master, replica := redistest.Start(t, redistest.Arg("repl-diskless-sync-delay", "0")), redistest.Start(t, redistest.Own())
	host, port, err := net.SplitHostPort(master.Addr())
	if err != nil {
		t.Fatal(err)
	}
	follower := replica.Client(t)
	if err := follower.ReplicaOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); !strings.Contains(follower.Info(t.Context(), "replication").Val(), "master_link_status:up"); {
		if time.Now().After(end) {
			t.Fatal("the replica does not follow")
		}
		time.Sleep(10 * time.Millisecond)
	}
	call := limitscripts.AcquireArgs{
		Rules: one(limitscripts.NewLimitKeys("hw", "sms", "a"), limitscripts.Numbers{Kind: limitscripts.Sliding, Permits: 1, Window: time.Minute}), Token: 1, MaxWait: -1,
		Durable: luascripts.Durability{Replicas: 1, Within: 100 * time.Millisecond},
	}
	grantedBy(t, master.Client(t), "b") // the library is there
	replica.Pause()
	for range 2 {
		_, err := limitscripts.Acquire(t.Context(), master.Client(t), call)
		if e, ok := errors.AsType[*luascripts.NotReplicatedError](err); !ok || e.Got != 0 || e.Want != 1 {
			t.Errorf("Acquire = %v, want that 0 of 1 replicas have the grant", err)
		}
	}
	replica.Resume()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		r, err := limitscripts.Acquire(t.Context(), master.Client(t), call)
		if err == nil && r.Status == limitscripts.Granted {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("Acquire = %+v, %v, want the grant, which a replica has by now", r, err)
		}
	}
	if n := follower.Exists(t.Context(), call.Rules[0].Ledger()).Val(); n != 1 {
		t.Error("the replica lacks the ledger of a grant that was confirmed")
	}
}

// Whoever may not call WAIT gets no grant that it did not wait for.
func TestConfirmationThatCantBeHad(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, redistest.Own())
	if err := s.Client(t).Do(t.Context(), "acl", "setuser", "app", "on", ">secret", "~*", "&*", "+@all", "-wait").Err(); err != nil {
		t.Fatal(err)
	}
	o := s.ClientOptions()
	o.Username, o.Password = "app", "secret"
	rdb := redis.NewClient(o)
	defer rdb.Close()
	_, err := limitscripts.Acquire(t.Context(), rdb, limitscripts.AcquireArgs{
		Rules: one(limitscripts.NewLimitKeys("hw", "sms", "a"), limitscripts.Numbers{Kind: limitscripts.Sliding, Permits: 1, Window: time.Minute}), Token: 1, MaxWait: -1,
		Durable: luascripts.Durability{Replicas: 1, Within: 100 * time.Millisecond},
	})
	if err == nil || !strings.Contains(err.Error(), "NOPERM") {
		t.Errorf("Acquire = %v, want that WAIT is refused", err)
	}
}
