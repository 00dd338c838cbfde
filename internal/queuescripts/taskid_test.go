package queuescripts

import (
	"slices"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/redistest"
)

// The ids of all tasks are read back, and those that asynq draws are short.
func TestTaskIDs(t *testing.T) {
	t.Parallel()
	const uuid = "0190c3a4-5b6c-7d8e-9f00-a1b2c3d4e5f6"
	ids := []string{
		uuid, "m1", "0190C3A4-5b6c-7d8e-9f00-a1b2c3d4e5f6", "0190c3a45b6c7d8e9f00a1b2c3d4e5f6----", "0190c3a4-5b6c-7d8e-9f00-a1b2c3d4e5fg",
		"\x02", "\x0216 raw bytes are", "\x01a", "\x01\x02\x03", "16 raw bytes are", "短信", "a\x00b",
	}
	seen := map[string]bool{}
	for _, id := range ids {
		short := luascripts.ShortID(id)
		if got := luascripts.LongID(short); got != id || seen[short] {
			t.Errorf("%q is written as %q, and read back as %q", id, short, got)
		}
		if seen[short] = true; id == uuid && len(short) != 17 {
			t.Errorf("%q takes %d bytes, want 17", id, len(short))
		}
	}

	// and the scripts find asynq's own by them
	a := newQueue(t)
	a.put("active", ids...)
	for i, id := range ids {
		a.deferTask(id, time.Duration(i)*time.Second, "")
	}
	reply, err := Due(t.Context(), a.rdb, a.q, DueArgs{Lead: minute, Room: len(ids)})
	var got []string
	for _, d := range reply.Tasks {
		got = append(got, d.ID)
		if d.State != "retry" || d.Record == "" || d.Pool != pool {
			t.Errorf("Due of %q = %+v, want its state, place and pool", d.ID, d)
		}
	}
	if err != nil || !slices.Equal(got, ids) {
		t.Errorf("Due = %q, %v, want %q", got, err, ids)
	}
	walked, err := ScanDeferred(t.Context(), a.rdb, a.q, time.Time{}, 0, len(ids))
	if err != nil || len(walked.Tasks) != len(ids) || walked.Tasks[0].ID != uuid {
		t.Errorf("Walk = %+v, %v, want all", walked, err)
	}
	moved, err := Retime(t.Context(), a.rdb, a.q, []Retiming{{ID: uuid, At: start.Add(minute)}})
	redistest.WantCodes(t, "Retime", moved, err, 1)
	if got := a.raw.ZScore(t.Context(), a.q.Retry, uuid).Val(); int64(got) != start.Add(minute+safetyNet).Unix() {
		t.Errorf("asynq's score is %v, want a minute and %v", got, safetyNet)
	}
	codes, err := Wake(t.Context(), a.rdb, a.q, tasks(ids...), start, false)
	redistest.WantCodes(t, "Wake", codes, err, slices.Repeat([]int64{Woken}, len(ids))...)
	if n := a.raw.Exists(t.Context(), a.q.Due).Val(); n != 0 {
		t.Errorf("%d of our keys are left, want none", n)
	}
	pending := a.raw.LRange(t.Context(), a.q.Pending, 0, -1).Val()
	if slices.Reverse(pending); !slices.Equal(pending, ids) {
		t.Errorf("pending = %q, want %q", pending, ids)
	}
}
