package queuescripts

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/rediserr"
)

// GetTaskReply is the answer of get_task.lua.
type GetTaskReply struct {
	Now       time.Time
	State     string    // asynq's, "" when the task is gone
	PoolsWake bool      // pools wake it
	At        time.Time // its instant, or asynq's; zero for a state that has none
	Record    string    // as [DeferArgs] had it
	Wait      Wait
	// RunNow says that an operator lets it run without asking its rules.
	RunNow bool
	Woken  time.Time // when pools woke it last; zero for never
}

// getTaskValues is how many values get_task.lua returns.
const getTaskValues = 8

var getTaskScript = luascripts.NewScript("queue/get_task")

// GetTask runs get_task.lua.
func GetTask(ctx context.Context, c redis.Scripter, k QueueKeys, id string) (GetTaskReply, error) {
	r := getTaskScript.Ask(ctx, c, getTaskValues, k.taskKeys(id), luascripts.ShortID(id))
	return taskOf(r), r.Err()
}

// GetTasks is [GetTask] for some tasks of a queue, in one trip.
func GetTasks(ctx context.Context, c redis.UniversalClient, k QueueKeys, ids []string) ([]GetTaskReply, error) {
	calls, replies := make([]luascripts.Command, len(ids)), make([]GetTaskReply, len(ids))
	for i, id := range ids {
		calls[i] = getTaskScript.Call(k.taskKeys(id), luascripts.ShortID(id))
	}
	for i, cmd := range luascripts.SendAll(ctx, c, calls) {
		v, err := cmd.Result()
		r := getTaskScript.Read(getTaskValues, v, err)
		if replies[i] = taskOf(&r); r.Err() != nil {
			return nil, r.Err()
		}
	}
	return replies, nil
}

// TaskStates are asynq's states of some tasks of a queue, "" of those that are gone, in one
// trip.
func TaskStates(ctx context.Context, c redis.Cmdable, k QueueKeys, ids []string) ([]string, error) {
	pipe := c.Pipeline()
	cmds, states := make([]*redis.StringCmd, len(ids)), make([]string, len(ids))
	for i, id := range ids {
		cmds[i] = pipe.HGet(ctx, k.Task(id), "state")
	}
	_, _ = rediserr.Exec(ctx, pipe) // each command carries its own error
	for i, cmd := range cmds {
		var err error
		if states[i], err = cmd.Result(); err != nil && !errors.Is(err, redis.Nil) {
			return nil, fmt.Errorf("HGET: %w", err)
		}
	}
	return states, nil
}

func (k QueueKeys) taskKeys(id string) []string {
	return []string{k.Task(id), k.Due, k.Retry, k.Scheduled}
}

// taskOf reads the answer of get_task.lua.
func taskOf(r *luascripts.Reply) GetTaskReply {
	got := GetTaskReply{Now: r.Time(), State: r.Text(), PoolsWake: r.Int() == 1, At: r.Time(), Record: r.Text(), Wait: waitOf(r.Text()), RunNow: r.Int() == 1}
	if ns, err := strconv.ParseInt(r.Text(), 10, 64); err == nil {
		got.Woken = time.Unix(0, ns)
	}
	return got
}
