package queuescripts

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/redistest"
)

const minute = time.Minute

// asynqQueue is a queue as asynq keeps it, made by hand.
type asynqQueue struct {
	*testing.T
	rdb redis.UniversalClient
	raw *redis.Client
	q   QueueKeys
}

func newQueue(t *testing.T, opts ...redistest.Option) *asynqQueue {
	t.Helper()
	rdb, raw := redistest.StartTimed(t, opts...)
	return &asynqQueue{t, rdb, raw, NewQueueKeys("hw", "default")}
}

// pool is who defers.
var pool = PoolMark{1, 0, 255, 7}

// put makes a task in a state, where asynq has it.
func (a *asynqQueue) put(state string, ids ...string) {
	redistest.PutTasks(a.raw, state, ids...)
}

// tasks are named as those who have not seen their entries name them.
func tasks(ids ...string) []DueTask {
	out := make([]DueTask, len(ids))
	for i, id := range ids {
		out[i].ID = id
	}
	return out
}

// dueAt is the instant of a task in the index, 0 when it has none.
func (a *asynqQueue) dueAt(id string) float64 {
	for _, e := range []string{luascripts.ShortID(id), fmt.Sprintf("\x03%d:%ssms 1 key", len(id), id)} {
		if at := a.raw.ZScore(a.Context(), a.q.Due, e).Val(); at != 0 {
			return at
		}
	}
	return 0
}

func (a *asynqQueue) deferTask(id string, in time.Duration, unique string) {
	a.Helper()
	d := DeferArgs{ID: id, Token: rand.Uint64(), At: start.Add(in), Record: "sms 1 key", Wait: in, Unique: unique, Pool: pool}
	if err := Defer(a.Context(), a.rdb, a.q, d).Err(); err != nil {
		a.Fatalf("Defer(%q): %v", id, err)
	}
	redistest.KeysHaveALife(a.T, a.raw)
}

// place checks where a task is: its state, asynq's score, our instant.
func (a *asynqQueue) place(id, state string, score, due time.Duration) {
	a.Helper()
	ctx := a.Context()
	if got := a.raw.HGet(ctx, a.q.Task(id), "state").Val(); got != state {
		a.Errorf("%s is %q, want %q", id, got, state)
	}
	want := map[bool]float64{true: float64(start.Add(score).Unix())}[score != 0]
	if got := a.raw.ZScore(ctx, a.q.Retry, id).Val(); got != want {
		a.Errorf("%s has the score %v in retry, want %v", id, got, want)
	}
	want = map[bool]float64{true: float64(start.Add(due).UnixMicro())}[due != 0]
	if got := a.dueAt(id); got != want {
		a.Errorf("%s is due at %.0f, want %.0f", id, got, want)
	}
	redistest.KeysHaveALife(a.T, a.raw)
}
