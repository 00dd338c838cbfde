package schedule

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/schedulescripts"
)

// life is when a replica was there.
type life struct{ from, to time.Time }

// replica is a process: its clock is off, and runs too fast or too slow.
type replica struct {
	world  *scheduleWorld
	skew   time.Duration
	drift  time.Duration // in a second of the world
	ticker *ticker       // nil while it is down
	since  time.Time     // it is up
	wake   time.Time
	change time.Time // when it is killed, or started

	// Of the pass under way: calls that Redis gets before it is killed, whether
	// the reply of the last one is lost, and how many ticks it decided, or
	// found to be still held.
	calls int
	lost  bool
	tried int
}

var errKilled = errors.New("killed")

// clock is the time that a replica shows.
func (r *replica) clock() time.Time {
	since := r.world.now.Sub(time.Unix(1_770_000_000, 0))
	return r.world.now.Add(since/time.Second*r.drift + since%time.Second*r.drift/time.Second + r.skew)
}

// EvalSha is a script call, unless the replica is killed before that.
func (r *replica) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	return r.call(args, func() *redis.Cmd { return r.world.timed.EvalSha(ctx, sha, keys, args...) })
}

// Eval follows an EvalSha of a script that was not known.
func (r *replica) Eval(ctx context.Context, text string, keys []string, args ...any) *redis.Cmd {
	return r.call(args, func() *redis.Cmd { return r.world.timed.Eval(ctx, text, keys, args...) })
}

func (r *replica) call(args []any, do func() *redis.Cmd) *redis.Cmd {
	if r.calls == 0 {
		return redis.NewCmdResult(nil, errKilled)
	}
	cmd := do()
	if cmd.Err() != nil {
		return cmd
	}
	r.calls--
	if at := args[2].(int64); at != 0 {
		code := cmd.Val().([]any)[0].(int64)
		r.world.decided(time.UnixMicro(at).UTC(), code)
		if code != schedulescripts.TickPassed {
			r.tried++
		}
	}
	if r.calls == 0 && r.lost {
		return redis.NewCmdResult(nil, errKilled)
	}
	return cmd
}

// replicaRedis gives a replica's calls to it, and all others to Redis.
type replicaRedis struct {
	redis.UniversalClient
	*replica
}

func (r replicaRedis) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	return r.replica.EvalSha(ctx, sha, keys, args...)
}

func (r replicaRedis) Eval(ctx context.Context, text string, keys []string, args ...any) *redis.Cmd {
	return r.replica.Eval(ctx, text, keys, args...)
}
