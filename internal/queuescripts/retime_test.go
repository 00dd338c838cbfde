package queuescripts

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
)

func TestRetime(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	ctx := t.Context()
	a.put("active", "a", "b", "failed", "old")
	for _, id := range []string{"a", "b", "failed", "old"} {
		a.deferTask(id, minute, "")
	}
	a.raw.ZAdd(ctx, a.q.Retry, redis.Z{Score: 7, Member: "failed"})
	a.put("completed", "done")
	all := func(in time.Duration) []Retiming {
		var out []Retiming
		for _, id := range []string{"a", "b", "failed", "done", "gone"} {
			out = append(out, Retiming{ID: id, At: start.Add(in)})
		}
		return out
	}
	got, err := Retime(ctx, a.rdb, a.q, all(2*minute))
	redistest.WantCodes(t, "Retime later", got, err, Retimed, Retimed, 0, Ended, Deleted)
	a.place("a", "retry", 2*minute+safetyNet, 2*minute)
	got, err = RetimeEarlier(ctx, a.rdb, a.q, all(3*minute))
	redistest.WantCodes(t, "Retime earlier, to a later instant", got, err, 0, 0, 0, Ended, Deleted)
	a.place("a", "retry", 2*minute+safetyNet, 2*minute)
	got, err = RetimeEarlier(ctx, a.rdb, a.q, all(30*time.Second))
	redistest.WantCodes(t, "Retime earlier", got, err, Retimed, Retimed, 0, Ended, Deleted)
	a.place("a", "retry", 30*time.Second+safetyNet, 30*time.Second)
	if got := a.raw.ZScore(ctx, a.q.Retry, "failed").Val(); got != 7 {
		t.Errorf("the back-off of another is %v, want 7", got)
	}
	got, err = Wake(ctx, a.rdb, a.q, tasks("a", "failed"), start, false) // hw's score moved along
	redistest.WantCodes(t, "Wake", got, err, Woken, NotOurs)
	// Long past, also when its index is new: it stays, and has a life.
	a.raw.Del(ctx, a.q.Due)
	got, err = Retime(ctx, a.rdb, a.q, []Retiming{{ID: "old", At: start.Add(-2 * time.Hour)}})
	redistest.WantCodes(t, "Retime to long ago", got, err, 1)
	a.place("old", "retry", -2*time.Hour+safetyNet, -2*time.Hour)
}
