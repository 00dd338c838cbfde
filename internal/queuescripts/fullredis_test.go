package queuescripts

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"
)

// A Redis without memory refuses whole what enqueues, and does what gives
// something back: otherwise tasks would be lost then.
func TestFullRedisAndAQueue(t *testing.T) {
	t.Parallel()
	rdb, raw := redistest.StartTimed(t, redistest.Arg("maxmemory-policy", "noeviction"))
	ctx, q := t.Context(), NewQueueKeys("hw", "default")
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	redistest.PutTasks(raw, "active", "run", "late")
	must(Defer(ctx, rdb, q, DeferArgs{ID: "late", Token: 1, At: start, Record: "x"}).Result())
	// The texts are known before memory runs out.
	must(Wake(ctx, rdb, q, tasks("nobody"), start, false))
	must(Enqueue(ctx, rdb, q, 9, []EnqueueTask{{ID: "late", Token: 9, Since: 1}}))
	redistest.FillMemory(t, raw)

	before := redistest.Dump(t, raw)
	for name, task := range map[string]EnqueueTask{
		"a task to run":         {ID: "new", Token: 1, Message: []byte("m"), Since: 1},
		"a task with a lock":    {ID: "new", Token: 1, Message: []byte("m"), Since: 1, Unique: "asynq:{default}:unique:x", Lock: time.Minute},
		"a task that is booked": {ID: "new", Token: 1, Message: []byte("m"), At: start, Record: "x"},
	} {
		if codes, err := Enqueue(ctx, rdb, q, 1, []EnqueueTask{task}); !strings.Contains(fmt.Sprint(err), "OOM") {
			t.Errorf("%s = %v, %v, want OOM", name, codes, err)
		}
		if after := redistest.Dump(t, raw); !maps.Equal(before, after) {
			t.Fatalf("%s changed %q to %q, want nothing changed", name, before, after)
		}
	}
	if err := Defer(ctx, rdb, q, DeferArgs{ID: "run", Token: 2, At: start, Record: "x"}).Err(); err != nil {
		t.Errorf("Defer = %v, want nil", err)
	}
	got, err := Wake(ctx, rdb, q, tasks("late", "run"), start, false)
	redistest.WantCodes(t, "Wake", got, err, Woken, Woken)
	redistest.KeysHaveALife(t, raw)
}
