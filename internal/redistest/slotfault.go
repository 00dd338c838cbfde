package redistest

import (
	"context"
	"errors"
	"regexp"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redisserver"
)

// SlotFault is what happens to the slot of a key on a Cluster of [StartMovable], for a moment or for longer than a call waits.
type SlotFault struct {
	Name      string
	Moving    bool // the slot is on its way to another node: a call that waits for it succeeds
	Long      bool // it lasts until all calls that were made have given up
	Over      bool // it is over when it has been entered
	AllThere  bool // all keys are at the target, so who follows its ASK is answered
	Redirects int  // how many redirects of one call go-redis follows

	Enter func(tb testing.TB, c *Cluster, key string) (leave func() error)
}

// Client is a client of the cluster that follows so many redirects.
func (f SlotFault) Client(tb testing.TB, rdb *redis.ClusterClient) *redis.ClusterClient {
	o := *rdb.Options()
	o.MaxRedirects = f.Redirects
	own := redis.NewClusterClient(&o)
	tb.Cleanup(func() { _ = own.Close() })
	return own
}

// RawRedirect is the answer by which one node of a Cluster names another. It is for clients, and no user can act on it.
var RawRedirect = regexp.MustCompile(`\b(?:MOVED|ASK) \d`)

// SlotFaults are those that users of a Cluster meet. While some keys have moved, those for which stays says so have not.
func SlotFaults(stays func(key string) bool) []SlotFault {
	none := func(string) bool { return false }
	all := SlotFault{Name: "all keys have moved, the slot has not", Moving: true, AllThere: true, Redirects: 3, Enter: beginMove(true, none)}
	some := SlotFault{Name: "some keys have moved", Moving: true, Redirects: 3, Enter: beginMove(false, stays)}
	nobody := SlotFault{Name: "nobody serves the slot", Redirects: 3, Enter: unserve}
	faults := []SlotFault{
		all, some, nobody,
		{Name: "the slot has moved to a node without the library", Over: true, Redirects: 3, Enter: moveToBare},
		{Name: "the slot has moved to a node without the scripts", Over: true, Redirects: 3, Enter: moveToBareOld},
	}
	for _, f := range []SlotFault{all, some, nobody} {
		f.Name, f.Long = f.Name+", for long", true
		faults = append(faults, f)
	}
	// go-redis asks the source and the target in turn. With an even number of redirects the source answers last.
	for _, f := range []SlotFault{all, some} {
		f.Name, f.Long, f.Redirects = f.Name+", for long, and the source answers last", true, 4
		faults = append(faults, f)
	}
	return faults
}

// keysIn is how many keys of a slot a node has.
func keysIn(tb testing.TB, node *redisserver.Process, slot int) int64 {
	tb.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: node.Addr()})
	defer rdb.Close()
	n, err := rdb.ClusterCountKeysInSlot(tb.Context(), slot).Result()
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

func beginMove(allMoved bool, stays func(string) bool) func(testing.TB, *Cluster, string) func() error {
	return func(tb testing.TB, c *Cluster, key string) func() error {
		tb.Helper()
		slot, from, to := slotOf(tb, c, key)
		m, leave := startMove(tb, c, slot, from, to)
		if err := m.MoveKeys(tb.Context(), func(key string) bool { return !stays(key) }); err != nil {
			tb.Fatal(err)
		}
		if here, there := keysIn(tb, from, slot), keysIn(tb, to, slot); there == 0 || here == 0 != allMoved {
			tb.Fatalf("%d keys of the slot are at the source and %d at the target: the test tries nothing", here, there)
		}
		return leave
	}
}

// BeginMove begins to move the slot of a key. Until leave is called all keys of the slot are where they were.
func BeginMove(tb testing.TB, c *Cluster, key string) (leave func() error) {
	tb.Helper()
	slot, from, to := slotOf(tb, c, key)
	_, leave = startMove(tb, c, slot, from, to)
	return leave
}

func startMove(tb testing.TB, c *Cluster, slot int, from, to *redisserver.Process) (m *redisserver.Migration, leave func() error) {
	tb.Helper()
	m, err := c.BeginMove(tb.Context(), []int{slot}, from, to)
	if err != nil {
		tb.Fatal(err)
	}
	return m, func() error {
		return errors.Join(m.MoveKeys(context.Background(), func(string) bool { return true }), m.End(context.Background()))
	}
}

func unserve(tb testing.TB, c *Cluster, key string) func() error {
	tb.Helper()
	slot, _, _ := slotOf(tb, c, key)
	serve, err := c.Unserve(tb.Context(), slot)
	if err != nil {
		tb.Fatal(err)
	}
	return serve
}

func moveToBare(tb testing.TB, c *Cluster, key string) func() error {
	tb.Helper()
	slot, from, to := slotOf(tb, c, key)
	there := redis.NewClient(&redis.Options{Addr: to.Addr()})
	defer there.Close()
	if err := errors.Join(there.FunctionFlush(tb.Context()).Err(), there.ScriptFlush(tb.Context()).Err()); err != nil {
		tb.Fatal(err)
	}
	if err := c.Move(tb.Context(), slot, from, to); err != nil {
		tb.Fatal(err)
	}
	return func() error { return nil }
}

// moveToBareOld forbids functions first, on all nodes: scripts are sent instead.
func moveToBareOld(tb testing.TB, c *Cluster, key string) func() error {
	tb.Helper()
	for _, node := range c.Nodes() {
		rdb := redis.NewClient(&redis.Options{Addr: node.Addr()})
		err := rdb.Do(tb.Context(), "acl", "setuser", "default", "-fcall", "-function|load").Err()
		_ = rdb.Close()
		if err != nil {
			tb.Fatal(err)
		}
	}
	return moveToBare(tb, c, key)
}

// slotOf returns the slot of a key, the master that serves the slot, and another master.
func slotOf(tb testing.TB, c *Cluster, key string) (slot int, owner, other *redisserver.Process) {
	tb.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: c.Masters[0].Addr()})
	defer rdb.Close()
	n, err := rdb.ClusterKeySlot(tb.Context(), key).Result()
	if err != nil {
		tb.Fatal(err)
	}
	slot = int(n)
	if owner, err = c.Owner(tb.Context(), slot); err != nil {
		tb.Fatal(err)
	}
	other = c.Masters[0]
	if other == owner {
		other = c.Masters[1]
	}
	return slot, owner, other
}
