package queue

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
)

// bookingRig is a Redis whose scripts read a clock that the test sets, and a client that
// books there.
type bookingRig struct {
	*testing.T
	*Client
	raw   redis.UniversalClient
	timed redistest.Timed
	start time.Time
	insp  *asynq.Inspector
}

// perMinute is one message a minute to each phone.
func perMinute() Policy {
	return Policy{Type: "sms", Rules: []Rule{{Name: "phone", Limit: throttle.Sliding(1, time.Minute), Key: MustJSONKey("$.to")}}}
}

func newBookingRig(t *testing.T, policies ...Policy) *bookingRig {
	t.Helper()
	return bookingRigOn(t, redistest.Client(t), policies...)
}

// byTheClock is why a test is of one Redis: a Cluster gets to know when a task is due by how long that is from
// now, because the clocks of the rule's and the queue's servers may differ. The test's clock stands still meanwhile.
const byTheClock = "it knows to the microsecond when a task is due"

// newBookingRigOnOne is [newBookingRig] on one Redis in any case, and says why.
func newBookingRigOnOne(t *testing.T, why string, policies ...Policy) *bookingRig {
	t.Helper()
	redistest.OneRedis(t, why)
	return bookingRigOn(t, redistest.Start(t).Client(t), policies...)
}

func bookingRigOn(t *testing.T, raw redis.UniversalClient, policies ...Policy) *bookingRig {
	t.Helper()
	start := time.Now().Truncate(time.Second)
	timed := redistest.NewTimed(raw, start)
	d := &bookingRig{T: t, Client: newClient(t, timed, policies...), raw: raw, timed: timed, start: start, insp: asynq.NewInspectorFromRedisClient(raw)}
	t.Cleanup(func() { redistest.KeysHaveALife(t, d.raw) })
	return d
}

// at moves the clock to in after the start.
func (d *bookingRig) at(in time.Duration) {
	d.Helper()
	d.timed.SetTime(d.start.Add(in))
}

func smsTo(phone string, opts ...asynq.Option) *Task {
	return NewTask("sms", fmt.Appendf(nil, `{"to":%q}`, phone), opts...)
}

// booked books a task that has to wait so long.
func (d *bookingRig) booked(phone string, wait time.Duration, opts ...asynq.Option) Booked {
	d.Helper()
	b, err := d.Book(d.Context(), smsTo(phone, opts...))
	if err != nil || b.Wait != wait {
		d.Fatalf("Book(%s) = %+v, %v, want a wait of %v", phone, b, err, wait)
	}
	return b
}

// The first may run now, and stands in the line all the same; those behind it are
// scheduled at their instants, where pools find them.
func TestBook(t *testing.T) {
	t.Parallel()
	d := newBookingRigOnOne(t, byTheClock, perMinute())
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
	due, err := queuescripts.Due(t.Context(), d.timed, queuescripts.NewQueueKeys("hw", "default"), queuescripts.DueArgs{Lead: time.Hour, Room: 10})
	if err != nil || len(due.Tasks) != 2 {
		t.Fatalf("Due = %+v, %v, want the two that wait", due, err)
	}
	p, ok := queuescripts.ParseWaitRecord(due.Tasks[0].Record)
	if want := (queuescripts.WaitRecord{Deadline: deadline, Booking: "phone 1 2 +1"}); !ok || !p.Deadline.Equal(want.Deadline) || p.Booking != want.Booking {
		t.Errorf("the place is %+v, %v, want %+v", p, ok, want)
	}
	state, err := d.policies["sms"].limits.Rules()[0].Peek(t.Context(), "+1", 10)
	if err != nil || state.Waiting != 3 {
		t.Errorf("the line = %+v, %v, want all three", state, err)
	}
}

// Too late is told at once, with the instant, and nothing is left of it.
func TestBookTooLate(t *testing.T) {
	t.Parallel()
	d := newBookingRig(t, perMinute())
	d.booked("+1", 0)
	d.booked("+1", time.Minute)
	before := redistest.Content(t, d.raw)
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
	if after := redistest.Content(t, d.raw); !maps.Equal(before, after) {
		t.Errorf("Redis holds %v, want %v", slices.Sorted(maps.Keys(after)), slices.Sorted(maps.Keys(before)))
	}
	d.booked("+1", 2*time.Minute, MaxWait(2*time.Minute)) // just in time, and nobody in between
	// Of a closed key nothing was there before, and nothing is after.
	if _, err := d.policies["sms"].limits.Rules()[0].CloseRule(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	before = redistest.Content(t, d.raw)
	if _, err := d.Book(t.Context(), smsTo("+2"), MaxWait(time.Minute)); !errors.Is(err, throttle.ErrTooLate) {
		t.Errorf("Book while the rule is closed = %v, want ErrTooLate", err)
	}
	if after := redistest.Content(t, d.raw); !maps.Equal(before, after) {
		t.Errorf("Redis holds %v, want %v", slices.Sorted(maps.Keys(after)), slices.Sorted(maps.Keys(before)))
	}
}

// The options of asynq that say when a task starts are not for a booking.
func TestBookRefusesOptions(t *testing.T) {
	t.Parallel()
	d := newBookingRig(t, perMinute())
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
	if got := redistest.Content(t, d.raw); len(got) != 0 {
		t.Errorf("Redis holds %v, want nothing", got)
	}
}

// Behind a gate that is shut tasks come at the pace of their rule. One that would come after its deadline is
// refused, as it is while the gate is open, and does not count among those that wait.
func TestBookBehindAGateTooLate(t *testing.T) {
	t.Parallel()
	from := time.Now().UTC().Add(2 * time.Hour).Truncate(time.Minute)
	hours, err := gate.Parse(fmt.Sprintf("%s-%s UTC", from.Format("15:04"), from.Add(time.Hour).Format("15:04")))
	if err != nil {
		t.Fatal(err)
	}
	d := newBookingRig(t, Policy{Type: "sms", Rules: []Rule{
		{Name: "hours", Gate: hours},
		{Name: "provider", Limit: throttle.Sliding(1, time.Minute), Constant: "acme"},
	}})
	for i, late := range []bool{false, false, false, true, true} {
		b, err := d.Book(t.Context(), smsTo("+1", asynq.Deadline(from.Add(150*time.Second))))
		if errors.Is(err, throttle.ErrTooLate) != late || err != nil && !late {
			t.Errorf("Book %d = %+v, %v, want that it is too late: %v", i, b, err, late)
		}
	}
	if b, err := d.Book(t.Context(), smsTo("+1")); err != nil || !b.At.Equal(from.Add(3*time.Minute)) {
		t.Errorf("Book = %v, %v, want the fourth minute after %v", b.At, err, from)
	}
}

// A gate that is shut: the task has no place, and comes when it opens. A type without
// a policy is enqueued as it is.
func TestBookWithGates(t *testing.T) {
	t.Parallel()
	p := perMinute()
	from := time.Now().UTC().Add(3 * time.Hour).Truncate(time.Hour)
	hours, err := gate.Parse(fmt.Sprintf("%s-%s UTC", from.Format("15:04"), from.Add(time.Hour).Format("15:04")))
	if err != nil {
		t.Fatal(err)
	}
	p.Rules = append(p.Rules, Rule{Name: "hours", Gate: hours})
	d := newBookingRig(t, p)
	b, err := d.Book(t.Context(), smsTo("+1"))
	if err != nil || b.Rule != "hours" || b.At.Sub(from).Abs() > time.Second || b.Info.State != asynq.TaskStateScheduled {
		t.Errorf("Book = %+v, %v, want it scheduled for the opening at %v", b, err, from)
	}
	if keys := redistest.Keys(t, d.raw, "hw:{+1}:*"); !slices.Equal(keys, []string{"hw:{+1}:phone:opening"}) {
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
func TestClientThrottleConfig(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	book := func(cfg throttle.Config) (Booked, error) {
		t.Helper()
		c, err := NewClient(rdb, ClientConfig{Policies: []Policy{perMinute()}, Throttle: cfg})
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Book(t.Context(), smsTo("+4917012345678"))
		return c.Book(t.Context(), smsTo("+4917012345678"))
	}
	if b, err := book(throttle.Config{Prefix: "mine", Secret: bytes.Repeat([]byte("s"), 16), OnUnavailable: throttle.FailOpen}); err != nil || b.Wait == 0 {
		t.Errorf("Book = %+v, %v, want it behind the first", b, err)
	}
	for _, k := range redistest.Keys(t, rdb, "mine:*") {
		if strings.Contains(k, "4917012345678") {
			t.Errorf("the key %q shows a phone", k)
		}
	}
	if n := len(redistest.Keys(t, rdb, "hw:*")); n != 0 {
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
	if _, err := NewClient(rdb, ClientConfig{Throttle: throttle.Config{Prefix: "a b"}}); !errors.Is(err, throttle.ErrInvalidConfig) {
		t.Errorf("NewClient = %v, want ErrInvalidConfig", err)
	}
}
