package luascripts

import (
	"context"
	"unsafe"

	"github.com/redis/go-redis/v9"
)

// arg is a text among the arguments of a command. go-redis takes each as an interface,
// for which a string needs memory of its own and a pointer none: those of all texts of
// a command point into one slice. Hooks that print a command print the text.
type arg string

func (a *arg) String() string { return string(*a) }

// MarshalBinary is what go-redis writes: it copies the bytes at once.
func (a *arg) MarshalBinary() ([]byte, error) {
	return unsafe.Slice(unsafe.StringData(string(*a)), len(*a)), nil // #nosec G103: nobody writes to them
}

// command is a call of a script as Redis gets it: EVALSHA, the digest, how many
// keys, the keys, the arguments.
type command struct {
	script *redis.Script
	args   []any
	keys   int
}

// run sends the command as it is by a client of go-redis itself. Whatever a program
// has put in front of one is asked as [redis.Script.Run] does.
func (c *command) run(ctx context.Context, rdb redis.Scripter) (any, error) {
	var process func(context.Context, redis.Cmder) error
	switch client := rdb.(type) {
	case *redis.Client:
		process = client.Process
	case *redis.ClusterClient:
		process = client.Process
	default:
		keys, args := c.split()
		return c.script.Run(ctx, rdb, keys, args...).Result()
	}
	cmd := c.cmd(ctx)
	if err := process(ctx, cmd); err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		return c.withText(ctx, rdb).Result()
	}
	return cmd.Result()
}

// cmd is the command as go-redis has it.
func (c *command) cmd(ctx context.Context) *redis.Cmd {
	cmd := redis.NewCmd(ctx, c.args...)
	cmd.SetFirstKeyPos(firstKey)
	return cmd
}

// withText sends it to a server that does not know the script.
func (c *command) withText(ctx context.Context, rdb redis.Scripter) *redis.Cmd {
	keys, args := c.split()
	return c.script.Eval(ctx, rdb, keys, args...)
}

// firstKey is where the keys of a command begin.
const firstKey = 3

// first is the first key.
func (c *command) first() string { return c.args[firstKey].(string) }

// split are the keys and the arguments as [redis.Scripter] takes them.
func (c *command) split() (keys []string, args []any) {
	keys, args = make([]string, 0, c.keys), make([]any, 0, len(c.args)-firstKey-c.keys)
	for i, v := range c.args[firstKey:] {
		if a, ok := v.(*arg); ok {
			v = string(*a)
		}
		if key, ok := v.(string); ok && i < c.keys {
			keys = append(keys, key)
			continue
		}
		args = append(args, v)
	}
	return keys, args
}
