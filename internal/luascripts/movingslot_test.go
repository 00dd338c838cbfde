package luascripts

import (
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
)

// While a slot moves to another node, Redis ends a script that touches a key which the script has
// emptied. Tasks that are woken then empty the set in which they wait, and take the whole list of
// pending tasks aside: none of them may be lost.
func TestWakeWhileItsSlotMoves(t *testing.T) {
	t.Parallel()
	rdb, nodes := redistest.StartNodes(t, 2)
	q := NewQueueKeys("hw", "default")
	owner, err := rdb.MasterForKey(t.Context(), q.pending)
	if err != nil {
		t.Fatal(err)
	}
	here, there := nodes[0].Client(t), nodes[1].Client(t)
	if owner.Options().Addr == nodes[1].Addr() {
		here, there = there, here
	}
	a := &asynqQueue{t, here, here, q}
	now := time.Now()
	a.put("active", "a", "b", "c")
	for i, id := range []string{"a", "b", "c"} {
		d := DeferArgs{ID: id, Token: uint64(4711 + i), At: now, For: "sms 1 key", Wait: minute}
		if err := Defer(t.Context(), here, q, d).Err(); err != nil {
			t.Fatal(err)
		}
	}
	here.ZAdd(t.Context(), q.scheduled, redis.Z{Score: 1e10, Member: "later"})
	a.put("pending", "other")
	slot := here.ClusterKeySlot(t.Context(), q.pending).Val()
	id := there.Do(t.Context(), "cluster", "myid").Val()
	if err := here.Do(t.Context(), "cluster", "setslot", slot, "migrating", id).Err(); err != nil {
		t.Fatal(err)
	}
	var due []DueTask
	for _, id := range []string{"a", "b", "c"} {
		due = append(due, DueTask{ID: id, For: "sms 1 key"})
	}
	for _, some := range [][]DueTask{due[:1], due[1:]} { // the second call finds the first in front
		if got, err := Wake(t.Context(), here, q, some, now, true); err != nil || slices.ContainsFunc(got, func(code int64) bool { return code != 1 }) {
			t.Errorf("Wake(%v) = %v, %v, want all woken", some, got, err)
		}
	}
	if got := here.LRange(t.Context(), q.pending, 0, -1).Val(); len(got) != 4 {
		t.Errorf("%q are pending, want the three and the other one", got)
	}
	for _, id := range []string{"a", "b", "c"} {
		if state := here.HGet(t.Context(), q.Task(id), "state").Val(); state != "pending" {
			t.Errorf("%s is %q, want pending", id, state)
		}
	}
}
