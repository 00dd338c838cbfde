package queuescripts

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
)

// EnqueueMax bounds how many tasks one call of enqueue.lua takes.
const EnqueueMax = 100

// EnqueueTask is a new task. With At it is booked: it stands in a line, and is woken
// at that instant as a deferred task is. Otherwise it is pending, or scheduled when it
// has a Score.
type EnqueueTask struct {
	ID      string
	Token   uint64 // of this enqueueing, not zero: it is done once, however often it is sent
	Message []byte // as asynq encodes it

	Since  int64     // nanoseconds since 1970, since when it is pending
	Score  int64     // seconds since 1970, as asynq writes a later start
	At     time.Time // when a booked task is woken
	Start  time.Time // At by our clock, which counts where the clock of At is another server's
	Record string    // what a booked task waits for
	Reason WaitReason

	Unique string        // asynq's lock of a unique task, or ""
	Lock   time.Duration // its life, whole seconds; of a booked task from its instant on
}

// What enqueue.lua did with a task.
const (
	Enqueued  = 1
	Conflict  = 0
	Duplicate = -1
)

var enqueueScript = luascripts.NewScript("queue/enqueue")

// Enqueue runs enqueue.lua for 1 to [EnqueueMax] tasks of one queue and answers what
// became of each. call is drawn for this call; with the same one, and with the same
// tokens while the tasks exist, it can be sent again.
func Enqueue(ctx context.Context, c redis.Scripter, k QueueKeys, call uint64, tasks []EnqueueTask) ([]int64, error) {
	keys := append(make([]string, 0, 4+2*len(tasks)), k.Pending, k.Scheduled, k.Due, k.Answer(call))
	args := append(make([]any, 0, 1+8*len(tasks)), len(tasks))
	for i := range tasks {
		keys, args = tasks[i].Append(c, k, keys, args)
	}
	return enqueueScript.Ask(ctx, c, len(tasks), keys, args...).Ints(len(tasks))
}

// Answer is the key of what an enqueueing call answered.
func (k QueueKeys) Answer(call uint64) string {
	return k.sent + hex.EncodeToString([]byte(luascripts.TokenText(call)))
}

// Append adds what insert_task.lua needs of the task.
func (t *EnqueueTask) Append(c redis.Scripter, k QueueKeys, keys []string, args []any) ([]string, []any) {
	task := k.Task(t.ID)
	state, when := t.put(c)
	keys = append(keys, task, cmp.Or(t.Unique, task))
	return keys, append(args, luascripts.ShortID(t.ID), luascripts.TokenText(t.Token), t.Message, state, when,
		t.Record, int64(t.Lock/time.Second), t.Reason.text())
}

// put is how insert_task.lua puts the task, and when.
func (t *EnqueueTask) put(c redis.Scripter) (state string, when any) {
	switch {
	case !t.At.IsZero():
		return "booked", dueAt(c, t.At, t.Start)
	case t.Score != 0:
		return "scheduled", t.Score
	}
	return "pending", t.Since
}

// ParseNotice reads what enqueue.lua tells on the channel: how long it is until a task is due
// for which pools may not look by themselves.
func ParseNotice(payload string) (time.Duration, error) {
	us, err := strconv.ParseInt(payload, 10, 64)
	if err != nil || us < 0 {
		return 0, errors.New("queuescripts: what is told is no time")
	}
	return time.Duration(us) * time.Microsecond, nil
}

// Notify tells pools how long it is until a task of a queue is due.
func Notify(ctx context.Context, c redis.UniversalClient, k QueueKeys, wait time.Duration) error {
	if err := c.Publish(ctx, k.Due, luascripts.Micros(max(0, wait))).Err(); err != nil {
		return fmt.Errorf("PUBLISH: %w", err)
	}
	return nil
}

// Channel is where pools are told of a task that is due before they look again.
func (k QueueKeys) Channel() string { return k.Due }

// NameQueue puts a queue into asynq's list of all queues, as asynq's own client does
// when it enqueues the first task.
func NameQueue(ctx context.Context, c redis.Cmdable, queue string) error {
	if err := c.SAdd(ctx, queuesKey, queue).Err(); err != nil {
		return fmt.Errorf("SADD: %w", err)
	}
	return nil
}

// WrittenByHeadway says whether one of our scripts wrote an existing task.
func WrittenByHeadway(ctx context.Context, c redis.Cmdable, k QueueKeys, id string) (bool, error) {
	written, err := c.HExists(ctx, k.Task(id), "hw").Result()
	if err != nil {
		return false, fmt.Errorf("HEXISTS: %w", err)
	}
	return written, nil
}

// Candidate is a task that may exist.
type Candidate struct {
	Queue  QueueKeys
	ID     string
	Unique string // as in [EnqueueTask]
}

// Refusals returns for each what enqueue.lua would refuse it for; Enqueued is for one
// that nobody stands in the way of now. It asks once for all.
func Refusals(ctx context.Context, c redis.Cmdable, candidates []Candidate) ([]int64, error) {
	if len(candidates) == 0 {
		return nil, nil
	}
	pipe := c.Pipeline()
	tasks, locks := make([]*redis.IntCmd, len(candidates)), make([]*redis.IntCmd, len(candidates))
	for i, l := range candidates {
		tasks[i] = pipe.Exists(ctx, l.Queue.Task(l.ID))
		if l.Unique != "" {
			locks[i] = pipe.Exists(ctx, l.Unique)
		}
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("EXISTS: %w", err)
	}
	out := make([]int64, len(candidates))
	for i := range candidates {
		switch {
		case locks[i] != nil && locks[i].Val() == 1:
			out[i] = Duplicate
		case tasks[i].Val() == 1:
			out[i] = Conflict
		default:
			out[i] = Enqueued
		}
	}
	return out, nil
}
