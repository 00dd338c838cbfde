package worker

import (
	"cmp"
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/coalesce"
)

// scriptsMost is how many scripts of asynq's go in one pipeline.
const scriptsMost = 64

// scripts sends what asynq's servers of this process fetch and finish: the scripts that
// come while others are under way go in one pipeline, see [coalesce.Lane]. A fetch and the end
// of a task are a script each, and what the system calls for them cost is more than the
// scripts do.
//
// Each is answered alone. One whose answer was lost goes again by itself, where the client
// repeats anything at all: go-redis would send those again that were answered, too. On
// Redis Cluster, and with a client of a type of the program's own, each goes by itself.
type scripts struct {
	rdb     *redis.Client // nil where each goes by itself
	repeats bool
	way     coalesce.Transport[*script]
	lane    *coalesce.Batcher[*script]
}

// script is a call of one, with its answer.
type script struct {
	*redis.Cmd
	answered bool
	again    bool // nothing came of it
}

// SetErr is how go-redis tells what became of a command, and marks all of a pipeline that
// broke: those, too, that were answered before. A hook that sends a pipeline anew takes the
// marks away.
func (s *script) SetErr(err error) {
	if err == nil && s.Val() != nil || coalesce.Answered(err) {
		s.answered = true
	} else if s.answered {
		return
	}
	s.Cmd.SetErr(err)
}

// NoRetry has go-redis send a pipeline once.
func (s *script) NoRetry() bool { return true }

func newScripts(rdb redis.UniversalClient) *scripts {
	x := &scripts{}
	if x.rdb, _ = rdb.(*redis.Client); x.rdb != nil {
		x.repeats = x.rdb.Options().MaxRetries > 0
	}
	x.way = coalesce.Transport[*script]{
		Alone: x.alone, Together: x.pipeline, Patience: coalesce.PatienceDefault,
		Weight: func(*script) int { return 1 }, Most: scriptsMost,
	}
	x.lane = coalesce.NewBatcher(&x.way)
	return x
}

// evalSha answers as the client's own does.
func (x *scripts) evalSha(ctx context.Context, sha string, keys []string, args []any) *redis.Cmd {
	const first = 3
	all := make([]any, first, first+len(keys)+len(args))
	all[0], all[1], all[2] = "evalsha", sha, len(keys)
	for _, k := range keys {
		all = append(all, k)
	}
	all = append(all, args...)
	s := &script{Cmd: redis.NewCmd(ctx, all...)}
	s.SetFirstKeyPos(first)
	if err := x.lane.Do(ctx, s); err != nil && ctx.Err() != nil { // it may be under way still
		cmd := redis.NewCmd(ctx, all...)
		cmd.SetErr(err)
		return cmd
	}
	if s.again {
		s.Cmd.SetErr(nil)
		_ = x.alone(ctx, s)
	}
	return s.Cmd
}

func (x *scripts) alone(ctx context.Context, s *script) error { return x.rdb.Process(ctx, s.Cmd) }

// pipeline returns the error of those whose answers are lost.
func (x *scripts) pipeline(ctx context.Context, all []*script) (lost error) {
	pipe := x.rdb.Pipeline()
	for _, s := range all {
		_ = pipe.Process(ctx, s)
	}
	_, err := pipe.Exec(ctx)
	for _, s := range all {
		if s.answered {
			s.again = x.repeats && refused(s.Err())
			continue
		}
		lost = cmp.Or(s.Err(), err, errNoAnswer)
		s.Cmd.SetErr(lost)
		s.again = x.repeats && ctx.Err() == nil && !coalesce.TimedOut(lost)
	}
	return lost
}

// refused says that a server does nothing for a while, and go-redis asks again.
func refused(err error) bool {
	for _, prefix := range []string{"LOADING", "READONLY", "MASTERDOWN", "TRYAGAIN", "max number of clients reached"} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}

// errNoAnswer is what a hook makes of a script that swallows it.
var errNoAnswer = errors.New("worker: a script was not answered")
