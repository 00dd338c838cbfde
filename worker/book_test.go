package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/judge"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// producer is a client that books, on a connection of its own.
func (r *rig) producer(policies ...queue.Policy) *queue.Client {
	r.Helper()
	return producerOn(r.T, r.srv.Client(r.T), policies...)
}

func producerOn(t *testing.T, rdb redis.UniversalClient, policies ...queue.Policy) *queue.Client {
	t.Helper()
	c, err := queue.NewClient(rdb, queue.ClientConfig{Policies: policies})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// smsTo are n tasks to one phone, named by a prefix.
func smsTo(phone, prefix string, n int) []*queue.Task {
	tasks := make([]*queue.Task, n)
	for i := range tasks {
		tasks[i] = queue.NewTask("sms", []byte(to(phone)), asynq.TaskID(fmt.Sprintf("%s%03d", prefix, i)))
	}
	return tasks
}

// wantBooked fails for what was not booked.
func wantBooked(t *testing.T, results []queue.Result) {
	t.Helper()
	for i, r := range results {
		if r.Err != nil {
			t.Fatalf("booking %d: %v", i, r.Err)
		}
	}
}

// A backlog of jobs on one key from two clients at once: in the order of the line,
// never too early, and each is taken by a worker once. In virtual time no machine is slow; on a real
// server the bounds of time hold while the machine has time for it.
func TestBookedBacklogIsAdmittedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const window = 300 * ms // of which a grant lives a tenth
	policy := phone("sms", window)
	r.bookedBacklog(30, window, func(s worker.Stats) bool { return s.Stale > 0 || s.LatenessMax > 50*ms }, r.producer(policy), r.producer(policy))
}

func TestVirtualBookedBacklogIsAdmittedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clients, _ := mini(t, 3)
		r := rigOn(t, nil, clients[0])
		policy := phone("sms", 100*ms)
		r.bookedBacklog(100, 100*ms, func(worker.Stats) bool { return false }, producerOn(t, clients[1], policy), producerOn(t, clients[2], policy))
	})
}

// bookedBacklog lets two producers book n jobs at once. slow says that the machine stood still: for longer than
// a grant of this window lives, or than a line waits for somebody. Then a neighbour passes, and the
// job is taken again.
func (r *rig) bookedBacklog(n int, window time.Duration, slow func(worker.Stats) bool, producers ...*queue.Client) {
	r.Helper()
	t, seen := r.T, &runs{}
	pool, _ := r.start(seen.handler(), policies(phone("sms", window)))
	var wg sync.WaitGroup
	results := make([][]queue.Result, 2)
	for i, c := range producers {
		tasks := smsTo("+1", fmt.Sprint("c", i, "-"), n/2)
		wg.Go(func() { results[i] = c.BookMany(t.Context(), tasks) })
	}
	wg.Wait()
	all := slices.Concat(results...)
	wantBooked(t, all)
	slices.SortFunc(all, func(a, b queue.Result) int { return a.At.Compare(b.At) })
	seen.ran(t, n)
	r.wantGaps(seen, window)
	r.eventually("all done", func() bool { return r.queueInfo().ProcessedTotal == n })
	r.wantQueue(n, 0, 0)
	stats := pool.Stats()
	t.Logf("%+v", stats)
	// When a job goes late, those that are booked after that are booked as much later.
	for i, b := range all {
		if want := all[0].At.Add(time.Duration(i) * window); b.At.Sub(want).Abs() > 50*ms+stats.LatenessMax {
			t.Errorf("%s is booked %v after the first, want %v", b.Info.ID, b.At.Sub(all[0].At), want.Sub(all[0].At))
		}
	}
	if slow(stats) {
		return
	}
	if stats.LatenessP50 > 25*ms {
		t.Errorf("half of the jobs were later than %v", stats.LatenessP50)
	}
	var want []string
	for _, b := range all {
		want = append(want, b.Info.ID)
	}
	if got := seen.ids(); !slices.Equal(got, want) {
		t.Errorf("they ran in the order %v, want %v", got, want)
	}
	if stats.Admissions > int64(n)*105/100 {
		t.Errorf("%d admissions for %d jobs, want at most 1.05 each", stats.Admissions, n)
	}
	ideal := time.Duration(n-1) * window
	if total := seen.all()[n-1].at.Sub(seen.all()[0].at); total > ideal*105/100 {
		t.Errorf("%d jobs took %v, want %v", n, total, ideal)
	}
}

// A booking that comes before all others is not left to the next look.
func TestPoolIsNotifiedOfABooking(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	policy := phone("sms", 300*ms)
	r.start(seen.handler(), policies(policy))
	r.eventually("the pool listens", func() bool {
		return r.rdb.PubSubNumSub(t.Context(), "hw:{default}:due").Val()["hw:{default}:due"] == 1
	})
	c := r.producer(policy)
	for i := range 3 {
		phone := fmt.Sprint("+", i)
		wantBooked(t, c.BookMany(t.Context(), smsTo(phone, phone+"-", 2)))
		seen.ran(t, 2*(i+1))
	}
	for _, n := range seen.all() {
		if late := n.at.Sub(n.grant.Promised); late > 600*ms {
			t.Errorf("%s ran %v after its instant", n.id, late)
		}
		if n.grant.Promised.IsZero() {
			t.Errorf("%s had no place in the line, want the one that was booked", n.id)
		}
	}
}

// Two pools, and the first instants spread over many keys with a provider on top.
func TestBookedUnderSeveralRules(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	policy := queue.Policy{Type: "sms", Rules: []queue.Rule{
		{Name: "phone", Limit: throttle.Sliding(1, 3*time.Second), Key: queue.MustJSONKey("$.to")},
		{Name: "provider", Limit: throttle.Sliding(5, 600*ms), Constant: "acme"}, // a grant lives a tenth of that
	}}
	var pools []*worker.Pool
	for range 2 {
		p, _ := r.startOn(r.srv.Client(t), seen.handler(), policies(policy))
		pools = append(pools, p)
	}
	var tasks []*queue.Task
	for i := range 60 {
		tasks = append(tasks, queue.NewTask("sms", []byte(to(fmt.Sprint("+", i%20)))))
	}
	results := r.producer(policy).BookMany(t.Context(), tasks)
	wantBooked(t, results)
	rules := map[string]int{}
	for _, b := range results {
		rules[b.Rule]++
	}
	if rules["provider"] != 15 || rules["phone"] != 40 || rules[""] != 5 {
		t.Errorf("they wait for %v, want 40 for their phones, 15 for the provider, and 5 that may run", rules)
	}
	seen.ran(t, len(tasks))
	byPhone, all := map[string][]time.Time{}, []time.Time{}
	for _, n := range seen.all() {
		byPhone[n.payload] = append(byPhone[n.payload], n.grant.At)
		all = append(all, n.grant.At)
	}
	for _, at := range byPhone {
		wantAtMost(t, at, 1, 3*time.Second)
	}
	wantAtMost(t, all, 5, 600*ms)
	admissions := int64(0)
	for _, p := range pools {
		admissions += p.Stats().Admissions
	}
	t.Logf("%d admissions for %d jobs", admissions, len(tasks))
	if admissions > 2*int64(len(tasks)) {
		t.Errorf("%d admissions for %d jobs under two rules, want at most two each", admissions, len(tasks))
	}
}

// wantAtMost holds grants against a sliding limit.
func wantAtMost(t *testing.T, at []time.Time, n int, window time.Duration) {
	t.Helper()
	slices.SortFunc(at, time.Time.Compare)
	spent := make([]judge.Spent, len(at))
	for i, instant := range at {
		spent[i] = judge.Spent{At: instant.UnixMicro(), Cost: 1}
	}
	for _, i := range judge.Windows(spent, n, window) {
		t.Errorf("%d grants within %v, want at most %d in %v", n+1, at[i].Sub(at[i-n]), n, window)
	}
}

// An asynq server that knows nothing of limits runs what was booked.
func TestPlainServerRunsWhatWasBooked(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	policy := phone("sms", 300*ms)
	wantBooked(t, r.producer(policy).BookMany(t.Context(), smsTo("+1", "t", 3)))
	srv := asynq.NewServerFromRedisClient(r.srv.Client(t), asynq.Config{Concurrency: 2, DelayedTaskCheckInterval: 100 * ms, TaskCheckInterval: 50 * ms, LogLevel: asynq.ErrorLevel})
	if err := srv.Start(seen.handler()); err != nil {
		t.Fatal(err)
	}
	defer srv.Shutdown()
	seen.ran(t, 3)
	r.eventually("all done", func() bool { return r.queueInfo().ProcessedTotal == 3 })
	r.wantQueue(3, 0, 0)
}

// dying is the connection of a process that dies when it is about to enqueue.
type dying struct {
	redis.UniversalClient
	dead atomic.Bool
}

var errDead = errors.New("the process is dead")

func (c *dying) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	if c.dead.Load() || slices.ContainsFunc(keys, func(k string) bool { return strings.Contains(k, ":sent:") }) {
		c.dead.Store(true)
		return redis.NewCmdResult(nil, errDead)
	}
	return c.UniversalClient.EvalSha(ctx, sha, keys, args...)
}

// A process dies between its bookings and the enqueueing. The bookings expire: the tasks
// behind them come in their order, at their own instants, and nothing breaks the limit. In
// virtual time no machine is slow: on a real one a task that comes late for its window is passed.
func TestVirtualProducerDiesBeforeItEnqueues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n, window = 10, 400 * ms
		clients, _ := mini(t, 2)
		r, seen := rigOn(t, nil, clients[0]), &runs{}
		policy := phone("sms", window)
		dead := producerOn(t, &dying{UniversalClient: r.rdb}, policy)
		for i, b := range dead.BookMany(t.Context(), smsTo("+1", "dead", n)) {
			if !errors.Is(b.Err, errDead) {
				t.Errorf("booking %d: %v, want the end", i, b.Err)
			}
		}
		limiter := r.limiter("sms", throttle.Sliding(1, window))
		if got := r.peek(limiter, "+1").Waiting; got != n {
			t.Fatalf("%d wait in the line, want the %d that nobody enqueued", got, n)
		}
		results := producerOn(t, clients[1], policy).BookMany(t.Context(), smsTo("+1", "t", n))
		wantBooked(t, results)
		pool, _ := r.start(seen.handler(), policies(policy))
		seen.ran(t, n)
		r.wantGaps(seen, window)
		for _, b := range results {
			if late := seen.first(b.Info.ID).grant.At.Sub(b.At); late > 3*window {
				t.Errorf("%s was granted %v after its booking", b.Info.ID, late)
			}
		}
		if got := seen.ids(); !slices.IsSorted(got) {
			t.Errorf("they ran in the order %v, want that of the line", got)
		}
		r.eventually("an empty line", func() bool { return r.peek(limiter, "+1").Waiting == 0 })
		if got := pool.Stats().Admissions; got != n {
			t.Errorf("%d admissions for %d jobs, want one each", got, n)
		}
	})
}

// An operator deletes what was booked, or runs it now: the line goes on.
func TestOperatorActsOnBookings(t *testing.T) {
	t.Parallel()
	const window = 300 * ms
	r, seen := newRig(t), &runs{}
	policy := phone("sms", window)
	limiter := r.limiter("sms", throttle.Sliding(1, window))
	wantBooked(t, r.producer(policy).BookMany(t.Context(), smsTo("+1", "t", 6)))
	// the key is closed, so that no task is late before the pool runs: others pass a late one
	if _, err := limiter.CloseKey(t.Context(), "+1", time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := r.insp.DeleteTask("default", "t001"); err != nil {
		t.Fatal(err)
	}
	if err := r.insp.ArchiveTask("default", "t002"); err != nil {
		t.Fatal(err)
	}
	if err := r.insp.RunTask("default", "t004"); err != nil { // not before its turn
		t.Fatal(err)
	}
	r.start(seen.handler(), policies(policy))
	r.eventually("t004 waits for its turn again", func() bool { return r.is("t004", asynq.TaskStateRetry) })
	if err := r.inspector(policy).OpenKey(t.Context(), "sms", "+1", aTest); err != nil {
		t.Fatal(err)
	}
	seen.ran(t, 4)
	if got, want := seen.ids(), []string{"t000", "t003", "t004", "t005"}; !slices.Equal(got, want) {
		t.Errorf("they ran in the order %v, want %v", got, want)
	}
	r.wantGaps(seen, window)
	r.eventually("an empty line", func() bool { return r.peek(limiter, "+1").Waiting == 0 })
}

// A limit that changes re-plans what was booked at enqueue, too.
func TestChangedLimitMovesBookings(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	policy := phone("sms", time.Hour)
	pool, _ := r.start(seen.handler(), policies(policy))
	wantBooked(t, r.producer(policy).BookMany(t.Context(), smsTo("+1", "t", 5)))
	seen.ran(t, 1)
	if _, err := pool.Limiter("sms").SetLimit(t.Context(), throttle.Sliding(1, 500*ms), throttle.SetLimitOptions{}); err != nil {
		t.Fatal(err)
	}
	seen.ran(t, 5)
	if got := seen.ids(); !slices.IsSorted(got) {
		t.Errorf("they ran in the order %v", got)
	}
	r.wantGaps(seen, 500*ms)
}

// A task of another queue, unique, with all of asynq's options, is booked, woken and
// run once; its lock is free after that.
func TestBookedUniqueTask(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	policy := phone("sms", 400*ms)
	cfg := policies(policy)
	cfg.Asynq.Queues = map[string]int{"mail": 1}
	r.start(seen.handler(), cfg)
	c := r.producer(policy)
	opts := []asynq.Option{asynq.Queue("mail"), asynq.MaxRetry(0), asynq.Timeout(time.Minute), asynq.Retention(time.Minute)}
	wantBooked(t, c.BookMany(t.Context(), smsTo("+1", "t", 2), opts...))
	unique := queue.NewTask("sms", []byte(to("+1")), append(opts, asynq.Unique(time.Hour), asynq.TaskID("u"))...)
	if _, err := c.Book(t.Context(), unique); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Book(t.Context(), unique, asynq.TaskID("v")); !errors.Is(err, asynq.ErrDuplicateTask) {
		t.Errorf("Book of the same = %v, want ErrDuplicateTask", err)
	}
	seen.ran(t, 3)
	r.wantGaps(seen, 400*ms)
	r.eventually("kept as completed", func() bool {
		info, err := r.insp.GetTaskInfo("mail", "u")
		return err == nil && info.State == asynq.TaskStateCompleted && info.Retried == 0 && info.MaxRetry == 0
	})
	if _, err := c.Book(t.Context(), unique, asynq.TaskID("w")); err != nil {
		t.Errorf("Book after it ran = %v, want the lock to be free", err)
	}
	seen.ran(t, 4)
}

// Every third answer to a producer is lost. Its Redis client asks again, and all is
// booked, enqueued and run once.
func TestBookedThroughLostReplies(t *testing.T) {
	t.Parallel()
	const n, window = 15, time.Second
	r, seen := newRig(t), &runs{}
	policy := phone("sms", window)
	pool, _ := r.start(seen.handler(), policies(policy))
	wantBooked(t, r.producer(policy).BookMany(t.Context(), smsTo("+1", "s", 1)))
	seen.ran(t, 1) // or a place of now would be gone by the time that its task is there
	proxy := redistest.NewProxy(t, r.srv.Addr())
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr(), MinRetryBackoff: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	c, err := queue.NewClient(rdb, queue.ClientConfig{Policies: []queue.Policy{policy}})
	if err != nil {
		t.Fatal(err)
	}
	requests := 0
	proxy.CutReplies(func(request []byte) bool {
		if !redistest.RunsScript(request) {
			return false
		}
		requests++
		return requests%3 != 0
	})
	tasks := smsTo("+1", "t", n)
	var results []queue.Result
	for i := 0; i < n; i += 3 {
		results = append(results, c.BookMany(t.Context(), tasks[i:i+3])...)
	}
	proxy.CutReplies(nil)
	wantBooked(t, results)
	for i := 1; i < n; i++ {
		if a, b := results[i-1].Info, results[i].Info; b.NextProcessAt.Sub(a.NextProcessAt) < window {
			t.Errorf("%s was booked for %v, and %s, which came behind it, for %v", a.ID, a.NextProcessAt, b.ID, b.NextProcessAt)
		}
	}
	if proxy.Cuts() < n/3 {
		t.Errorf("%d answers were lost, want more", proxy.Cuts())
	}
	seen.ran(t, n+1)
	r.eventually("all done", func() bool { return r.queueInfo().ProcessedTotal == n+1 })
	for _, task := range results {
		if got := seen.count(task.Info.ID); got != 1 {
			t.Errorf("%s ran %d times, want once", task.Info.ID, got)
		}
	}
	if got := seen.ids(); !slices.IsSorted(got) {
		t.Errorf("they ran in the order %v", got)
	}
	r.wantGaps(seen, window)
	r.wantQueue(n+1, 0, 0)
	t.Logf("%d answers lost, %d admissions for %d jobs", proxy.Cuts(), pool.Stats().Admissions, n+1)
}
