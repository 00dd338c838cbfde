package worker

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
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
	sent  *fetchCalls
}

// fetchCalls notes for how many tasks Redis is asked, and loses answers.
type fetchCalls struct {
	most []int
	lose int // the answers to so many of the next calls are lost
}

var errLost = fmt.Errorf("read: %w", os.ErrDeadlineExceeded)

func (f *fetchCalls) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *fetchCalls) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if args := cmd.Args(); strings.HasSuffix(fmt.Sprint(args[1]), "_fetch") && err == nil {
			most, _ := args[len(args)-2].(int)
			f.most = append(f.most, most)
			if f.lose > 0 {
				f.lose--
				cmd.SetErr(errLost)
				return errLost
			}
		}
		return err
	}
}

func (f *fetchCalls) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
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
	a.fetcher.heldFor, a.fetcher.emptyFor, a.fetcher.waitFor = time.Hour, time.Hour, time.Hour // however slow this machine is
	c, _ := a.Client().(*client)
	sent := &fetchCalls{}
	rdb.AddHook(sent)
	return &fetchRig{T: t, rdb: rdb, a: a, c: c, plain: asynq.NewClientFromRedisClient(rdb), insp: asynq.NewInspectorFromRedisClient(rdb), sent: sent}
}

func (r *fetchRig) enqueue(queue string, n int) {
	r.Helper()
	for i := range n {
		if _, err := r.plain.Enqueue(asynq.NewTask("t", nil), asynq.Queue(queue), asynq.TaskID(fmt.Sprint(queue, i))); err != nil {
			r.Fatal(err)
		}
	}
}

// fetch asks for a task of a queue. It returns its id, and for how many Redis was asked.
func (r *fetchRig) fetch(queue string) (id string, asked int) {
	r.Helper()
	r.sent.most = nil
	cmd := r.c.fetch(r.Context(), asynqwire.Call{Queue: queue, LeaseEnds: time.Now().Add(30 * time.Second).Unix()})
	for _, n := range r.sent.most {
		asked += n
	}
	text, err := cmd.Text()
	if err != nil {
		return "", asked
	}
	m, err := asynqwire.DecodeMessage([]byte(text))
	if err != nil {
		r.Fatal(err)
	}
	return m.ID, asked
}

// list is one of asynq's lists of a queue, the first to run first.
func (r *fetchRig) list(queue, name string) []string {
	r.Helper()
	ids, err := r.rdb.LRange(context.WithoutCancel(r.Context()), "asynq:{"+queue+"}:"+name, 0, -1).Result()
	if err != nil {
		r.Fatal(err)
	}
	slices.Reverse(ids) // asynq takes from the right
	return ids
}

// While tasks come and workers are free, a fetch asks for more of them, and the server gets
// those without another round trip.
func TestFetchAsksForSeveralTasksWhileTheyCome(t *testing.T) {
	redistest.NeedFunctions(t) // it looks at FCALL
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
		t.Errorf("Redis was asked for %v tasks, want %v", asked, want)
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
	redistest.NeedFunctions(t) // it looks at FCALL
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
		t.Errorf("Redis was asked for %d tasks, want 10", total)
	}
}

// Tasks come in the order in which they were enqueued, however many a fetch asks for.
func TestFetchKeepsTheOrder(t *testing.T) {
	t.Parallel()
	r := newFetchRig(t, 40, "a")
	r.enqueue("a", 40)
	for i := range 40 {
		if id, _ := r.fetch("a"); id != fmt.Sprint("a", i) {
			t.Fatalf("task %d to be fetched is %q", i, id)
		}
	}
}

// Tasks that were fetched and that no server takes are at the front of their queue again, in
// their order, when the adapter is closed.
func TestFetchedTasksGoBackWhenTheAdapterCloses(t *testing.T) {
	redistest.NeedFunctions(t) // it looks at FCALL
	t.Parallel()
	r := newFetchRig(t, 20, "a")
	r.enqueue("a", 9)
	r.a.fetcher.fetchSoon("a", 5)
	if _, n := r.fetch("a"); n != 5 {
		t.Fatalf("Redis was asked for %d tasks after five were woken, want 5", n)
	}
	r.a.Close()
	if got, want := r.list("a", "pending"), []string{"a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8"}; !slices.Equal(got, want) {
		t.Errorf("pending are %v, want %v", got, want)
	}
	if got := r.list("a", "active"); !slices.Equal(got, []string{"a0"}) {
		t.Errorf("active are %v, want the one that a server has", got)
	}
}

// A server that ends between two fetches leaves tasks that it does not take: they go back
// by themselves, soon.
func TestFetchedTasksGoBackWhenNobodyTakesThem(t *testing.T) {
	t.Parallel()
	r := newFetchRig(t, 20, "a")
	r.a.fetcher.heldFor = 20 * time.Millisecond
	r.enqueue("a", 4)
	r.a.fetcher.fetchSoon("a", 4)
	r.fetch("a")
	end := time.Now().Add(30 * time.Second)
	for time.Now().Before(end) {
		if len(r.list("a", "pending")) == 3 {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Error("fetched tasks that no server takes stay active")
}

// The answer to a fetch is lost, as often as go-redis sends the call: the next fetch gets the
// same tasks, and each of them once.
func TestFetchWhoseAnswerIsLostGetsTheSameTasks(t *testing.T) {
	redistest.NeedFunctions(t) // it looks at FCALL
	t.Parallel()
	r := newFetchRig(t, 20, "a")
	r.enqueue("a", 6)
	r.a.fetcher.fetchSoon("a", 3)
	r.sent.lose = 2
	for range 2 {
		if id, _ := r.fetch("a"); id != "" {
			t.Fatalf("%q came though the answer was lost", id)
		}
	}
	for i := range 6 {
		if id, _ := r.fetch("a"); id != fmt.Sprint("a", i) {
			t.Fatalf("task %d to be fetched is %q", i, id)
		}
	}
	if n := len(r.list("a", "active")); n != 6 {
		t.Errorf("%d tasks are active, want 6", n)
	}
}

// The answer to a fetch is lost, and the adapter is closed before the next one: the tasks go
// back, for nobody else knows that they are not running.
func TestFetchWhoseAnswerIsLostGoesBackWhenTheAdapterCloses(t *testing.T) {
	redistest.NeedFunctions(t) // it looks at FCALL
	t.Parallel()
	r := newFetchRig(t, 20, "a")
	r.enqueue("a", 4)
	r.a.fetcher.fetchSoon("a", 3)
	r.sent.lose = 1
	r.fetch("a")
	if n := len(r.list("a", "active")); n != 3 {
		t.Fatalf("%d tasks are active, want 3", n)
	}
	r.a.Close()
	if got, want := r.list("a", "pending"), []string{"a0", "a1", "a2", "a3"}; !slices.Equal(got, want) {
		t.Errorf("pending are %v, want %v", got, want)
	}
}

// A fetch leaves of a task in Redis what asynq's own leaves.
func TestFetchLeavesWhatAsynqsOwnLeaves(t *testing.T) {
	t.Parallel()
	r := newFetchRig(t, 20, "ours", "theirs")
	r.enqueue("ours", 1)
	r.enqueue("theirs", 1)
	r.fetch("ours")
	fetched, done := make(chan struct{}), make(chan struct{})
	srv := asynq.NewServerFromRedisClient(r.rdb, asynq.Config{Queues: map[string]int{"theirs": 1}, LogLevel: asynq.FatalLevel})
	if err := srv.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { close(fetched); <-done; return nil })); err != nil {
		t.Fatal(err)
	}
	<-fetched
	look := func(queue string) map[string]string {
		task := r.rdb.HGetAll(t.Context(), "asynq:{"+queue+"}:t:"+queue+"0").Val()
		task["msg"] = "" // the id is another
		task["active"], task["pending"] = fmt.Sprint(len(r.list(queue, "active"))), fmt.Sprint(len(r.list(queue, "pending")))
		left := time.Until(time.Unix(int64(r.rdb.ZScore(t.Context(), "asynq:{"+queue+"}:lease", queue+"0").Val()), 0))
		task["lease"] = fmt.Sprint(left > 0 && left <= 30*time.Second)
		return task
	}
	if diff := cmp.Diff(look("theirs"), look("ours")); diff != "" {
		t.Errorf("asynq's own (-) and ours (+) differ:\n%s", diff)
	}
	close(done)
	srv.Shutdown()
}

// While Redis is away the answers of many queues are lost. To close the adapter does not take
// the patience for each.
func TestAdapterClosesSoonWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		queues := make(map[string]int)
		for i := range 20 {
			queues[fmt.Sprint("q", i)] = 1
		}
		a, err := NewAdapter(rdb, Config{Logger: zap.NewNop(), Unlimited: UnlimitedAllow, Asynq: asynq.Config{Queues: queues}})
		if err != nil {
			t.Fatal(err)
		}
		a.Server(asynq.Config{Concurrency: 4})
		a.fetcher.waitFor = time.Hour
		rdb.AddHook(silence{})
		for name := range queues {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, _, err := a.fetcher.fetch(ctx, asynqwire.Call{Queue: name, LeaseEnds: time.Now().Add(30 * time.Second).Unix()}); err == nil {
				t.Error("a fetch was answered")
			}
			cancel()
		}
		began := time.Now()
		a.Close()
		if took := time.Since(began); took > closeTimeout+time.Second {
			t.Errorf("it took %v, want %v at most", took, closeTimeout)
		}
	})
}

// silence is a Redis that never answers.
type silence struct{}

func (silence) DialHook(next redis.DialHook) redis.DialHook { return next }

func (silence) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		<-ctx.Done()
		cmd.SetErr(ctx.Err())
		return ctx.Err()
	}
}

func (silence) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
