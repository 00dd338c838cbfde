package queue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

func TestBookManyOfTheSame(t *testing.T) {
	t.Parallel()
	d := newBookingRig(t, perMinute())
	results := d.BookMany(t.Context(), []*Task{
		smsTo("+1", asynq.TaskID("a")), smsTo("+1"), smsTo("+1", asynq.TaskID("a")), smsTo("+1", asynq.Unique(time.Hour)),
		smsTo("+1", asynq.Unique(time.Hour)), smsTo("+1"),
	})
	for i, want := range []struct {
		wait time.Duration
		err  error
	}{{0, nil}, {time.Minute, nil}, {0, asynq.ErrTaskIDConflict}, {2 * time.Minute, nil}, {0, asynq.ErrDuplicateTask}, {3 * time.Minute, nil}} {
		if r := results[i]; r.Wait != want.wait || !errors.Is(r.Err, want.err) || (r.Info == nil) != (want.err != nil) {
			t.Errorf("booking %d = %+v, want a wait of %v, %v", i, r, want.wait, want.err)
		}
	}
}

func TestManyAreAnsweredInOrder(t *testing.T) {
	t.Parallel()
	d := newBookingRigOnOne(t, "it counts calls: a Cluster gets one for each hash slot", perMinute())
	var tasks []*Task
	for i := range 250 {
		opts := []asynq.Option{asynq.Queue([]string{"default", "mail"}[i%2])}
		switch i {
		case 3:
			tasks = append(tasks, NewTask("sms", []byte(`{}`)))
			continue
		case 4:
			tasks = append(tasks, nil)
			continue
		case 5:
			opts = append(opts, asynq.Timeout(time.Millisecond))
		case 6:
			opts = append(opts, asynq.Queue(" "))
		}
		tasks = append(tasks, smsTo(fmt.Sprint("+", i), opts...))
	}
	calls := &tally{UniversalClient: d.timed}
	c := newClient(t, calls, perMinute())
	for name, many := range map[string]func(context.Context, []*Task, ...asynq.Option) []Result{"EnqueueMany": c.EnqueueMany, "BookMany": c.BookMany} {
		calls.n = 0
		results := many(t.Context(), tasks)
		if len(results) != len(tasks) {
			t.Fatalf("%s: %d results, want %d", name, len(results), len(tasks))
		}
		for i, r := range results {
			if i >= 3 && i <= 6 {
				if r.Err == nil || r.Info != nil {
					t.Errorf("%s: task %d = %+v, want an error", name, i, r)
				}
				continue
			}
			if r.Err != nil || string(r.Info.Payload) != string(tasks[i].payload) || r.Info.Queue != []string{"default", "mail"}[i%2] {
				t.Errorf("%s: task %d = %+v, %v, want it enqueued", name, i, r.Info, r.Err)
			}
		}
		if want := map[string]int{"EnqueueMany": 4, "BookMany": 5 + 6}[name]; calls.n > want {
			t.Errorf("%s: %d script calls for %d tasks, want at most %d", name, calls.n, len(tasks), want)
		}
	}
	for _, q := range []string{"default", "mail"} {
		pending := d.raw.LRange(t.Context(), "asynq:{"+q+"}:pending", 0, -1).Val()
		if len(pending) < 122 {
			t.Errorf("%d tasks are pending in %s", len(pending), q)
		}
		if !d.raw.SIsMember(t.Context(), "asynq:queues", q).Val() {
			t.Errorf("%s is not named in asynq:queues", q)
		}
	}
	if got := c.EnqueueMany(t.Context(), nil); len(got) != 0 {
		t.Errorf("EnqueueMany of nothing = %v", got)
	}
}

type tally struct {
	redis.UniversalClient
	n int
}

func (c *tally) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	cmd := c.UniversalClient.EvalSha(ctx, sha, keys, args...)
	if !redistest.IsUnknown(cmd.Err()) {
		c.n++
	}
	return cmd
}

func (c *tally) Eval(ctx context.Context, text string, keys []string, args ...any) *redis.Cmd {
	return c.UniversalClient.Eval(ctx, text, keys, args...)
}

func TestLostRepliesEnqueueOnce(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	rdb, proxy := redistest.Behind(t, srv, nil)
	raw := srv.Client(t)
	c := newClient(t, rdb, perMinute())
	for name, lost := range map[string]string{"the enqueueing": ":sent:", "the booking": ":line", "the look": "exists", "the name": "sadd"} {
		tasks := func(n int) []*Task {
			return []*Task{
				smsTo(name, asynq.TaskID(fmt.Sprint(name, n))), smsTo(name), smsTo(name, asynq.Unique(time.Hour), asynq.Queue(fmt.Sprint("q", n))),
			}
		}
		for n, many := range []func(context.Context, []*Task, ...asynq.Option) []Result{c.BookMany, c.EnqueueMany} {
			before := proxy.Cuts()
			proxy.CutNext(func(request []byte) bool { return bytes.Contains(request, []byte(lost)) })
			if name == "the name" {
				many = newClient(t, rdb, perMinute()).BookMany // who has not named it yet
			}
			for i, r := range many(t.Context(), tasks(n)) {
				if r.Err != nil {
					t.Errorf("%s lost: task %d: %v", name, i, r.Err)
				}
			}
			if n == 0 && proxy.Cuts() == before {
				t.Errorf("%s: no reply was lost", name)
			}
			proxy.CutNext(nil)
		}
	}
	hashes := redistest.Keys(t, raw, "asynq:*:t:*")
	if want := 4 * 2 * 3; len(hashes) != want {
		t.Errorf("%d tasks in Redis, want %d", len(hashes), want)
	}
	for _, id := range raw.LRange(t.Context(), "asynq:{default}:pending", 0, -1).Val() {
		if n := raw.LPosCount(t.Context(), "asynq:{default}:pending", id, 0, redis.LPosArgs{}).Val(); len(n) != 1 {
			t.Errorf("%s is pending %d times", id, len(n))
		}
	}
}

func TestManyWithoutRedis(t *testing.T) {
	t.Parallel()
	d := newBookingRig(t, perMinute())
	d.booked("+1", 0)
	before := redistest.Content(t, d.raw)
	for _, on := range []string{":sent:", ":line"} {
		deaf := &deaf{UniversalClient: d.timed, on: on}
		c := newClient(t, deaf, perMinute())
		tasks := make([]*Task, 250)
		for i := range tasks {
			tasks[i] = smsTo("+1")
		}
		for i, r := range c.BookMany(t.Context(), tasks) {
			if !errors.Is(r.Err, io.ErrUnexpectedEOF) && !errors.Is(r.Err, throttle.ErrUnavailable) {
				t.Errorf("%s, task %d = %v, want that of Redis", on, i, r.Err)
			}
		}
		if most := map[string]int{":sent:": 1, ":line": 5}[on]; deaf.n > most { // twice for each part of the first hundred, and once to give back
			t.Errorf("%s: asked %d times, want %d at most", on, deaf.n, most)
		}
		if after := redistest.Content(t, d.raw); on == ":sent:" && !cmp.Equal(before, after) {
			t.Errorf("%s: Redis holds (+) what it did not before (-):\n%s", on, cmp.Diff(before, after))
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, r := range d.BookMany(ended, []*Task{smsTo("+1"), smsTo("+1")}) {
		if !errors.Is(r.Err, context.Canceled) {
			t.Errorf("with an ended context: %v, want context.Canceled", r.Err)
		}
	}
}

type deaf struct {
	redis.UniversalClient
	on string
	n  int
}

func (c *deaf) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	if slices.ContainsFunc(keys, func(k string) bool { return strings.Contains(k, c.on) }) {
		c.n++
		return redis.NewCmdResult(nil, io.ErrUnexpectedEOF)
	}
	return c.UniversalClient.EvalSha(ctx, sha, keys, args...)
}

// A task of a group goes to asynq by itself, and not before those that come before it.
func TestEnqueueManyKeepsTheOrderOfGroups(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	c := newClient(t, rdb)
	results := c.EnqueueMany(t.Context(), []*Task{
		smsTo("+1", asynq.TaskID("a")), smsTo("+1", asynq.TaskID("a"), asynq.Group("g")),
		smsTo("+1", asynq.TaskID("b"), asynq.Group("g")), smsTo("+1", asynq.TaskID("b")),
	})
	for i, want := range []error{nil, asynq.ErrTaskIDConflict, nil, asynq.ErrTaskIDConflict} {
		if r := results[i]; !errors.Is(r.Err, want) || (r.Info == nil) != (want != nil) {
			t.Errorf("task %d = %+v, want %v", i, r, want)
		}
	}
}

// When Redis goes away at a task of a group, those before it are enqueued, and those after
// it are not tried.
func TestEnqueueManyWithoutRedisFromAGroupOn(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	leaving := &leaving{UniversalClient: rdb}
	results := newClient(t, leaving).EnqueueMany(t.Context(), []*Task{
		smsTo("+1"), smsTo("+2", asynq.Group("g")), smsTo("+3", asynq.Group("g")), smsTo("+4"),
	})
	if r := results[0]; r.Err != nil || r.Info == nil {
		t.Errorf("task 0 = %+v, want it enqueued", r)
	}
	if results[1].Err == nil {
		t.Error("task 1 is enqueued, want an error")
	}
	for i, r := range results[2:] {
		if !errors.Is(r.Err, io.ErrUnexpectedEOF) || !strings.Contains(r.Err.Error(), "not tried") {
			t.Errorf("task %d = %v, want it not tried", i+2, r.Err)
		}
	}
	if leaving.n != 1 {
		t.Errorf("asked %d times after Redis had gone, want once", leaving.n)
	}
}

// leaving is a Redis that does not answer any more from the first script about a group on.
type leaving struct {
	redis.UniversalClient
	n int // scripts that got no answer
}

func (c *leaving) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	if c.n > 0 || slices.ContainsFunc(keys, func(k string) bool { return strings.Contains(k, ":g:") }) {
		c.n++
		return redis.NewCmdResult(nil, io.ErrUnexpectedEOF)
	}
	return c.UniversalClient.EvalSha(ctx, sha, keys, args...)
}

func (c *leaving) Ping(ctx context.Context) *redis.StatusCmd {
	if c.n > 0 {
		return redis.NewStatusResult("", io.ErrUnexpectedEOF)
	}
	return c.UniversalClient.Ping(ctx)
}

func TestBookManyMovesUpBehindARefusal(t *testing.T) {
	t.Parallel()
	d := newBookingRig(t, perMinute())
	if got, err := d.policies["sms"].limits.Rules()[0].TryAcquire(t.Context(), "+1", 1); err != nil || !got.Granted {
		t.Fatalf("TryAcquire = %v, %v, want a grant", got, err)
	}
	once := false
	racing := newClient(t, &racer{UniversalClient: d.timed, on: ":line", do: func() {
		if !once {
			d.raw.HSet(t.Context(), "asynq:{default}:t:raced", "msg", "another's", "state", "pending")
		}
		once = true
	}}, perMinute())
	sub := d.raw.Subscribe(t.Context(), "hw:{default}:due")
	defer sub.Close()
	if _, err := sub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	results := racing.BookMany(t.Context(), []*Task{smsTo("+1", asynq.TaskID("raced")), smsTo("+1", asynq.TaskID("behind"))})
	if !errors.Is(results[0].Err, asynq.ErrTaskIDConflict) || results[1].Err != nil || results[1].Wait != 2*time.Minute {
		t.Fatalf("BookMany = %+v, want a conflict, and a booking in two minutes", results)
	}
	if got, want := d.dueAt("behind"), d.start.Add(time.Minute); !got.Equal(want) {
		t.Errorf("behind is due at %v, want %v", got, want)
	}
	for _, want := range []time.Duration{2 * time.Minute, time.Minute} {
		m, err := sub.ReceiveTimeout(t.Context(), 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := queuescripts.ParseNotice(m.(*redis.Message).Payload); got != want || err != nil {
			t.Errorf("pools are told %v, %v, want %v", got, err, want)
		}
	}
}

func TestManyOnCluster(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3)
	c := newClient(t, rdb, perMinute())
	var tasks []*Task
	for i := range 30 {
		tasks = append(tasks, smsTo(fmt.Sprint("+", i%10), asynq.Queue(fmt.Sprint("q", i%3)), asynq.TaskID(fmt.Sprint(i))))
	}
	for i := range 10 { // who may run now, and does not come within 100 ms, loses the place
		if d, err := c.policies["sms"].limits.Rules()[0].TryAcquire(t.Context(), fmt.Sprint("+", i), 1); err != nil || !d.Granted {
			t.Fatalf("TryAcquire = %v, %v, want a grant", d, err)
		}
	}
	for i, r := range c.BookMany(t.Context(), tasks) {
		if wait := time.Duration(1+i/10) * time.Minute; r.Err != nil || (r.Wait-wait).Abs() > 5*time.Second {
			t.Errorf("booking %d = %+v, %v, want it in %v", i, r.Booked, r.Err, wait)
		}
	}
	for i, r := range c.EnqueueMany(t.Context(), tasks) {
		if !errors.Is(r.Err, asynq.ErrTaskIDConflict) {
			t.Errorf("task %d again = %v, want a conflict", i, r.Err)
		}
	}
	insp := asynq.NewInspectorFromRedisClient(rdb)
	for i := range tasks {
		if _, err := insp.GetTaskInfo(fmt.Sprint("q", i%3), fmt.Sprint(i)); err != nil {
			t.Errorf("task %d: %v", i, err)
		}
	}
}
