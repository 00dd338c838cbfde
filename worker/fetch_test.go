package worker

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/asynqwire"
	"github.com/headwayq/headway/internal/redistest"
)

// fetchRig is an adapter whose client is asked as asynq asks it, without an asynq server.
type fetchRig struct {
	*testing.T
	rdb   *redis.Client
	a     *Adapter
	c     *client
	plain *asynq.Client
	insp  *asynq.Inspector
}

func newFetchRig(t *testing.T, workers int, queues ...string) *fetchRig {
	rdb := redistest.Start(t).Client(t)
	cfg := Config{Logger: zap.NewNop(), Unlimited: UnlimitedAllow, Asynq: asynq.Config{Queues: make(map[string]int)}}
	for _, q := range queues {
		cfg.Asynq.Queues[q] = 1
	}
	a, err := NewAdapter(rdb, cfg)
	if err != nil {
		t.Fatal(err)
	}
	a.Server(asynq.Config{Concurrency: workers})
	t.Cleanup(a.Close)
	a.fetched.heldFor, a.fetched.emptyFor = time.Hour, time.Hour // however slow this machine is
	c, _ := a.Client().(*client)
	return &fetchRig{T: t, rdb: rdb, a: a, c: c, plain: asynq.NewClientFromRedisClient(rdb), insp: asynq.NewInspectorFromRedisClient(rdb)}
}

func (r *fetchRig) enqueue(queue string, n int) {
	r.Helper()
	for i := range n {
		if _, err := r.plain.Enqueue(asynq.NewTask("t", nil), asynq.Queue(queue), asynq.TaskID(fmt.Sprint(queue, i))); err != nil {
			r.Fatal(err)
		}
	}
}

// dequeue does what asynq's script does.
const dequeue = `local p = "asynq:{" .. ARGV[1] .. "}:"
local id = redis.call("RPOPLPUSH", p .. "pending", p .. "active")
if not id then return nil end
redis.call("HSET", p .. "t:" .. id, "state", "active")
redis.call("ZADD", p .. "lease", ARGV[2], id)
return redis.call("HGET", p .. "t:" .. id, "msg")`

// fetch asks for a task of a queue. It returns its id, and how often Redis was asked.
func (r *fetchRig) fetch(queue string) (id string, asked int) {
	r.Helper()
	calls := make(chan struct{}, 2*fetchMost)
	cmd := r.c.fetch(r.Context(), asynqwire.Call{Queue: queue}, func(ctx context.Context) *redis.Cmd {
		calls <- struct{}{}
		return r.rdb.Eval(ctx, dequeue, []string{"asynq:{" + queue + "}:pending"}, queue, time.Now().Add(30*time.Second).Unix())
	})
	text, err := cmd.Text()
	if err != nil {
		return "", len(calls)
	}
	m, err := asynqwire.DecodeMessage([]byte(text))
	if err != nil {
		r.Fatal(err)
	}
	return m.ID, len(calls)
}

// While tasks come and workers are free, a fetch asks for more of them, and the server gets
// those without another round trip.
func TestFetchAsksForSeveralTasksWhileTheyCome(t *testing.T) {
	t.Parallel()
	r := newFetchRig(t, 20, "a")
	r.enqueue("a", 12)
	var asked []int
	seen := make(map[string]bool)
	for range 12 {
		id, n := r.fetch("a")
		if id == "" || seen[id] {
			t.Fatalf("fetched %q, with %v before", id, seen)
		}
		seen[id] = true
		asked = append(asked, n)
	}
	if want := []int{1, 2, 0, 4, 0, 0, 0, 8, 0, 0, 0, 0}; !slices.Equal(asked, want) {
		t.Errorf("Redis was asked %v times, want %v", asked, want)
	}
}

// Tasks are fetched for workers that are free, so none waits here while another process
// could run it.
func TestFetchHoldsNoMoreTasksThanWorkersAreFree(t *testing.T) {
	t.Parallel()
	r := newFetchRig(t, 5, "a")
	r.enqueue("a", 12)
	for range 5 {
		if id, _ := r.fetch("a"); id == "" {
			t.Fatal("nothing was fetched")
		}
	}
	info, err := r.insp.GetQueueInfo("a")
	if err != nil {
		t.Fatal(err)
	}
	if info.Active != 5 || info.Pending != 7 {
		t.Errorf("%d tasks are active and %d pending, want 5 and 7", info.Active, info.Pending)
	}
}

// A queue that was found empty costs no round trip for each task of another one.
func TestFetchFromSeveralQueues(t *testing.T) {
	t.Parallel()
	r := newFetchRig(t, 20, "a", "b")
	r.enqueue("b", 7)
	total := 0
	for range 7 {
		if id, n := r.fetch("a"); id != "" {
			t.Fatalf("queue a has %q", id)
		} else {
			total += n
		}
		id, n := r.fetch("b")
		if id == "" {
			t.Fatal("queue b is empty")
		}
		total += n
	}
	if total != 10 { // seven for b, and a once for each of three fetches of b
		t.Errorf("Redis was asked %d times, want 10", total)
	}
}

// Tasks that were fetched and that no server takes are at the head of their queue again, in
// their order, when the adapter is closed.
func TestFetchedTasksGoBackWhenTheAdapterCloses(t *testing.T) {
	t.Parallel()
	r := newFetchRig(t, 20, "a")
	r.enqueue("a", 9)
	r.a.fetched.wake("a", 5)
	if _, n := r.fetch("a"); n != 5 {
		t.Fatalf("Redis was asked %d times after five tasks were woken, want 5", n)
	}
	r.a.Close()
	pending, err := r.rdb.LRange(context.WithoutCancel(t.Context()), "asynq:{a}:pending", 0, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(pending) // asynq takes from the right
	active := r.rdb.LRange(context.WithoutCancel(t.Context()), "asynq:{a}:active", 0, -1).Val()
	if len(pending) != 8 || len(active) != 1 {
		t.Fatalf("pending %v, active %v, want 8 and 1", pending, active)
	}
	all := append(active, pending...)
	slices.Sort(all)
	if len(slices.Compact(all)) != 9 {
		t.Errorf("of 9 tasks there are %v", all)
	}
	if state := r.rdb.HGet(context.WithoutCancel(t.Context()), "asynq:{a}:t:"+pending[0], "state").Val(); state != "pending" {
		t.Errorf("a task that was given back is %q, want pending", state)
	}
}

// A server that ends between two fetches leaves tasks that it does not take: they go back
// by themselves, soon.
func TestFetchedTasksGoBackWhenNobodyTakesThem(t *testing.T) {
	t.Parallel()
	r := newFetchRig(t, 20, "a")
	r.a.fetched.heldFor = heldFor
	r.enqueue("a", 4)
	r.a.fetched.wake("a", 4)
	r.fetch("a")
	end := time.Now().Add(30 * time.Second)
	for time.Now().Before(end) {
		if r.rdb.LLen(t.Context(), "asynq:{a}:pending").Val() == 3 {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Error("fetched tasks that no server takes stay active")
}
