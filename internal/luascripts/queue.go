package luascripts

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// safetyNet is how long after its instant asynq's own forwarder may take a
// deferred task: the second net, should every waker be gone.
const safetyNet = 5 * time.Second

// retryScore is asynq's whole-second score of a task that is due at an instant.
func retryScore(at time.Time) int64 { return at.Unix() + int64(safetyNet/time.Second) }

// DeferArgs are the arguments of defer.lua beside its keys.
type DeferArgs struct {
	ID     string
	At     time.Time
	For    string        // what the task waits for
	Wait   time.Duration // from now to At
	Unique string        // asynq's lock of a unique task, or ""
}

// Defer runs defer.lua and hands asynq its very answer.
func Defer(ctx context.Context, c redis.Scripter, k Queue, a DeferArgs) *redis.Cmd {
	task := k.Task(a.ID)
	unique := a.Unique
	if unique == "" {
		unique = task
	}
	return deferScript.Run(ctx, c, []string{task, k.active, k.lease, k.retry, k.due, k.places, unique},
		a.ID, a.At.UnixMicro(), retryScore(a.At), a.For, micros(max(0, a.Wait)))
}

// DueTask is a deferred task whose instant has nearly come.
type DueTask struct {
	ID    string
	At    time.Time
	State string // asynq's state, "" when the task is gone
	For   string // as [DeferArgs] had it
}

// DueReply is the answer of due.lua.
type DueReply struct {
	Now   time.Time
	Next  time.Time // of the first that is not listed; zero when there is none
	Tasks []DueTask
}

// Due runs due.lua. most is 1 to 1000.
func Due(ctx context.Context, c redis.Scripter, k Queue, lead time.Duration, most int) (DueReply, error) {
	r := run(ctx, c, dueScript, "due.lua", 3, []string{k.due, k.places}, k.task, micros(lead), most)
	reply := DueReply{Now: r.time(), Next: r.time()}
	for range r.count(4) {
		reply.Tasks = append(reply.Tasks, DueTask{At: r.time(), ID: r.text(), State: r.text(), For: r.text()})
	}
	return reply, r.err
}

// What wake.lua did with a task.
const (
	Woken       = 1
	StillActive = 2
	Gone        = 3
	NotOurs     = 4
)

// Wake runs wake.lua for at most 1000 tasks, the first to run first, and
// answers what became of each.
func Wake(ctx context.Context, c redis.Scripter, k Queue, ids []string, now time.Time) ([]int64, error) {
	keys := append(make([]string, 0, 4+len(ids)), k.due, k.retry, k.pending, k.places)
	args := append(make([]any, 0, 2+len(ids)), now.UnixNano(), len(ids))
	for _, id := range ids {
		keys = append(keys, k.Task(id))
		args = append(args, id)
	}
	return codes(run(ctx, c, wakeScript, "wake.lua", len(ids), keys, args...), len(ids))
}

// Retiming is a task and its new instant.
type Retiming struct {
	ID string
	At time.Time
}

// Retime runs retime.lua for at most 1000 tasks and answers which moved. With
// earlier set only what comes earlier moves, also for a task that is active.
func Retime(ctx context.Context, c redis.Scripter, k Queue, earlier bool, tasks []Retiming) ([]int64, error) {
	flag := 0
	if earlier {
		flag = 1
	}
	keys := append(make([]string, 0, 3+len(tasks)), k.due, k.retry, k.places)
	args := append(make([]any, 0, 2+3*len(tasks)), len(tasks), flag)
	for _, t := range tasks {
		keys = append(keys, k.Task(t.ID))
		args = append(args, t.ID, t.At.UnixMicro(), retryScore(t.At))
	}
	return codes(run(ctx, c, retimeScript, "retime.lua", len(tasks), keys, args...), len(tasks))
}

func codes(r *reply, n int) ([]int64, error) {
	out := make([]int64, n)
	for i := range out {
		out[i] = r.int()
	}
	return out, r.err
}

// Forget drops what defer.lua left of a task that a user's own error now sends
// to asynq's retry set: its back-off must not be mistaken for our score.
func Forget(ctx context.Context, c redis.UniversalClient, k Queue, id string) error {
	pipe := c.Pipeline()
	pipe.ZRem(ctx, k.due, id)
	pipe.HDel(ctx, k.places, id)
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("forget: %w", err)
	}
	return nil
}

// Rules runs rules.lua: it says that this process runs the given "rule limit"
// pairs and answers all that were said within ttl.
func Rules(ctx context.Context, c redis.Scripter, prefix string, ttl time.Duration, own []string) ([]string, error) {
	args := append(make([]any, 0, 2+len(own)), micros(ttl), len(own))
	for _, m := range own {
		args = append(args, m)
	}
	v, err := rulesScript.Run(ctx, c, []string{rulesKey(prefix)}, args...).StringSlice()
	if err != nil {
		return nil, fmt.Errorf("rules.lua: %w", err)
	}
	return v, nil
}

// Now is Redis' clock.
func Now(ctx context.Context, c redis.UniversalClient) (time.Time, error) {
	t, err := c.Time(ctx).Result()
	if err != nil {
		return time.Time{}, fmt.Errorf("TIME: %w", err)
	}
	return t, nil
}
