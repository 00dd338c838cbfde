package queuescripts

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
)

// fetch fetches by a call of a pool and checks whose messages come.
func (a *asynqQueue) fetch(pool string, call uint64, most int, want ...string) {
	a.Helper()
	got, err := Fetch(a.Context(), a.rdb, a.q, FetchArgs{Pool: pool, Call: call, LeaseEnds: start.Add(30 * time.Second).Unix(), Most: most})
	tasks := make([]FetchedTask, len(want))
	for i, id := range want {
		tasks[i].Message = "message of " + id
	}
	if diff := cmp.Diff(tasks, got); diff != "" || err != nil {
		a.Errorf("Fetch, call %d of pool %q: %v (-want +got):\n%s", call, pool, err, diff)
	}
	redistest.KeysHaveALife(a.T, a.raw)
}

// fetchAgain repeats a call that was not answered, and checks that no task comes.
func (a *asynqQueue) fetchAgain(pool string, call uint64, most int) {
	a.Helper()
	got, err := Fetch(a.Context(), a.rdb, a.q, FetchArgs{Pool: pool, Call: call, LeaseEnds: start.Add(30 * time.Second).Unix(), Most: most, Again: true})
	if len(got) > 0 || err != nil {
		a.Errorf("Fetch, call %d of pool %q again = %v, %v, want none", call, pool, got, err)
	}
	redistest.KeysHaveALife(a.T, a.raw)
}

// requeue gives back what a call of a pool has fetched and checks how many went back.
func (a *asynqQueue) requeue(pool string, call uint64, want int, ids ...string) {
	a.Helper()
	got, err := Requeue(a.Context(), a.rdb, a.q, RequeueArgs{Pool: pool, Call: call, IDs: ids})
	if got != want || err != nil {
		a.Errorf("Requeue of call %d of pool %q = %d, %v, want %d", call, pool, got, err, want)
	}
}

// wantLists checks which tasks are pending and active, the first to run first.
func (a *asynqQueue) wantLists(pending, active []string) {
	a.Helper()
	for key, want := range map[string][]string{a.q.Pending: pending, a.q.active: active} {
		got := a.raw.LRange(a.Context(), key, 0, -1).Val()
		slices.Reverse(got)
		if diff := cmp.Diff(append([]string{}, want...), got); diff != "" {
			a.Errorf("%s (-want +got):\n%s", key, diff)
		}
	}
	if n := a.raw.ZCard(a.Context(), a.q.Lease).Val(); int(n) != len(active) {
		a.Errorf("%d leases for %d active tasks", n, len(active))
	}
}

// A task whose hash is on another node by now, while the slot moves there, gets no second hash: the slot could not
// be moved any more, or the hash with the message would be overwritten. asynq recovers the task.
func TestFetchMakesNoHashOfATaskThatIsNotThere(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	a.put("pending", "a", "b")
	a.raw.Del(t.Context(), a.q.TaskPrefix+"a")
	a.fetch("p", 1, 2, "b")
	if n := a.raw.Exists(t.Context(), a.q.TaskPrefix+"a").Val(); n != 0 {
		t.Errorf("the hash of a task that is not there has been made: %v", a.raw.HGetAll(t.Context(), a.q.TaskPrefix+"a").Val())
	}
	a.wantLists([]string{}, []string{"a", "b"})
	a.raw.Del(t.Context(), a.q.TaskPrefix+"b")
	a.requeue("p", 1, 1, "b")
	if n := a.raw.Exists(t.Context(), a.q.TaskPrefix+"b").Val(); n != 0 {
		t.Error("the hash of a task that is handed back and not there has been made")
	}
}

// A call that comes again gets the tasks of its first time and takes no others, and one that
// comes late, behind a newer call of its pool, gets none.
func TestFetchOnceForEachCall(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	ids := []string{"a", "", "3:b 4", "\x00\xff", uuid, "z"} // whatever a task may be called
	a.put("pending", ids...)
	a.fetch("p", 1, 4, ids[:4]...)
	a.fetch("p", 1, 4, ids[:4]...)
	a.fetch("p", 1, 0, ids[:4]...)
	a.fetch("q", 1, 1, uuid) // the number is the pool's own
	a.fetch("p", 2, 4, "z")
	a.fetch("p", 1, 4)
	a.wantLists(nil, ids)
	if got := a.fields("z"); got["state"] != "active" {
		t.Errorf("a fetched task is %v", got)
	}
}

// A call is lost, its repeat finds nothing, and then the first copy comes late: nobody waits for its answer, so it
// takes nothing. The tasks would stay active until asynq counts them as failed.
func TestFetchLateCopyOfARepeatedCallTakesNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		most   int
		paused bool
	}{"empty queue": {most: 1}, "paused queue": {most: 1, paused: true}, "closing pool": {most: 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newQueue(t)
			if c.paused {
				a.put("pending", "a")
				a.raw.Set(t.Context(), a.q.paused, 1, 0)
			}
			a.fetchAgain("p", 1, c.most)
			if !c.paused {
				a.put("pending", "a")
			}
			a.raw.Del(t.Context(), a.q.paused)
			a.fetch("p", 1, 1)
			a.wantLists([]string{"a"}, nil)
			a.fetch("p", 2, 1, "a") // the next call gets it
			a.wantLists(nil, []string{"a"})
		})
	}
}

// A poll of an empty queue writes nothing.
func TestFetchOfNothingWritesNothing(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	a.fetch("p", 1, 1)
	a.fetch("p", 2, 8)
	if n := a.raw.Exists(t.Context(), a.q.fetched+"p").Val(); n != 0 {
		t.Error("a fetch that found nothing has been noted")
	}
}

// A copy of a call comes when its first task is done and its second is deferred: it brings
// neither back.
func TestFetchCopyRevivesNothing(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	a.put("pending", "done", "runs")
	a.fetch("p", 1, 2, "done", "runs")
	a.raw.LRem(t.Context(), a.q.active, 0, "done")
	a.raw.ZRem(t.Context(), a.q.Lease, "done")
	a.raw.Del(t.Context(), a.q.Task("done"))
	a.fetch("p", 1, 2, "runs")
	a.wantLists(nil, []string{"runs"})
}

// The lease of tasks whose answer was lost begins anew when they come at last, and no copy
// ends a lease earlier.
func TestFetchAgainLengthensTheLease(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	a.put("pending", "a")
	for _, c := range []struct{ ends, want int64 }{{100, 100}, {120, 120}, {110, 120}} {
		if _, err := Fetch(t.Context(), a.rdb, a.q, FetchArgs{Pool: "p", Call: 1, LeaseEnds: c.ends, Most: 1}); err != nil {
			t.Fatal(err)
		}
		if got := a.raw.ZScore(t.Context(), a.q.Lease, "a").Val(); int64(got) != c.want {
			t.Errorf("fetched until %d, the lease ends at %.0f, want %d", c.ends, got, c.want)
		}
	}
}

func TestFetchFromAPausedQueue(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	a.put("pending", "a", "b")
	a.fetch("p", 1, 1, "a")
	a.raw.Set(t.Context(), a.q.paused, 1, 0)
	got, err := Fetch(t.Context(), a.rdb, a.q, FetchArgs{Pool: "p", Call: 2, Most: 1})
	if len(got) != 0 || err != nil {
		t.Errorf("Fetch from a paused queue = %v, %v", got, err)
	}
	got, err = Fetch(t.Context(), a.rdb, a.q, FetchArgs{Pool: "p", Call: 1, Most: 1})
	if len(got) != 1 || err != nil {
		t.Errorf("Fetch anew from a queue that was paused meanwhile = %v, %v, want what was fetched before", got, err)
	}
}

// Tasks go back to where they came from, in their order, and a copy of that call takes
// nothing from the pool that has fetched them meanwhile.
func TestRequeueOnce(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	a.put("pending", "a", "b", "c", "d")
	a.fetch("p", 7, 3, "a", "b", "c")
	a.requeue("p", 6, 0, "b", "c")
	a.requeue("q", 7, 0, "b", "c")
	a.requeue("p", 7, 2, "b", "c")
	a.wantLists([]string{"b", "c", "d"}, []string{"a"})
	if got := a.fields("b"); got["state"] != "pending" {
		t.Errorf("a task that went back is %v", got)
	}
	a.fetch("q", 1, 2, "b", "c")
	a.requeue("p", 7, 0, "b", "c")
	a.fetch("p", 7, 3)
	a.wantLists([]string{"d"}, []string{"a", "b", "c"})
}

// What a pool has fetched is its own for 40 s. Afterwards asynq may have given it to another
// pool, and a process that stood still gives nothing back.
func TestRequeueOfWhatMayBeAnothers(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	a.put("pending", "a")
	a.fetch("p", 1, 1, "a")
	if ttl := a.raw.PTTL(t.Context(), a.q.fetched+"p").Val(); ttl > 40*time.Second || ttl < 10*time.Second {
		t.Errorf("the answer is kept for %v, want 40 s", ttl)
	}
	a.raw.Del(t.Context(), a.q.fetched+"p") // as time does
	a.requeue("p", 1, 0, "a")
	a.wantLists(nil, []string{"a"})
}

// A task that is to run now goes before all that is pending, in whichever of asynq's sets it
// waits, and its fetch tells so, also when the call is repeated. The mark is taken once.
func TestRunNow(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	a.put("pending", "first", "second")
	a.put("active", "deferred", "runs")
	a.deferTask("deferred", time.Hour, "")
	a.enqueue(1, []int64{1}, a.booked("booked", 1, time.Hour))
	a.put("retry", "back-off")
	a.raw.ZAdd(t.Context(), a.q.Retry, redis.Z{Score: float64(start.Add(time.Hour).Unix()), Member: "back-off"})
	a.put("archived", "over")
	now := start.Add(time.Second)
	for _, want := range []struct {
		id string
		RunNowStatus
	}{
		{"back-off", RunNowPending}, {"booked", RunNowPending}, {"deferred", RunNowPending}, {"second", RunNowPending}, {"deferred", RunNowPending},
		{"runs", RunNowActive}, {"over", RunNowEnded}, {"never", RunNowDeleted},
	} {
		if got, err := RunNow(t.Context(), a.rdb, a.q, want.id, now); got != want.RunNowStatus || err != nil {
			t.Errorf("RunNow(%s) = %v, %v, want %v", want.id, got, err, want.RunNowStatus)
		}
	}
	a.wantLists([]string{"deferred", "booked", "back-off", "first", "second"}, []string{"runs"})
	for _, set := range []string{a.q.Due, a.q.Retry, a.q.Scheduled} {
		if n := a.raw.ZCard(t.Context(), set).Val(); n != 0 {
			t.Errorf("%s holds %d tasks, want none", set, n)
		}
	}
	waited := Wait{Since: start}
	want := []FetchedTask{
		{Message: "message of deferred", RunNow: true, Wait: waited}, {Message: "message of booked", RunNow: true, Wait: waited}, {Message: "message of back-off", RunNow: true},
		{Message: "message of first"}, {Message: "message of second", RunNow: true},
	}
	for range 2 {
		got, err := Fetch(t.Context(), a.rdb, a.q, FetchArgs{Pool: "p", Call: 1, LeaseEnds: now.Add(time.Minute).Unix(), Most: 9})
		for i := range got {
			if since := got[i].Wait.Since; !since.IsZero() && time.Since(since) < time.Minute { // by Redis' clock
				got[i].Wait.Since = start
			}
		}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("Fetch: %v (-want +got):\n%s", err, diff)
		}
	}
	for _, first := range []bool{true, false} {
		if taken, err := TakeRunNow(t.Context(), a.raw, a.q, "booked"); taken != first || err != nil {
			t.Errorf("TakeRunNow = %v, %v, want %v", taken, err, first)
		}
	}
}
