package asynqwire

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/queuescripts"
)

// Recorder is a Redis client for an asynq.Client that is to make messages and not to
// enqueue: its script call is caught, and it believes that the task was enqueued.
// asynq offers no other way to have a message made as it makes them. A call that is not
// as pinned here is refused, and sent nowhere.
type Recorder struct{ redis.UniversalClient }

// Recording is what was caught of one call.
type Recording struct {
	Queue   string
	Task    queuescripts.EnqueueTask
	Unknown bool
}

// ErrUnknownScript is what a task comes back with that asynq enqueues in a way that is
// not pinned here.
var ErrUnknownScript = errors.New("asynq enqueues it in a way that Headway does not know")

type recordKey struct{}

// Record returns a context whose enqueueing call is caught in r.
func Record(ctx context.Context, r *Recording) context.Context {
	return context.WithValue(ctx, recordKey{}, r)
}

// EvalSha catches the call when it is one of asynq's enqueueing scripts.
func (c Recorder) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	r, ok := ctx.Value(recordKey{}).(*Recording)
	if !ok {
		return redis.NewCmdResult(nil, ErrUnknownScript)
	}
	if shape := enqueueShapes[sha]; shape != nil && shape.catch(r, keys, args) {
		return redis.NewCmdResult(int64(queuescripts.Enqueued), nil)
	}
	r.Unknown = true
	return redis.NewCmdResult(nil, ErrUnknownScript)
}

// SAdd is how asynq names a queue before its first task; Headway does that itself.
func (c Recorder) SAdd(context.Context, string, ...any) *redis.IntCmd {
	return redis.NewIntResult(1, nil)
}

// enqueueShape says where an enqueueing script of asynq has what. Arguments that a
// script does not have are -1.
type enqueueShape struct {
	keys                            []string // what follows asynq:{<queue>}:, in order
	args                            int
	message, id, since, score, lock int
}

// What follows the queue in a key that is not a constant.
const (
	enqueueKeyTask   = "t:<id>"
	enqueueKeyUnique = "unique:<type and hash of the payload>"
)

// enqueueShapes are the scripts of asynq v0.26.0 that enqueue one task, by the SHA-1
// of their text. Those that add to a group are not: such a task does not run by itself. TestRecorderGolden says what another version changed.
var enqueueShapes = map[string]*enqueueShape{
	"98d28b42650870a743450ffda9791e9e19c6991b": {keys: []string{enqueueKeyTask, "pending"}, args: 3, message: 0, id: 1, since: 2, score: -1, lock: -1},
	"297b3f9abfd963a3316434ef9d88fc5bf8a7ddc3": {keys: []string{enqueueKeyUnique, enqueueKeyTask, "pending"},
		args: 4, id: 0, lock: 1, message: 2, since: 3, score: -1},
	"8ce6b38a99b73194585c251eb3c2a89559f37a87": {keys: []string{enqueueKeyTask, "scheduled"}, args: 3, message: 0, score: 1, id: 2, since: -1, lock: -1},
	"e9b8aa859a976a1fce09eaf723b4fccd02ba799e": {keys: []string{enqueueKeyUnique, enqueueKeyTask, "scheduled"},
		args: 4, id: 0, lock: 1, score: 2, message: 3, since: -1},
}

// catch reads a call into r, and answers false for one that is not as pinned.
func (s *enqueueShape) catch(r *Recording, keys []string, args []any) bool {
	if len(keys) != len(s.keys) || len(args) != s.args {
		return false
	}
	last := s.keys[len(s.keys)-1]
	prefix, ok := strings.CutSuffix(keys[len(keys)-1], last)
	queue, tagged := strings.CutPrefix(prefix, "asynq:{")
	queue, closed := strings.CutSuffix(queue, "}:")
	id, isText := args[s.id].(string)
	message, isBytes := args[s.message].([]byte)
	if !ok || !tagged || !closed || !isText || !isBytes {
		return false
	}
	t := queuescripts.EnqueueTask{ID: id, Message: message}
	for i, want := range s.keys[:len(s.keys)-1] {
		rest, ok := strings.CutPrefix(keys[i], prefix)
		if !ok || want == enqueueKeyTask && rest != "t:"+id || want == enqueueKeyUnique && !strings.HasPrefix(rest, "unique:") {
			return false
		}
		if want == enqueueKeyUnique {
			t.Unique = keys[i]
		}
	}
	seconds := 0
	for _, number := range []struct {
		at   int
		into any
	}{{s.since, &t.Since}, {s.score, &t.Score}, {s.lock, &seconds}} {
		if number.at >= 0 && !assign(number.into, args[number.at]) {
			return false
		}
	}
	t.Lock = time.Duration(seconds) * time.Second
	r.Queue, r.Task = queue, t
	return true
}

// assign puts an argument where it belongs if its type is the pinned one.
func assign(into, arg any) bool {
	switch into := into.(type) {
	case *int64:
		n, ok := arg.(int64)
		*into = n
		return ok
	case *int:
		n, ok := arg.(int)
		*into = n
		return ok
	}
	return false
}
