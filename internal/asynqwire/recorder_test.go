package asynqwire

// The golden test runs the real asynq.Client and pins what the recorder relies on:
// scripts, keys, arguments and their types. When asynq is upgraded it says what
// changed.

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/redistest"
)

// spy notes the script calls that reach it.
type spy struct {
	redis.UniversalClient
	calls []enqueueCall
}

type enqueueCall struct {
	sha  string
	keys []string
	args []any
}

func (s *spy) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	s.calls = append(s.calls, enqueueCall{sha, keys, args})
	return s.UniversalClient.EvalSha(ctx, sha, keys, args...)
}

// asynqWays are all asynqWays in which asynq enqueues.
var asynqWays = []struct {
	name  string
	opts  []asynq.Option
	sha   string
	keys  []string
	args  string // types
	group bool
}{
	{"pending", nil, "98d28b42650870a743450ffda9791e9e19c6991b", []string{"t:id", "pending"}, "[]uint8 string int64", false},
	{"unique", []asynq.Option{asynq.Unique(time.Minute)}, "297b3f9abfd963a3316434ef9d88fc5bf8a7ddc3", []string{uniqueOfSMS, "t:id", "pending"}, "string int []uint8 int64", false},
	{"scheduled", []asynq.Option{asynq.ProcessIn(time.Hour)}, "8ce6b38a99b73194585c251eb3c2a89559f37a87", []string{"t:id", "scheduled"}, "[]uint8 int64 string", false},
	{"scheduled unique", []asynq.Option{asynq.ProcessIn(time.Hour), asynq.Unique(time.Minute)}, "e9b8aa859a976a1fce09eaf723b4fccd02ba799e",
		[]string{uniqueOfSMS, "t:id", "scheduled"}, "string int int64 []uint8", false},
	{"group", []asynq.Option{asynq.Group("g")}, "074af2c5a4623800684c1b0e4e328c2500f06815", []string{"t:id", "g:g", "groups"}, "[]uint8 string int64 string", true},
	{"unique in a group", []asynq.Option{asynq.Group("g"), asynq.Unique(time.Minute)}, "deeb77b98fd021a8a0279d8e7dd11a8a4546611a",
		[]string{"t:id", "g:g", "groups", uniqueOfSMS}, "[]uint8 string int64 string int", true},
}

const uniqueOfSMS = "unique:sms:send:c5bbc0c638bd262cfdcdb9d673abff03"

// newSpied is an asynq client whose script calls are noted before the recorder
// sees them, and what reaches Redis after it.
func newSpied(t *testing.T) (client *asynq.Client, before, after *spy, rdb *redis.Client) {
	t.Helper()
	rdb = redistest.Start(t).Client(t)
	after = &spy{UniversalClient: rdb}
	before = &spy{UniversalClient: Recorder{after}}
	return asynq.NewClientFromRedisClient(before), before, after, rdb
}

func smsTask(opts ...asynq.Option) *asynq.Task {
	return asynq.NewTask("sms:send", []byte(`{"to":"13612345678"}`), append(opts, asynq.Queue("q"), asynq.TaskID("id"), asynq.MaxRetry(3))...)
}

func TestRecorderGolden(t *testing.T) {
	t.Parallel()
	for _, way := range asynqWays {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			client, before, after, rdb := newSpied(t)
			r := &Recording{}
			began := time.Now()
			info, err := client.EnqueueContext(Record(t.Context(), r), smsTask(way.opts...))
			if way.group != (err != nil) || err == nil && (info.ID != "id" || info.Queue != "q" || r.Queue != "q") {
				t.Fatalf("EnqueueContext = %v, %v, caught %+v, want the task", info, err, r)
			}
			call := before.calls[0]
			keys := make([]string, len(way.keys))
			for i, k := range way.keys {
				keys[i] = "asynq:{q}:" + k
			}
			types := ""
			for i, arg := range call.args {
				types += fmt.Sprintf("%T", arg)
				if i < len(call.args)-1 {
					types += " "
				}
			}
			if diff := cmp.Diff([]any{way.sha, keys, way.args}, []any{call.sha, call.keys, types}); diff != "" {
				t.Errorf("asynq's call changed (-want +got):\n%s", diff)
			}
			if n := rdb.DBSize(t.Context()).Val(); n != 0 || len(after.calls) != 0 {
				t.Errorf("%d keys are written, %d calls went on, want none", n, len(after.calls))
			}
			if way.group {
				if r.Queue != "" || !r.Unknown {
					t.Errorf("caught %+v, want nothing", r)
				}
				return
			}
			wantCaught(t, way.name, r.Task, began)
		})
	}
}

// wantCaught holds what was caught against what was asked for.
func wantCaught(t *testing.T, way string, got queuescripts.EnqueueTask, began time.Time) {
	t.Helper()
	if len(got.Message) == 0 || got.ID != "id" {
		t.Errorf("caught %+v, want a message of id", got)
	}
	later, unique := way == "scheduled" || way == "scheduled unique", way == "unique" || way == "scheduled unique"
	if in := time.Unix(got.Score, 0).Sub(began); later != (got.Score != 0) || later && (in < time.Hour-2*time.Second || in > time.Hour+minuteOfGrace) {
		t.Errorf("caught the score %d, later %v", got.Score, later)
	}
	if since := time.Unix(0, got.Since); later != (got.Since == 0) || !later && since.Before(began) {
		t.Errorf("caught pending since %d, later %v", got.Since, later)
	}
	switch {
	case !unique && (got.Unique != "" || got.Lock != 0):
		t.Errorf("caught the lock %q for %v, want none", got.Unique, got.Lock)
	case unique && got.Unique != "asynq:{q}:"+uniqueOfSMS:
		t.Errorf("caught the lock %q", got.Unique)
	case way == "unique" && got.Lock != time.Minute, way == "scheduled unique" && (got.Lock < time.Hour || got.Lock > time.Hour+time.Minute):
		t.Errorf("caught a lock for %v", got.Lock)
	}
}

const minuteOfGrace = time.Minute

// A call that is not as pinned is not taken for one that is, and goes nowhere.
func TestRecorderRefusesTheUnknown(t *testing.T) {
	t.Parallel()
	sha := asynqWays[0].sha
	message, id, since := any([]byte("m")), any("id"), any(int64(1))
	keys := []string{"asynq:{q}:t:id", "asynq:{q}:pending"}
	for name, call := range map[string]enqueueCall{
		"another script":     {"0000000000000000000000000000000000000000", keys, []any{message, id, since}},
		"another key":        {sha, []string{"asynq:{q}:t:other", "asynq:{q}:pending"}, []any{message, id, since}},
		"another queue":      {sha, []string{"asynq:{p}:t:id", "asynq:{q}:pending"}, []any{message, id, since}},
		"another set":        {sha, []string{"asynq:{q}:t:id", "asynq:{q}:waiting"}, []any{message, id, since}},
		"no tag":             {sha, []string{"asynq:q:t:id", "asynq:q:pending"}, []any{message, id, since}},
		"another type":       {sha, keys, []any{message, id, "1"}},
		"a text for message": {sha, keys, []any{"m", id, since}},
		"bytes for id":       {sha, keys, []any{message, []byte("id"), since}},
		"more arguments":     {sha, keys, []any{message, id, since, since}},
		"no lock":            {asynqWays[1].sha, []string{"asynq:{q}:lock", "asynq:{q}:t:id", "asynq:{q}:pending"}, []any{"id", 1, message, since}},
	} {
		r := &Recording{}
		err := Recorder{}.EvalSha(Record(t.Context(), r), call.sha, call.keys, call.args...).Err()
		if !errors.Is(err, ErrUnknownScript) || r.Queue != "" || !r.Unknown {
			t.Errorf("%s: %v, caught %+v, want nothing", name, err, r)
		}
	}
	if err := (Recorder{}).EvalSha(t.Context(), sha, keys, message, id, since).Err(); !errors.Is(err, ErrUnknownScript) {
		t.Errorf("a call that nobody records = %v, want an error", err)
	}
}

// What Headway writes is what asynq writes, field by field.
func TestRecordedTaskIsAsAsynqWritesIt(t *testing.T) {
	t.Parallel()
	opts := []asynq.Option{asynq.Timeout(7 * time.Second), asynq.Deadline(time.Now().Add(3 * time.Hour)), asynq.Retention(time.Minute)}
	for _, way := range asynqWays[:4] {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			client, _, _, _ := newSpied(t)
			theirs := redistest.Start(t).Client(t)
			ours := redistest.Start(t).Client(t)
			task := smsTask(append(opts, way.opts...)...)
			r := &Recording{}
			if _, err := client.EnqueueContext(Record(t.Context(), r), task); err != nil {
				t.Fatal(err)
			}
			r.Task.Token = 1
			codes, err := queuescripts.Enqueue(t.Context(), ours, queuescripts.NewQueueKeys("hw", r.Queue), 1, []queuescripts.EnqueueTask{r.Task})
			if err != nil || codes[0] != queuescripts.Enqueued {
				t.Fatalf("Enqueue = %v, %v", codes, err)
			}
			if _, err := asynq.NewClientFromRedisClient(theirs).EnqueueContext(t.Context(), task); err != nil {
				t.Fatal(err)
			}
			got, want := stateOf(t, ours), stateOf(t, theirs)
			delete(want, "asynq:queues") // named by asynq itself
			delete(want, "asynq:queues lives")
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("Redis holds (-asynq's +ours):\n%s", diff)
			}
		})
	}
}

// stateOf is what asynq's keys hold, without what no two calls have in common.
func stateOf(t *testing.T, rdb *redis.Client) map[string]any {
	t.Helper()
	ctx, out := t.Context(), map[string]any{}
	for _, k := range rdb.Keys(ctx, "asynq:*").Val() {
		switch rdb.Type(ctx, k).Val() {
		case "hash":
			h := rdb.HGetAll(ctx, k).Val()
			delete(h, "hw")
			if h["pending_since"] != "" {
				h["pending_since"] = h["pending_since"][:8] // within some minutes
			}
			out[k] = h
		case "list":
			out[k] = rdb.LRange(ctx, k, 0, -1).Val()
		case "zset":
			out[k] = rdb.ZRange(ctx, k, 0, -1).Val()
		case "string":
			out[k] = rdb.Get(ctx, k).Val()
		default:
			out[k] = nil
		}
		out[k+" lives"] = rdb.TTL(ctx, k).Val().Round(time.Minute)
	}
	return out
}
