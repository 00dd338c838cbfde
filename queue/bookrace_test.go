package queue

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// What asynq refuses gives its place back, and leaves that of the other alone.
func TestBookGivesThePlaceBack(t *testing.T) {
	t.Parallel()
	d := newBookingRigOnOne(t, byTheClock, perMinute())
	d.booked("+1", 0)
	other := d.booked("+1", time.Minute, asynq.TaskID("b"))
	d.booked("+2", 0, asynq.Unique(time.Hour))
	before := redistest.Content(t, d.raw)
	for _, tt := range []struct {
		phone string
		opt   asynq.Option
		want  error
	}{{"+1", asynq.TaskID("b"), asynq.ErrTaskIDConflict}, {"+2", asynq.Unique(time.Hour), asynq.ErrDuplicateTask}} {
		if _, err := d.Book(t.Context(), smsTo(tt.phone, tt.opt)); !errors.Is(err, tt.want) {
			t.Errorf("Book again = %v, want %v", err, tt.want)
		}
		if after := redistest.Content(t, d.raw); !maps.Equal(before, after) {
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
	if due := d.dueAt("b"); !due.Equal(other.At) {
		t.Errorf("b is due at %v, want %v", due, other.At)
	}
}

// dueAt is the instant at which a task is woken.
func (d *bookingRig) dueAt(id string) time.Time {
	d.Helper()
	f, err := queuescripts.GetTask(d.Context(), d.timed, queuescripts.NewQueueKeys("hw", "default"), id)
	if err != nil || !f.PoolsWake {
		d.Errorf("Find(%s) = %+v, %v, want that pools wake it", id, f, err)
	}
	return f.At
}

// Two callers that book one id at the same time share its place. The one that asynq refuses leaves the
// place to the other, also when the unique lock of the other is why.
func TestBookOfARacedIDKeepsTheOthersPlace(t *testing.T) {
	t.Parallel()
	for want, opts := range map[error][]asynq.Option{
		asynq.ErrTaskIDConflict: {asynq.TaskID("raced")},
		asynq.ErrDuplicateTask:  {asynq.TaskID("raced"), asynq.Unique(time.Hour)},
	} {
		d := newBookingRig(t, perMinute())
		d.booked("+1", 0)
		var other Booked
		raced := false
		racing := newClient(t, &racer{UniversalClient: d.timed, on: ":line", do: func() {
			if !raced {
				raced = true
				other = d.booked("+1", time.Minute, opts...)
			}
		}}, perMinute())
		if _, err := racing.Book(t.Context(), smsTo("+1", opts...)); !errors.Is(err, want) {
			t.Fatalf("Book = %v, want %v", err, want)
		}
		if other.Info == nil {
			t.Fatal("no race")
		}
		d.booked("+1", 2*time.Minute)
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

// A process that dies between a booking and the enqueueing leaves a place that falls
// out of the line: those behind it are not held up.
func TestPlaceOfADeadProcess(t *testing.T) {
	t.Parallel()
	d := newBookingRig(t, perMinute())
	limiter := d.policies["sms"].limits.Rules()[0]
	d.booked("+1", 0)
	request := throttle.Request{Key: "+1", Cost: 1, Job: luascripts.JobID("default", "dead")}
	if _, err := limiter.Policy().Book(t.Context(), request); err != nil { // and no more: it died
		t.Fatal(err)
	}
	behind := d.booked("+1", 2*time.Minute, asynq.TaskID("behind"))
	redeem := func(id string) throttle.Decision {
		t.Helper()
		got, err := limiter.Policy().Redeem(t.Context(), throttle.Request{Key: "+1", Cost: 1, Job: luascripts.JobID("default", id)})
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
