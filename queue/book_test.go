package queue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// desk is a Redis whose scripts read a clock that the test sets, and a client that
// books there.
type desk struct {
	*testing.T
	*Client
	raw   *redis.Client
	timed *redistest.Timed
	start time.Time
	insp  *asynq.Inspector
}

// perMinute is one message a minute to each phone.
func perMinute() Policy {
	return Policy{Type: "sms", Rules: []Rule{{Name: "phone", Limit: throttle.Sliding(1, time.Minute), Key: MustJSONKey("$.to")}}}
}

func newDesk(t *testing.T, policies ...Policy) *desk {
	t.Helper()
	raw := redistest.Start(t).Client(t)
	start := time.Now().Truncate(time.Second)
	timed, err := redistest.NewTimed(t.Context(), raw, start)
	if err != nil {
		t.Fatal(err)
	}
	d := &desk{T: t, Client: newClient(t, timed, policies...), raw: raw, timed: timed, start: start, insp: asynq.NewInspectorFromRedisClient(raw)}
	t.Cleanup(d.everyKeyOfOursHasALife)
	return d
}

func (d *desk) everyKeyOfOursHasALife() {
	for _, k := range d.raw.Keys(context.Background(), "hw:*").Val() {
		if d.raw.PTTL(context.Background(), k).Val() == -1 {
			d.Errorf("%s has no TTL", k)
		}
	}
}

// at moves the clock to in after the start.
func (d *desk) at(in time.Duration) {
	d.Helper()
	if err := d.timed.SetTime(d.Context(), d.start.Add(in)); err != nil {
		d.Fatal(err)
	}
}

func smsTo(phone string, opts ...asynq.Option) *Task {
	return NewTask("sms", fmt.Appendf(nil, `{"to":%q}`, phone), opts...)
}

// booked books a task that has to wait so long.
func (d *desk) booked(phone string, wait time.Duration, opts ...asynq.Option) Booked {
	d.Helper()
	b, err := d.Book(d.Context(), smsTo(phone, opts...))
	if err != nil || b.Wait != wait {
		d.Fatalf("Book(%s) = %+v, %v, want a wait of %v", phone, b, err, wait)
	}
	return b
}

// content is all that Redis holds, without what calls leave behind for a minute, and
// the test's own clock.
func content(t *testing.T, rdb *redis.Client) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, k := range rdb.Keys(context.Background(), "*").Val() {
		if k != "redistest:clock" && k != "asynq:queues" && !strings.Contains(k, ":sent:") {
			out[k] = rdb.Dump(context.Background(), k).Val()
		}
	}
	return out
}

// The first may run now, and stands in the line all the same; those behind it are
// scheduled at their instants, where pools find them.
func TestBook(t *testing.T) {
	t.Parallel()
	d := newDesk(t, perMinute())
	deadline := time.Now().Add(time.Hour).Truncate(time.Second)
	for i := range 3 {
		wait := time.Duration(i) * time.Minute
		b := d.booked("+1", wait, asynq.Deadline(deadline), asynq.MaxRetry(i))
		want := Booked{Info: b.Info, At: d.start.Add(wait), Wait: wait, Rule: "phone"}
		if i == 0 {
			want.Rule = ""
		}
		if !b.At.Equal(want.At) || b.Rule != want.Rule {
			t.Errorf("Book = %+v, want %+v", b, want)
		}
		stored, err := d.insp.GetTaskInfo("default", b.Info.ID)
		if err != nil {
			t.Fatal(err)
		}
		if stored.State != b.Info.State || stored.MaxRetry != i || !stored.Deadline.Equal(deadline) {
			t.Errorf("Redis holds %+v, want %+v", stored, b.Info)
		}
		if i == 0 {
			if b.Info.State != asynq.TaskStatePending {
				t.Errorf("a task that may run now is %v, want pending", b.Info.State)
			}
			continue
		}
		if b.Info.State != asynq.TaskStateScheduled || !b.Info.NextProcessAt.Equal(b.At) || stored.NextProcessAt.Unix() != b.At.Unix()+5 {
			t.Errorf("booked as %v for %v, in Redis for %v, want scheduled for %v, and there 5 s later", b.Info.State, b.Info.NextProcessAt, stored.NextProcessAt, b.At)
		}
	}
	due, err := luascripts.Due(t.Context(), d.timed, luascripts.QueueKeys("hw", "default"), time.Hour, 10)
	if err != nil || len(due.Tasks) != 2 {
		t.Fatalf("Due = %+v, %v, want the two that wait", due, err)
	}
	p, ok := luascripts.ReadPlace(due.Tasks[0].For)
	if want := (luascripts.Place{Deadline: deadline, Stands: "phone 1 2 +1"}); !ok || !p.Deadline.Equal(want.Deadline) || p.Stands != want.Stands {
		t.Errorf("the place is %+v, %v, want %+v", p, ok, want)
	}
	state, err := d.policies["sms"].limits[0].limiter.Peek(t.Context(), "+1", 10)
	if err != nil || state.Waiting != 3 {
		t.Errorf("the line = %+v, %v, want all three", state, err)
	}
}

// Too late is told at once, with the instant, and nothing is left of it.
func TestBookTooLate(t *testing.T) {
	t.Parallel()
	d := newDesk(t, perMinute())
	d.booked("+1", 0)
	d.booked("+1", time.Minute)
	before := content(t, d.raw)
	for name, opts := range map[string][]asynq.Option{
		"a longest wait":           {MaxWait(119 * time.Second)},
		"no wait":                  {MaxWait(0)},
		"a wait of less than none": {MaxWait(-time.Second)},
		"a deadline":               {asynq.Deadline(time.Now().Add(100 * time.Second))},
		"a deadline that is over":  {asynq.Deadline(time.Now().Add(-time.Second)), MaxWait(time.Hour)},
		"both":                     {asynq.Deadline(time.Now().Add(time.Hour)), MaxWait(time.Second)},
	} {
		b, err := d.Book(t.Context(), smsTo("+1"), opts...)
		late, ok := errors.AsType[*throttle.TooLateError](err)
		if !ok || !errors.Is(err, throttle.ErrTooLate) || b != (Booked{}) {
			t.Errorf("%s: Book = %+v, %v, want ErrTooLate", name, b, err)
			continue
		}
		if late.Rule != "phone" || !late.At.Equal(d.start.Add(2*time.Minute)) || late.Wait != 2*time.Minute {
			t.Errorf("%s: %+v, want phone in two minutes", name, late)
		}
		if strings.Contains(err.Error(), "+1") {
			t.Errorf("the error %q shows a phone", err)
		}
	}
	if after := content(t, d.raw); !maps.Equal(before, after) {
		t.Errorf("Redis holds %v, want %v", slices.Sorted(maps.Keys(after)), slices.Sorted(maps.Keys(before)))
	}
	d.booked("+1", 2*time.Minute, MaxWait(2*time.Minute)) // just in time, and nobody in between
	// Of a closed key nothing was there before, and nothing is after.
	if _, err := d.policies["sms"].limits[0].limiter.CloseRule(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	before = content(t, d.raw)
	if _, err := d.Book(t.Context(), smsTo("+2"), MaxWait(time.Minute)); !errors.Is(err, throttle.ErrTooLate) {
		t.Errorf("Book while the rule is closed = %v, want ErrTooLate", err)
	}
	if after := content(t, d.raw); !maps.Equal(before, after) {
		t.Errorf("Redis holds %v, want %v", slices.Sorted(maps.Keys(after)), slices.Sorted(maps.Keys(before)))
	}
}

// What asynq refuses gives its place back, and leaves that of the other alone.
func TestBookGivesThePlaceBack(t *testing.T) {
	t.Parallel()
	d := newDesk(t, perMinute())
	d.booked("+1", 0)
	other := d.booked("+1", time.Minute, asynq.TaskID("b"))
	d.booked("+2", 0, asynq.Unique(time.Hour))
	before := content(t, d.raw)
	for _, tt := range []struct {
		phone string
		opt   asynq.Option
		want  error
	}{{"+1", asynq.TaskID("b"), asynq.ErrTaskIDConflict}, {"+2", asynq.Unique(time.Hour), asynq.ErrDuplicateTask}} {
		if _, err := d.Book(t.Context(), smsTo(tt.phone, tt.opt)); !errors.Is(err, tt.want) {
			t.Errorf("Book again = %v, want %v", err, tt.want)
		}
		if after := content(t, d.raw); !maps.Equal(before, after) {
			t.Errorf("after %v Redis holds something else", tt.want)
		}
	}
	// The other comes in between the look for it and the enqueueing.
	racing := newClient(t, &racer{UniversalClient: d.timed, on: ":line", do: func() {
		d.raw.HSet(t.Context(), "asynq:{default}:t:raced", "msg", "another's", "state", "pending")
	}}, perMinute())
	if _, err := racing.Book(t.Context(), smsTo("+1", asynq.TaskID("raced"))); !errors.Is(err, asynq.ErrTaskIDConflict) {
		t.Errorf("Book of a raced id = %v, want a conflict", err)
	}
	d.raw.Del(t.Context(), "asynq:{default}:t:raced")
	d.booked("+1", 2*time.Minute) // its place is free
	if due := d.raw.ZScore(t.Context(), "hw:{default}:due", "b").Val(); int64(due) != other.At.UnixMicro() {
		t.Errorf("b is due at %.0f, want %d", due, other.At.UnixMicro())
	}
}

// racer does something after a script call with a key.
type racer struct {
	redis.UniversalClient
	on string
	do func()
}

func (r *racer) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	cmd := r.UniversalClient.EvalSha(ctx, sha, keys, args...)
	if cmd.Err() == nil && slices.ContainsFunc(keys, func(k string) bool { return strings.Contains(k, r.on) }) {
		r.do()
	}
	return cmd
}

// Two of one call that are the same task: the second hears of the first.
func TestBookManyOfTheSame(t *testing.T) {
	t.Parallel()
	d := newDesk(t, perMinute())
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

// The options of asynq that say when a task starts are not for a booking.
func TestBookRefusesOptions(t *testing.T) {
	t.Parallel()
	d := newDesk(t, perMinute())
	for _, opt := range []asynq.Option{
		asynq.ProcessIn(time.Minute), asynq.ProcessAt(time.Now().Add(time.Hour)), asynq.Group("g"), asynq.Timeout(time.Millisecond), foreignOption{asynq.MaxRetry(1)},
	} {
		if b, err := d.Book(t.Context(), smsTo("+1"), opt); !errors.Is(err, ErrInvalidOption) || b.Info != nil {
			t.Errorf("Book with %v = %+v, %v, want ErrInvalidOption", opt, b, err)
		}
		if _, err := d.Book(t.Context(), smsTo("+1", opt)); !errors.Is(err, ErrInvalidOption) {
			t.Errorf("Book of a task with %v = %v, want ErrInvalidOption", opt, err)
		}
	}
	for i, err := range []error{
		func() error { _, err := d.Enqueue(t.Context(), smsTo("+1", MaxWait(time.Hour))); return err }(),
		d.EnqueueMany(t.Context(), []*Task{smsTo("+1")}, MaxWait(time.Hour))[0].Err,
	} {
		if !errors.Is(err, ErrInvalidOption) || !strings.Contains(err.Error(), "Book") {
			t.Errorf("enqueueing %d with MaxWait = %v, want ErrInvalidOption", i, err)
		}
	}
	if got := content(t, d.raw); len(got) != 0 {
		t.Errorf("Redis holds %v, want nothing", got)
	}
}

// Each of many fails by itself, and all are answered in order, with few calls.
func TestManyAreAnsweredInOrder(t *testing.T) {
	t.Parallel()
	d := newDesk(t, perMinute())
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

// tally counts script calls.
type tally struct {
	redis.UniversalClient
	n int
}

func (c *tally) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	c.n++
	return c.UniversalClient.EvalSha(ctx, sha, keys, args...)
}

func (c *tally) Eval(ctx context.Context, text string, keys []string, args ...any) *redis.Cmd {
	return c.UniversalClient.Eval(ctx, text, keys, args...)
}

// A gate that is shut: the task has no place, and comes when it opens. A type without
// a policy is enqueued as it is.
func TestBookWithGates(t *testing.T) {
	t.Parallel()
	p := perMinute()
	from := time.Now().UTC().Add(3 * time.Hour).Truncate(time.Hour)
	gate, err := throttle.ParseGate(fmt.Sprintf("%s-%s UTC", from.Format("15:04"), from.Add(time.Hour).Format("15:04")))
	if err != nil {
		t.Fatal(err)
	}
	p.Rules = append(p.Rules, Rule{Name: "hours", Gate: gate})
	d := newDesk(t, p)
	b, err := d.Book(t.Context(), smsTo("+1"))
	if err != nil || b.Rule != "hours" || b.At.Sub(from).Abs() > time.Second || b.Info.State != asynq.TaskStateScheduled {
		t.Errorf("Book = %+v, %v, want it scheduled for the opening at %v", b, err, from)
	}
	if keys := d.raw.Keys(t.Context(), "hw:{+1}:*").Val(); !slices.Equal(keys, []string{"hw:{+1}:phone:opening"}) {
		t.Errorf("it has a place: %v, want none, only to be counted for the opening", keys)
	}
	_, err = d.Book(t.Context(), smsTo("+1"), MaxWait(time.Hour))
	if late, ok := errors.AsType[*throttle.TooLateError](err); !ok || late.Rule != "hours" {
		t.Errorf("Book within an hour = %v, want ErrTooLate for hours", err)
	}
	b, err = d.Book(t.Context(), NewTask("mail", nil))
	if err != nil || b.Info.State != asynq.TaskStatePending || !b.At.IsZero() {
		t.Errorf("Book of a type without a policy = %+v, %v, want it pending", b, err)
	}
}

// A configuration is the pools': its prefix, its secret, and what can't be booked.
func TestNewClientWith(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	book := func(cfg throttle.Config) (Booked, error) {
		t.Helper()
		c, err := NewClientWith(rdb, cfg, perMinute())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Book(t.Context(), smsTo("+4917012345678"))
		return c.Book(t.Context(), smsTo("+4917012345678"))
	}
	if b, err := book(throttle.Config{Prefix: "mine", Secret: bytes.Repeat([]byte("s"), 16), WhenAway: throttle.FailOpen}); err != nil || b.Wait == 0 {
		t.Errorf("Book = %+v, %v, want it behind the first", b, err)
	}
	for _, k := range rdb.Keys(t.Context(), "mine:*").Val() {
		if strings.Contains(k, "4917012345678") {
			t.Errorf("the key %q shows a phone", k)
		}
	}
	if n := len(rdb.Keys(t.Context(), "hw:*").Val()); n != 0 {
		t.Errorf("%d keys under another prefix", n)
	}
	if b, err := book(throttle.Config{Shadow: true}); err != nil || b.Info.State != asynq.TaskStatePending {
		t.Errorf("Book in shadow mode = %+v, %v, want it pending", b, err)
	}
	before := rdb.DBSize(t.Context()).Val()
	if _, err := book(throttle.Config{PerClient: true}); !errors.Is(err, throttle.ErrInvalidConfig) {
		t.Errorf("Book per client = %v, want ErrInvalidConfig", err)
	}
	if n := rdb.DBSize(t.Context()).Val(); n != before {
		t.Errorf("%d keys more", n-before)
	}
	if _, err := NewClientWith(rdb, throttle.Config{Prefix: "a b"}); !errors.Is(err, throttle.ErrInvalidConfig) {
		t.Errorf("NewClientWith = %v, want ErrInvalidConfig", err)
	}
}

// Any answer may be lost: the Redis client asks again, nothing is enqueued twice, and
// nothing is a conflict with itself.
func TestLostRepliesEnqueueOnce(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	proxy := redistest.NewProxy(t, srv.Addr())
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
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
	hashes := raw.Keys(t.Context(), "asynq:*:t:*").Val()
	if want := 4 * 2 * 3; len(hashes) != want {
		t.Errorf("%d tasks in Redis, want %d", len(hashes), want)
	}
	for _, id := range raw.LRange(t.Context(), "asynq:{default}:pending", 0, -1).Val() {
		if n := raw.LPosCount(t.Context(), "asynq:{default}:pending", id, 0, redis.LPosArgs{}).Val(); len(n) != 1 {
			t.Errorf("%s is pending %d times", id, len(n))
		}
	}
}

// When Redis stops answering, what was not sent is not tried, and what was booked and
// not enqueued is given back.
func TestManyWithoutRedis(t *testing.T) {
	t.Parallel()
	d := newDesk(t, perMinute())
	d.booked("+1", 0)
	before := content(t, d.raw)
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
		if after := content(t, d.raw); on == ":sent:" && !cmp.Equal(before, after) {
			t.Errorf("%s: Redis holds %v, want %v", on, slices.Sorted(maps.Keys(after)), slices.Sorted(maps.Keys(before)))
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

// deaf is a Redis that does not answer scripts with such a key: those never arrive.
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

// A process that dies between a booking and the enqueueing leaves a place that falls
// out of the line: those behind it are not held up.
func TestPlaceOfADeadProcess(t *testing.T) {
	t.Parallel()
	d := newDesk(t, perMinute())
	limiter := d.policies["sms"].limits[0].limiter
	d.booked("+1", 0)
	request := throttle.Request{Key: "+1", Cost: 1, Job: luascripts.JobID("default", "dead")}
	if _, err := limiter.Book(t.Context(), request); err != nil { // and no more: it died
		t.Fatal(err)
	}
	behind := d.booked("+1", 2*time.Minute, asynq.TaskID("behind"))
	redeem := func(id string) throttle.Decision {
		t.Helper()
		got, err := limiter.Redeem(t.Context(), throttle.Request{Key: "+1", Cost: 1, Job: luascripts.JobID("default", id)})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	first := d.raw.LIndex(t.Context(), "asynq:{default}:pending", 0).Val()
	if got := redeem(first); !got.Granted {
		t.Fatalf("the first = %v, want a grant", got)
	}
	d.at(time.Minute + 99*time.Millisecond)
	if got := redeem("behind"); got.Granted {
		t.Errorf("behind = %v while the dead one has its turn, want to wait", got)
	}
	d.at(time.Minute + 101*time.Millisecond)
	if got := redeem("behind"); !got.Granted || got.At.After(behind.At) {
		t.Errorf("behind = %v, want a grant before %v", got, behind.At)
	}
}

// Who stands behind a place that is given back comes earlier.
func TestBookManyMovesUpBehindARefusal(t *testing.T) {
	t.Parallel()
	d := newDesk(t, perMinute())
	if got, err := d.policies["sms"].limits[0].limiter.TryAcquire(t.Context(), "+1", 1); err != nil || !got.Granted {
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
	if got, want := d.raw.ZScore(t.Context(), "hw:{default}:due", "behind").Val(), d.start.Add(time.Minute).UnixMicro(); int64(got) != want {
		t.Errorf("behind is due at %.0f, want %d", got, want)
	}
	for _, want := range []time.Duration{2 * time.Minute, time.Minute} {
		m, err := sub.ReceiveTimeout(t.Context(), 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := luascripts.Told(m.(*redis.Message).Payload); got != want || err != nil {
			t.Errorf("pools are told %v, %v, want %v", got, err, want)
		}
	}
}

// On Redis Cluster each queue and each key has its slot.
func TestManyOnCluster(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3)
	c := newClient(t, rdb, perMinute())
	var tasks []*Task
	for i := range 30 {
		tasks = append(tasks, smsTo(fmt.Sprint("+", i%10), asynq.Queue(fmt.Sprint("q", i%3)), asynq.TaskID(fmt.Sprint(i))))
	}
	for i, r := range c.BookMany(t.Context(), tasks) {
		if wait := time.Duration(i/10) * time.Minute; r.Err != nil || (r.Wait-wait).Abs() > 5*time.Second {
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
