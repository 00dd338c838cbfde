package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/asynqwire"
	"github.com/headwayq/headway/internal/redistest"
)

// A server that waited so long for its turn that its lease has ended gets no task: asynq would run it, not write its
// end, and run it again or archive it.
func TestFetchUnderALeaseThatHasEnded(t *testing.T) {
	t.Parallel()
	r := newFetchRig(t, 20, "a")
	r.enqueue("a", 1)
	for range 2 { // once while the queue is as it was, once after a fetch
		task, foundEmpty, err := r.a.fetcher.fetch(t.Context(), asynqwire.Call{Queue: "a", LeaseEnds: time.Now().Add(-time.Second).Unix()})
		if task != nil || foundEmpty || err != nil {
			t.Fatalf("fetch = %v, %v, %v, want no task, and asynq to come again at once", task, foundEmpty, err)
		}
	}
	info, err := r.insp.GetTaskInfo("a", "a0")
	if err != nil {
		t.Fatal(err)
	}
	if info.State != asynq.TaskStatePending || info.Retried != 0 {
		t.Errorf("the task is %v and has failed %d times, want it pending", info.State, info.Retried)
	}
	if id, _ := r.fetch("a"); id != "a0" {
		t.Errorf("the next fetch, with a lease of its own, brings %q, want the task", id)
	}
}

// A process stood still after a fetch, so that its task is held for too long. The next fetch gives the task back and
// asks anew, also where the task would have taken the last free worker.
func TestFetchAfterTheProcessStoodStill(t *testing.T) {
	t.Parallel()
	for _, queues := range [][]string{{"a"}, {"a", "b"}} {
		r := newFetchRig(t, 1, queues...)
		r.enqueue("a", 2)
		held := r.a.fetcher.heldFor
		r.a.fetcher.heldFor = 0
		if id, asked := r.fetch("a"); id != "" || asked != 1 {
			t.Fatalf("%v: %q came, and %d were asked for, want that the one is held for too long", queues, id, asked)
		}
		r.a.fetcher.heldFor = held
		if id, _ := r.fetch("a"); id != "a0" {
			t.Errorf("%v: the next fetch brings %q, want the task", queues, id)
		}
	}
}

// afterwards lets the answer to a script be on its way for a while.
type afterwards struct {
	once sync.Once
	late time.Duration
}

func (*afterwards) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a *afterwards) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if redistest.IsScript(cmd) && !redistest.IsUnknown(err) {
			a.once.Do(func() { time.Sleep(a.late) })
		}
		return err
	}
}

func (*afterwards) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// The answer to a fetch comes when most of the lease is over: the tasks go back to the front, in their order, and come
// again with a lease that lasts.
func TestFetchThatTookTheLeaseGivesTheTasksBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		a, err := NewAdapter(rdb, Config{Logger: zap.NewNop(), Unlimited: UnlimitedAllow, Asynq: asynq.Config{Queues: map[string]int{"a": 1}}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(a.Close)
		a.Server(asynq.Config{Concurrency: 9})
		c, _ := a.Client().(*client)
		r := &fetchRig{T: t, rdb: rdb, a: a, c: c, plain: asynq.NewClientFromRedisClient(rdb), sent: &fetchCalls{}}
		r.enqueue("a", 4)
		a.fetcher.fetchSoon("a", 3)
		rdb.AddHook(&afterwards{late: 20 * time.Second})
		if id, _ := r.fetch("a"); id != "" {
			t.Fatalf("%q came with a lease of 10 s", id)
		}
		if got, want := r.list("a", "pending"), []string{"a0", "a1", "a2", "a3"}; !slices.Equal(got, want) {
			t.Errorf("pending are %v, want %v", got, want)
		}
		for i := range 4 {
			if id, _ := r.fetch("a"); id != fmt.Sprint("a", i) {
				t.Fatalf("task %d to be fetched is %q", i, id)
			}
		}
	})
}

// nodeAway is a Redis of which one node does not answer: what is about its queue waits, or fails.
type nodeAway struct {
	mu    sync.Mutex
	queue string        // "" while all answer
	hold  chan struct{} // calls wait until it is closed; nil when they fail at once
	calls int           // to that node
}

func (n *nodeAway) set(queue string, hold chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.queue, n.hold, n.calls = queue, hold, 0
}

func (n *nodeAway) asked() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.calls
}

func (*nodeAway) DialHook(next redis.DialHook) redis.DialHook { return next }

func (n *nodeAway) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		n.mu.Lock()
		away := n.queue != "" && redistest.IsScript(cmd) && (n.queue == "*" || strings.Contains(fmt.Sprint(cmd.Args()...), "{"+n.queue+"}"))
		hold := n.hold
		if away {
			n.calls++
		}
		n.mu.Unlock()
		if away && hold == nil {
			cmd.SetErr(errLost)
			return errLost
		}
		if away {
			<-hold
		}
		return next(ctx, cmd)
	}
}

func (*nodeAway) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// ask asks for a task of a queue as asynq does, and returns its id.
func (r *fetchRig) ask(queue string) (id string, err error) {
	r.Helper()
	text, err := r.c.fetch(r.Context(), asynqwire.Call{Queue: queue, LeaseEnds: time.Now().Add(30 * time.Second).Unix()}).Text()
	if err != nil {
		return "", err
	}
	m, err := asynqwire.DecodeMessage([]byte(text))
	if err != nil {
		r.Fatal(err)
	}
	return m.ID, nil
}

// A queue whose node fails does not end asynq's round over its queues, and is left out for a while. Only when every
// queue fails asynq gets the error.
func TestFetchGoesOnToTheNextQueueWhenOneFails(t *testing.T) {
	t.Parallel()
	r := newFetchRig(t, 20, "a", "b")
	r.enqueue("a", 1)
	r.enqueue("b", 9)
	node := &nodeAway{}
	r.rdb.AddHook(node)
	node.set("a", nil)
	began := time.Now()
	for i := range 9 {
		if id, err := r.ask("a"); !errors.Is(err, redis.Nil) {
			t.Fatalf("a queue that fails answers %q, %v, want redis.Nil", id, err)
		}
		if id, err := r.ask("b"); id != fmt.Sprint("b", i) {
			t.Fatalf("task %d of the other queue is %q, %v", i, id, err)
		}
	}
	// it is asked after 40 ms, 80 ms, 160 ms, and so on
	if most := 2 + int(time.Since(began)/fetchPauseMin); node.asked() > most {
		t.Errorf("the queue that fails was asked %d times, want %d at most", node.asked(), most)
	}
	node.set("*", nil)
	failed := 0
	for range 4 {
		for _, queue := range []string{"a", "b"} {
			id, err := r.ask(queue)
			if id != "" || err == nil {
				t.Fatalf("%q came from a Redis that is away", id)
			}
			if !errors.Is(err, redis.Nil) {
				failed++
				break // so does asynq
			}
		}
	}
	if failed != 4 {
		t.Errorf("while all queues fail, %d of 4 rounds of asynq end with an error, want all", failed)
	}
	node.set("", nil)
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		if id, _ := r.ask("a"); id == "a0" {
			return
		}
	}
	t.Error("the queue is not fetched from any more after its node is back")
}

// A node that is silent does not keep a server from its other queues, and the call to it goes on. It is not sent twice,
// and the tasks that it brings run.
func TestFetchDoesNotWaitForASilentQueue(t *testing.T) {
	t.Parallel()
	r := newFetchRig(t, 20, "a", "b")
	r.a.fetcher.waitFor = 10 * time.Millisecond
	r.enqueue("a", 2)
	r.enqueue("b", 9)
	node, hold := &nodeAway{}, make(chan struct{})
	r.rdb.AddHook(node)
	node.set("a", hold)
	for range 2 { // the second time nobody waits
		if id, err := r.ask("a"); !errors.Is(err, redis.Nil) {
			t.Fatalf("a queue that is silent answers %q, %v, want redis.Nil", id, err)
		}
	}
	var got []string
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end) && len(got) < 9; {
		if id, _ := r.ask("b"); id != "" { // on a machine that is slow the answer comes after the patience
			got = append(got, id)
		}
	}
	if want := []string{"b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7", "b8"}; !slices.Equal(got, want) {
		t.Fatalf("the other queue brought %v, want %v", got, want)
	}
	if n := node.asked(); n != 1 {
		t.Errorf("the silent node was asked %d times, want once", n)
	}
	node.set("", nil)
	close(hold)
	var late []string
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end) && len(late) < 2; {
		if id, _ := r.ask("a"); id != "" {
			late = append(late, id)
		}
	}
	if want := []string{"a0", "a1"}; !slices.Equal(late, want) {
		t.Errorf("the queue that was silent brought %v, want %v", late, want)
	}
}

// lostRequeue lets one call that gives tasks back happen, and loses its answer late.
type lostRequeue struct {
	once sync.Once
	hold chan struct{} // the answer is lost when it is closed
}

func (*lostRequeue) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *lostRequeue) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if args := cmd.Args(); len(args) > 1 && strings.HasSuffix(fmt.Sprint(args[1]), "_requeue") && err == nil {
			l.once.Do(func() {
				<-l.hold
				cmd.SetErr(errLost)
				err = errLost
			})
		}
		return err
	}
}

func (*lostRequeue) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A task that was held for too long went back to its queue, where another pool may take it, and the answer to that call was lost after all
// servers had gone on to the other queues. It comes again by a fetch alone: else it would run twice.
func TestFetchedTaskThatWentBackIsFetchedAnew(t *testing.T) {
	t.Parallel()
	queues := []string{"a"}
	for i := range 19 {
		queues = append(queues, fmt.Sprint("b", i))
	}
	r := newFetchRig(t, 20, queues...)
	r.enqueue("a", 1)
	held := r.a.fetcher.heldFor
	r.a.fetcher.heldFor = 0
	if id, asked := r.fetch("a"); id != "" || asked != 1 {
		t.Fatalf("%q came, and %d were asked for, want that the one is held for too long", id, asked)
	}
	r.a.fetcher.heldFor, r.a.fetcher.waitFor = held, 100*time.Millisecond // 2 s to come round to all queues
	lost := &lostRequeue{hold: make(chan struct{})}
	r.rdb.AddHook(lost)
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end) && len(r.list("a", "pending")) == 0; {
		if id, _ := r.ask("a"); id != "" {
			t.Fatalf("%q comes although it was held for too long", id)
		}
	}
	close(lost.hold)
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		if id, _ := r.ask("a"); id != "" {
			if pending, active := r.list("a", "pending"), r.list("a", "active"); len(pending) > 0 || !slices.Equal(active, []string{"a0"}) {
				t.Errorf("%q runs while %v are pending and %v active: another pool could run it, too", id, pending, active)
			}
			return
		}
	}
	t.Error("the task does not come again")
}

// The adapter is closed while a call is under way for which no server waits: what it brings goes back.
func TestFetchUnderWayGoesBackWhenTheAdapterCloses(t *testing.T) {
	t.Parallel()
	r := newFetchRig(t, 20, "a", "b")
	r.a.fetcher.waitFor = 10 * time.Millisecond
	r.enqueue("a", 2)
	node, hold := &nodeAway{}, make(chan struct{})
	r.rdb.AddHook(node)
	node.set("a", hold)
	_, _ = r.ask("a")
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		r.a.Close()
	}()
	node.set("", nil)
	close(hold)
	<-closed
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if slices.Equal(r.list("a", "pending"), []string{"a0", "a1"}) && len(r.list("a", "active")) == 0 {
			return
		}
	}
	t.Errorf("pending are %v, active are %v, want both pending", r.list("a", "pending"), r.list("a", "active"))
}
