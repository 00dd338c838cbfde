package promotion

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var start = time.Now().Truncate(time.Second)

func promoted(queue, id string, wait time.Duration) throttle.Promotion {
	return throttle.Promotion{Job: luascripts.JobID(queue, id), At: start.Add(wait), Wait: wait}
}

// Of several promotions of a task the earliest counts, tasks of one id in two queues are
// two, and a job that is no task is left out.
func TestByQueueKeepsTheEarliest(t *testing.T) {
	t.Parallel()
	got := ByQueue(promoted("a", "1", 3*time.Second), promoted("a", "1", time.Second), promoted("a", "1", 2*time.Second),
		promoted("b", "1", 5*time.Second), promoted("a", "2", 4*time.Second), throttle.Promotion{Job: "who blocks", At: start})
	want := map[string]Tasks{
		"a": {"1": promoted("a", "1", time.Second), "2": promoted("a", "2", 4*time.Second)},
		"b": {"1": promoted("b", "1", 5*time.Second)},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("by queue, want -, got +:\n%s", diff)
	}
	if a, none := got["a"].First(), (Tasks{}).First(); a != time.Second || none != 0 {
		t.Errorf("the first come in %v and %v, want in 1s, and 0 of none", a, none)
	}
}

// Tasks only move forward, those that are gone do not come back, and there may be more of
// them than one call takes.
func TestRetime(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewTimed(redistest.Start(t).Client(t), start)
	keys := queuescripts.NewQueueKeys("hw", "default")
	const n = queuescripts.RetimeMax + 200
	var tasks []queuescripts.EnqueueTask
	for i := range n {
		at := start.Add(time.Hour + time.Duration(i)*time.Millisecond)
		tasks = append(tasks, queuescripts.EnqueueTask{ID: fmt.Sprint("t", i), Token: uint64(i + 1), Message: []byte("m"), At: at, Record: "sms 1 3 +49"})
	}
	for i := 0; i < n; i += queuescripts.EnqueueMax {
		if _, err := queuescripts.Enqueue(t.Context(), rdb, keys, uint64(i+1), tasks[i:min(n, i+queuescripts.EnqueueMax)]); err != nil {
			t.Fatal(err)
		}
	}
	all := Tasks{"gone": promoted("default", "gone", time.Second)}
	for i := range n {
		all[fmt.Sprint("t", i)] = promoted("default", fmt.Sprint("t", i), time.Minute+time.Duration(i)*time.Millisecond)
	}
	all["t0"], all["t1"] = promoted("default", "t0", 2*time.Hour), promoted("default", "t1", time.Second)
	gone := make(map[string]int64)
	if _, err := all.Retime(t.Context(), rdb, keys, func(p throttle.Promotion, code int64) { gone[p.Job] = code }); err != nil {
		t.Fatal(err)
	}
	if want := map[string]int64{luascripts.JobID("default", "gone"): queuescripts.Deleted}; !maps.Equal(gone, want) {
		t.Errorf("gone are %v, want %v", gone, want)
	}
	got := make(map[string]time.Duration)
	for from := (time.Time{}); ; {
		r, err := queuescripts.ScanDeferred(t.Context(), rdb, keys, from, 0, queuescripts.RetimeMax)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range r.Tasks {
			got[d.ID], from = d.At.Sub(start), d.At.Add(time.Microsecond)
		}
		if len(r.Tasks) == 0 {
			break
		}
	}
	want := map[string]time.Duration{"t0": time.Hour, "t1": time.Second}
	for i := 2; i < n; i++ {
		want[fmt.Sprint("t", i)] = time.Minute + time.Duration(i)*time.Millisecond
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("instants of the deferred tasks, want -, got +:\n%s", diff)
	}
}

// With nobody to move no call is made, and an error of Redis is returned.
func TestRetimeErrors(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	keys := queuescripts.NewQueueKeys("hw", "default")
	if _, err := (Tasks{}).Retime(ctx, rdb, keys, nil); err != nil {
		t.Errorf("Retime of none: %v", err)
	}
	if _, err := (Tasks{"1": promoted("default", "1", 0)}).Retime(ctx, rdb, keys, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Retime: %v, want the error of the call", err)
	}
}
