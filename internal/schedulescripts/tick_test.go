package schedulescripts

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/redistest"
)

// scheduled is an entry of a schedule whose ticks a test makes by hand.
type scheduled struct {
	*testing.T
	rdb  redistest.Timed
	raw  *redis.Client
	q    queuescripts.QueueKeys
	from time.Time // as the last answer had it
}

func newScheduled(t *testing.T) *scheduled {
	t.Helper()
	rdb, raw := redistest.StartTimed(t)
	return &scheduled{T: t, rdb: rdb, raw: raw, q: queuescripts.NewQueueKeys("hw", "default")}
}

func (s *scheduled) at(d time.Duration) {
	s.Helper()
	s.rdb.SetTime(start.Add(d))
}

// call makes a call with the defaults of a test, and checks the code.
func (s *scheduled) call(want int64, a TickArgs) TickReply {
	s.Helper()
	if a.Spec == "" {
		a.Spec = "abc"
	}
	if a.From.IsZero() {
		a.From = s.from
	}
	if a.By.IsZero() {
		a.By = start.Add(1000 * time.Hour)
	}
	a.Life = time.Hour
	a.ID = idOf(a.At)
	reply, err := Tick(s.Context(), s.rdb, s.q, "nightly", a)
	if err != nil || reply.Code != want {
		s.Errorf("Tick(%v) = %+v, %v, want the code %d", a.At.Sub(start), reply, err, want)
	}
	s.from = reply.From
	redistest.KeysHaveALife(s.T, s.raw)
	return reply
}

func (s *scheduled) tick(want int64, at time.Duration, overlap TickOverlap) {
	s.Helper()
	s.call(want, TickArgs{At: start.Add(at), Overlap: overlap, Message: []byte("message")})
}

// look says what the record has, as durations since the start.
func (s *scheduled) look(from, held time.Duration) {
	s.Helper()
	reply := s.call(TickPassed, TickArgs{})
	if got := reply.From.Sub(start); got != from {
		s.Errorf("decided up to %v, want %v", got, from)
	}
	wantHeld := time.Time{}
	if held != 0 {
		wantHeld = start.Add(held)
	}
	if !reply.Held.Equal(wantHeld) {
		s.Errorf("%v is held, want %v", reply.Held, wantHeld)
	}
}

// decided checks what is kept of the last ticks, as "60s 1", the newest first.
func (s *scheduled) decided(want ...string) {
	s.Helper()
	r, err := ReadTicks(s.Context(), s.raw, s.q, []string{"nightly"})
	if err != nil {
		s.Fatal(err)
	}
	var got []string
	for _, d := range r[0].Ticks {
		got = append(got, fmt.Sprintf("%v %d", d.At.Sub(start), d.Code))
		if d.When.Before(d.At) {
			s.Errorf("the tick %v was decided at %v", d.At, d.When)
		}
	}
	if !slices.Equal(got, want) {
		s.Errorf("decided are %q, want %q", got, want)
	}
}

func idOf(at time.Time) string { return fmt.Sprintf("nightly@%d", at.Unix()) }

// pending are the ticks whose tasks wait, the first to run first.
func (s *scheduled) pending(want ...time.Duration) {
	s.Helper()
	var ids []string
	for _, d := range want {
		ids = append(ids, idOf(start.Add(d)))
	}
	got := s.raw.LRange(s.Context(), s.q.Pending, 0, -1).Val()
	slices.Reverse(got)
	if !slices.Equal(got, ids) {
		s.Errorf("pending = %v, want %v", got, ids)
	}
}

func (s *scheduled) state(at time.Duration, state string) {
	s.raw.HSet(s.Context(), s.q.Task(idOf(start.Add(at))), "state", state)
}

const sec = time.Second

func TestTickIsEnqueuedOnce(t *testing.T) {
	t.Parallel()
	s := newScheduled(t)
	s.look(0, 0) // new: ticks count from now on
	s.tick(TickPassed, 60*sec, TickRuns)
	s.look(0, 0)
	s.pending() // it is not the time
	s.at(60 * sec)
	from := s.from
	s.tick(TickEnqueued, 60*sec, TickRuns)
	s.look(60*sec, 0)
	for range 2 { // a copy whose answer was lost, and a process that knows nothing of it
		s.from = from
		s.tick(TickPassed, 60*sec, TickRuns)
	}
	s.pending(60 * sec)
	task := s.raw.HGetAll(t.Context(), s.q.Task(idOf(start.Add(60*sec)))).Val()
	want := map[string]string{"msg": "message", "state": "pending", "pending_since": fmt.Sprint(start.Add(60 * sec).UnixNano())}
	if len(task) != 3 || task["msg"] != want["msg"] || task["state"] != want["state"] || task["pending_since"] != want["pending_since"] {
		t.Errorf("asynq's hash is %v, want %v", task, want)
	}
	// neither is one that someone overtook
	s.at(200 * sec)
	s.tick(TickEnqueued, 180*sec, TickRuns)
	s.tick(TickPassed, 120*sec, TickRuns)
	s.call(TickPassed, TickArgs{At: start.Add(190 * sec), From: start.Add(60 * sec), Message: []byte("m")})
	// nor one whose time is over
	s.call(TickPassed, TickArgs{At: start.Add(190 * sec), By: start.Add(200 * sec), Message: []byte("m")})
	s.call(TickGivenUp, TickArgs{At: start.Add(190 * sec)})
	s.look(190*sec, 0)
	s.pending(60*sec, 180*sec)
	s.decided("3m10s 4", "3m0s 1", "1m0s 1") // each once, however often it was asked
}

// Should the record be lost, the task is still there.
func TestTickWithoutItsRecord(t *testing.T) {
	t.Parallel()
	s := newScheduled(t)
	s.look(0, 0)
	s.at(60 * sec)
	s.tick(TickEnqueued, 60*sec, TickRuns)
	s.raw.Del(t.Context(), s.q.Tick+"nightly")
	s.at(0)
	s.look(0, 0)
	s.at(60 * sec)
	s.tick(TickEnqueued, 60*sec, TickRuns)
	s.pending(60 * sec)
}

// A record that was lost goes on from where somebody knew it to be, never ahead of now.
func TestTickOfALostRecord(t *testing.T) {
	t.Parallel()
	s := newScheduled(t)
	s.at(100 * sec)
	for _, tt := range []struct{ known, from time.Duration }{{40 * sec, 40 * sec}, {200 * sec, 100 * sec}} {
		s.raw.Del(t.Context(), s.q.Tick+"nightly")
		got := s.call(TickPassed, TickArgs{From: start.Add(tt.known)})
		if !got.From.Equal(start.Add(tt.from)) {
			t.Errorf("known up to %v: counts from %v, want %v", tt.known, got.From.Sub(start), tt.from)
		}
	}
	s.raw.Del(t.Context(), s.q.Tick+"nightly")
	s.call(TickEnqueued, TickArgs{From: start.Add(40 * sec), At: start.Add(60 * sec), By: start.Add(200 * sec), Message: []byte("m")})
	s.pending(60 * sec)
}

func TestTickIsSkippedWhileAnEarlierOneIsUnfinished(t *testing.T) {
	t.Parallel()
	s := newScheduled(t)
	s.look(0, 0)
	s.at(1000 * sec)
	s.tick(TickEnqueued, 10*sec, TickRuns)
	s.tick(TickEnqueued, 20*sec, TickRuns)
	for i, state := range []string{"pending", "active", "retry", "scheduled", "aggregating"} {
		s.state(10*sec, state)
		s.state(20*sec, "completed")
		s.tick(TickSkipped, time.Duration(30+i)*sec, TickIsSkipped)
	}
	for i, state := range []string{"archived", "completed"} {
		s.state(10*sec, state)
		at := time.Duration(40+i) * sec
		s.tick(TickEnqueued, at, TickIsSkipped)
		s.raw.Del(t.Context(), s.q.Task(idOf(start.Add(at)))) // done
	}
	s.tick(TickEnqueued, 50*sec, TickIsSkipped)
	s.tick(TickSkipped, 51*sec, TickIsSkipped)
	s.tick(TickEnqueued, 52*sec, TickRuns) // the choice is that of the tick
}

func TestOneTickIsHeld(t *testing.T) {
	t.Parallel()
	s := newScheduled(t)
	s.look(0, 0)
	s.at(1000 * sec)
	s.tick(TickEnqueued, 10*sec, TickIsHeld)
	s.tick(TickHeld, 20*sec, TickIsHeld)
	s.look(20*sec, 20*sec)
	s.tick(TickHeld, 20*sec, TickIsHeld) // it is asked again
	s.tick(TickSkipped, 30*sec, TickIsHeld)
	s.tick(TickSkipped, 31*sec, TickIsSkipped)
	s.look(31*sec, 20*sec)
	s.raw.Del(t.Context(), s.q.Task(idOf(start.Add(10*sec))))
	s.raw.Del(t.Context(), s.q.Pending)
	s.tick(TickSkipped, 40*sec, TickIsHeld) // who is held goes first
	s.tick(TickEnqueued, 20*sec, TickIsHeld)
	s.tick(TickPassed, 20*sec, TickIsHeld) // a copy
	s.look(40*sec, 0)
	s.pending(20 * sec)
	s.tick(TickHeld, 50*sec, TickIsHeld)
	s.call(TickGivenUp, TickArgs{At: start.Add(50 * sec), Overlap: TickIsHeld})
	s.look(50*sec, 0)
	s.decided("50s 4", "40s 2", "31s 2", "30s 2", "20s 1", "10s 1")
}

// Of the last ticks ten are kept, one that is held among them as it stands.
func TestLastTicksAreKept(t *testing.T) {
	t.Parallel()
	s := newScheduled(t)
	s.decided()
	s.look(0, 0)
	s.decided()
	s.at(1000 * sec)
	s.tick(TickEnqueued, 10*sec, TickIsHeld)
	s.tick(TickHeld, 20*sec, TickIsHeld)
	s.tick(TickHeld, 20*sec, TickIsHeld)
	s.decided("20s 3", "10s 1")
	r, err := ReadTicks(t.Context(), s.raw, s.q, []string{"nightly", "none"})
	if err != nil || !r[0].Last.Equal(start.Add(20*sec)) || !r[0].Held.Equal(start.Add(20*sec)) || !r[0].Since["abc"].Equal(start) || len(r[0].Since) != 1 ||
		!r[1].Last.IsZero() || r[1].Ticks != nil {
		t.Errorf("ReadTicks = %+v, %v, want the tick of 20s decided and held", r, err)
	}
	var want []string
	for at := 30 * sec; at < 130*sec; at += 10 * sec {
		s.tick(TickSkipped, at, TickIsHeld)
		want = append(want, fmt.Sprintf("%v 2", at))
	}
	slices.Reverse(want)
	s.decided(want...)
	s.state(10*sec, "completed")
	s.tick(TickEnqueued, 20*sec, TickIsHeld) // it is not among the last ten any more
	s.decided(want...)
}

// Two specs of one entry, as during a deployment, share how far it is: a late tick of one
// is passed over behind a later one of the other. docs/schedules.md says so.
func TestLateTickBesideAnotherSpec(t *testing.T) {
	t.Parallel()
	s := newScheduled(t)
	for _, spec := range []string{"old", "new"} {
		s.call(TickPassed, TickArgs{Spec: spec})
	}
	began := s.from
	s.at(150 * sec)
	s.call(TickEnqueued, TickArgs{Spec: "new", At: start.Add(100 * sec), Message: []byte("m")})
	for range 2 { // as it knew the entry, and as it was answered
		r := s.call(TickPassed, TickArgs{Spec: "old", At: start.Add(50 * sec), From: began, Message: []byte("m")})
		if got := r.From.Sub(start); got != 100*sec {
			t.Errorf("the entry is decided up to %v, want 100s", got)
		}
		began = s.from
	}
	s.call(TickEnqueued, TickArgs{Spec: "old", At: start.Add(120 * sec), Message: []byte("m")})
	s.pending(100*sec, 120*sec)
}

// A spec's ticks count from when it came into use, also when it comes back.
func TestTickOfAnotherSpec(t *testing.T) {
	t.Parallel()
	s := newScheduled(t)
	look := func(spec string, from time.Duration) {
		t.Helper()
		if got := s.call(TickPassed, TickArgs{Spec: spec}).From.Sub(start); got != from {
			t.Errorf("spec %s counts from %v, want %v", spec, got, from)
		}
	}
	tick := func(want int64, spec string, at time.Duration) {
		t.Helper()
		s.call(want, TickArgs{Spec: spec, At: start.Add(at), Message: []byte("m")})
	}
	look("a", 0)
	s.at(100 * sec)
	look("b", 100*sec)
	look("a", 0) // both are in use, while a deploy goes on
	tick(TickEnqueued, "a", 50*sec)
	look("b", 100*sec)
	s.at(150 * sec)
	tick(TickEnqueued, "b", 150*sec)
	look("a", 150*sec) // an instant of both is one tick
	tick(TickPassed, "a", 150*sec)
	for at := 200 * sec; at <= 600*sec; at += 100 * sec {
		s.at(at)
		look("b", 150*sec) // no tick since
	}
	look("a", 600*sec) // it was out of use for more than 5 minutes
	s.pending(50*sec, 150*sec)
	// all were away: that is no change of specs
	s.at(5000 * sec)
	look("a", 600*sec)
	for i := range 40 { // the record does not grow
		s.call(TickPassed, TickArgs{Spec: fmt.Sprint("spec", i)})
	}
	if n := s.raw.HLen(t.Context(), s.q.Tick+"nightly").Val(); n > 20 {
		t.Errorf("the record has %d fields", n)
	}
}

func TestTickRemembersTheLast32(t *testing.T) {
	t.Parallel()
	s := newScheduled(t)
	s.look(0, 0)
	s.at(1000 * sec)
	for i := range 40 {
		s.tick(TickEnqueued, time.Duration(i+1)*sec, TickRuns)
	}
	open := strings.Fields(s.raw.HGet(t.Context(), s.q.Tick+"nightly", "open").Val())
	if len(open) != 32 || open[31] != idOf(start.Add(40*sec)) {
		t.Errorf("open = %v, want the last 32", open)
	}
}
