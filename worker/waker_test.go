package worker_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// A task is deferred for 1.5 s, an operator runs it, it fails for real with a
// long back-off: what the deferral left must not end that.
func TestBackoffAfterADeferralIsKept(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	lim := r.limiter("one", throttle.Sliding(1, 1500*ms))
	r.take(lim, "k")
	cfg := worker.Config{Asynq: asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 5 * time.Second }}}
	r.start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		seen.note(ctx, task)
		switch len(seen.all()) {
		case 1:
			return lim.Acquire(ctx, "k", 1)
		case 2:
			return errGateway
		}
		return nil
	}), cfg)
	r.enqueue("any", "a", "{}", asynq.MaxRetry(3))
	r.eventually("deferred", func() bool { return r.is("a", asynq.TaskStateRetry) })
	if err := r.insp.RunTask("default", "a"); err != nil {
		t.Fatal(err)
	}
	r.eventually("failed", func() bool { i := r.info("a"); return i.Retried == 1 && i.State == asynq.TaskStateRetry })
	r.wantNoTrace("a")
	never(t, 3500*ms, "the back-off of 5s is cut short", func() bool { return len(seen.all()) > 2 })
	seen.ran(t, 3)
	if got := seen.all()[2].at.Sub(seen.all()[1].at); got < 4*time.Second { // asynq cuts off up to a second
		t.Errorf("tried again after %v, want 5s", got)
	}
}

// Entries of the due index that are not true, as a crash between two calls
// could leave them, wake nobody and go.
func TestStaleDueEntriesWakeNobody(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	cfg := worker.Config{Asynq: asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour }}}
	r.start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		seen.note(ctx, task)
		if task.Type() == "fails" {
			return errGateway
		}
		return nil
	}), cfg)
	r.enqueue("fails", "retry", "{}", asynq.MaxRetry(3))
	r.enqueue("fails", "archived", "{}", asynq.MaxRetry(0))
	r.enqueue("fine", "completed", "{}", asynq.Retention(time.Hour))
	r.enqueue("fine", "scheduled", "{}", asynq.ProcessIn(time.Hour))
	seen.ran(t, 3)
	want := map[string]asynq.TaskState{
		"retry": asynq.TaskStateRetry, "archived": asynq.TaskStateArchived,
		"completed": asynq.TaskStateCompleted, "scheduled": asynq.TaskStateScheduled,
	}
	for id, state := range want {
		r.eventually(id, func() bool { return r.is(id, state) })
	}
	for _, place := range []string{"", "%d 1 0123456789abcdef sms 1 0 +1", "nonsense", "%d 1 x * 1 0 ", "sms\x02\x01\x03\x10"} {
		for id := range want {
			entry := id
			if place != "" {
				entry = fmt.Sprintf("\x03%d:%s", len(id), id) + strings.Replace(place, "%d", strconv.FormatInt(time.Now().Unix(), 10), 1)
			}
			r.rdb.ZAdd(t.Context(), "hw:{default}:due", redis.Z{Score: float64(time.Now().UnixMicro()), Member: entry})
		}
		r.eventually("an empty index", func() bool { return r.rdb.Exists(t.Context(), "hw:{default}:due").Val() == 0 })
		for id, state := range want {
			if !r.is(id, state) {
				t.Errorf("place %q: %s is %v, want %v", place, id, r.info(id).State, state)
			}
		}
	}
	never(t, 200*ms, "a run", func() bool { return len(seen.all()) > 3 })
}

// The head leaves while the handler of the second in line still runs: when the second is
// deferred it comes at the head's instant.
func TestPromotionBeforeTheDeferral(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	const per = 3 * time.Second
	lim := r.limiter("one", throttle.Sliding(1, per))
	r.take(lim, "k")
	spent := time.Now()
	leave, goOn := make(chan struct{}), make(chan struct{})
	var attempts atomic.Int32
	r.start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		err := lim.Acquire(ctx, "k", 1)
		if task.Type() == "head" {
			<-leave
			return nil
		}
		if attempts.Add(1) == 1 {
			<-goOn
			return err
		}
		if err == nil {
			seen.note(ctx, task)
		}
		return err
	}), worker.Config{})
	r.enqueue("head", "head", "{}")
	r.eventually("the head", func() bool { return r.peek(lim, "k").Waiting == 1 })
	r.enqueue("second", "second", "{}", asynq.MaxRetry(0))
	r.eventually("the second", func() bool { return r.peek(lim, "k").Waiting == 2 })
	close(leave)
	r.eventually("the promotion", func() bool { return r.rdb.ZScore(t.Context(), "hw:{default}:due", "second").Err() == nil })
	close(goOn)
	seen.ran(t, 1)
	if got := seen.first("second").at.Sub(spent); got > per+700*ms {
		t.Errorf("it came %v after the last permit, want %v: in the place of the head", got, per)
	}
}

// hooked calls after each script that looks at the due index, before the answer
// goes on.
type hooked struct {
	redis.UniversalClient
	looked func()
}

func (c *hooked) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	cmd := c.UniversalClient.EvalSha(ctx, sha, keys, args...)
	if len(keys) == 1 && strings.HasSuffix(keys[0], ":due") && cmd.Err() == nil {
		c.looked()
	}
	return cmd
}

// A task that is deferred while the waker has the answer about the due index on
// its way is woken at its instant and not with the next look, a second later.
func TestDeferredDuringALook(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	const per = 1200 * ms
	lim := r.limiter("sms", throttle.Sliding(1, per))
	var once sync.Once
	var spent time.Time
	armed := make(chan struct{})
	c := &hooked{r.rdb, func() {
		select {
		case <-armed:
		default:
			return
		}
		once.Do(func() {
			spent = r.take(lim, "+1").At
			r.enqueue("sms", "a", to("+1"), asynq.MaxRetry(0))
			r.eventually("deferred", func() bool { return r.is("a", asynq.TaskStateRetry) })
			never(t, 20*ms, "", func() bool { return false }) // the waker knows of it by now
		})
	}}
	r.startOn(c, seen.handler(), policies(phone("sms", per)))
	close(armed)
	seen.ran(t, 1)
	if gap := seen.first("a").grant.At.Sub(spent); gap > per+450*ms {
		t.Errorf("granted %v after the last permit, want %v", gap, per)
	}
}

// Tasks of one key come in the order of their line, before a backlog of others
// that was there first, and the backlog flows beside them.
func TestWokenTasksGoFirstAndInOrder(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	const n, per, backlog = 6, 700 * ms, 3000
	var bulk atomic.Int32
	release := make(chan struct{})
	p, _ := r.start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		if task.Type() == "bulk" {
			bulk.Add(1)
			select {
			case <-time.After(5 * ms):
			case <-release:
			}
			return nil
		}
		seen.note(ctx, task)
		return nil
	}), policies(phone("sms", per)))
	lim := p.Limiter("sms")
	r.take(lim, "+1")
	var want []string
	for i := range n {
		want = append(want, fmt.Sprintf("s%d", i))
		r.deferred(want[i]) // one by one: that is the order of the line
	}
	pipe := asynq.NewClientFromRedisClient(r.rdb)
	for range backlog {
		if _, err := pipe.Enqueue(asynq.NewTask("bulk", nil)); err != nil {
			t.Fatal(err)
		}
	}
	seen.ran(t, n)
	done := bulk.Load()
	if got := seen.ids(); !slices.Equal(got, want) {
		t.Errorf("they ran in the order %v, want %v", got, want)
	}
	r.wantGaps(seen, per)
	if done >= backlog {
		t.Errorf("they ran after the whole backlog")
	}
	t.Logf("%d of %d other tasks ran meanwhile; %+v", done, backlog, p.Stats())
	close(release)
	r.eventually("the backlog", func() bool { return bulk.Load() == backlog })
}

// A type without a rule flows while hundreds wait, and while they come.
func TestOtherTasksDoNotStarve(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const phones, each, per = 150, 3, time.Second
	var sent atomic.Int32
	var mu sync.Mutex
	started := map[string]time.Time{}
	r.start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		if task.Type() == "sms" {
			sent.Add(1)
			return nil
		}
		id, _ := asynq.GetTaskID(ctx)
		mu.Lock()
		defer mu.Unlock()
		started[id] = time.Now()
		return nil
	}), policies(phone("sms", per)))
	for i := range phones * each {
		r.enqueue("sms", fmt.Sprintf("s%d", i), to(fmt.Sprint(i%phones)), asynq.MaxRetry(0))
	}
	var worst int32 // counted, not timed: a busy machine is slow for both
	for i := 0; sent.Load() < phones*each; i++ {
		id, asked, before := fmt.Sprintf("f%d", i), time.Now(), sent.Load()
		r.enqueue("free", id, "{}")
		r.eventually("a free task", func() bool { mu.Lock(); defer mu.Unlock(); return !started[id].IsZero() })
		worst = max(worst, sent.Load()-before)
		if time.Since(asked) > within {
			t.Fatal("the tasks with a rule do not end")
		}
	}
	if most := int32(2 * phones); worst > most { // as many come due at once
		t.Errorf("%d tasks with a rule ran while one without waited, want %d at most", worst, most)
	}
	t.Logf("at most %d tasks with a rule ran while one without waited", worst)
	r.eventually("an empty queue", func() bool { return r.queueInfo().Size == 0 })
}
