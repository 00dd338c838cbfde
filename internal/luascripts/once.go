package luascripts

import (
	"context"
	"slices"

	"github.com/redis/go-redis/v9"
)

// processor is the part of a client or a pipeline that sends any command.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// onceCmd is a command that go-redis does not repeat when its answer is lost.
type onceCmd struct{ *redis.Cmd }

// NoRetry tells go-redis not to repeat the command.
func (onceCmd) NoRetry() bool { return true }

// processOnce sends a command once. The command carries its error.
func processOnce(ctx context.Context, to processor, cmd *redis.Cmd) {
	_ = to.Process(ctx, onceCmd{cmd})
}

// evalOnce sends the command as a script, by the name of Redis' command and the hash or the text of the script. A
// client that stands in front of go-redis' own may have its own way to run scripts, and keeps it.
func (c *Command) evalOnce(ctx context.Context, to redis.Scripter, name, script string) *redis.Cmd {
	switch to := to.(type) {
	case *redis.Client:
		return c.evalOnceBy(ctx, to, name, script)
	case *redis.ClusterClient:
		return c.evalOnceBy(ctx, to, name, script)
	}
	keys, args := c.split()
	if name == "eval" {
		return to.Eval(ctx, script, keys, args...)
	}
	return to.EvalSha(ctx, script, keys, args...)
}

func (c *Command) evalOnceBy(ctx context.Context, to processor, name, script string) *redis.Cmd {
	all := slices.Clone(c.args)
	all[0], all[1] = name, script
	cmd := redis.NewCmd(ctx, all...)
	cmd.SetFirstKeyPos(firstKey)
	processOnce(ctx, to, cmd)
	return cmd
}
