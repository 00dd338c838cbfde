package metrics

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Hook measures how long scripts take. Add it to the client of a pool before the pool is
// made. It reads the names of scripts, and none of their arguments.
func (m *Metrics) Hook() redis.Hook { return hook{m} }

type hook struct{ m *Metrics }

func (h hook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		name, ok := script(cmd)
		if !ok {
			return next(ctx, cmd)
		}
		began := time.Now()
		err := next(ctx, cmd)
		h.m.scripts.WithLabelValues(name).Observe(time.Since(began).Seconds())
		return err
	}
}

func (h hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		began := time.Now()
		err := next(ctx, cmds)
		h.m.scripts.WithLabelValues("pipeline").Observe(time.Since(began).Seconds())
		return err
	}
}

// script is the label of a call: the name of one of our functions, or which way of calling
// a script it is. Functions of other programs on the same client are "other".
func script(cmd redis.Cmder) (name string, ok bool) {
	switch cmd.Name() {
	case "eval", "evalsha", "eval_ro", "evalsha_ro":
		return "evalsha", true // asynq's, and ours where there are no functions
	case "fcall", "fcall_ro":
		args := cmd.Args()
		if len(args) < 2 {
			return "other", true
		}
		return function(fmt.Sprint(args[1])), true
	}
	return "", false
}

// function shortens the name of a function of our library, which carries a digest:
// "headway_0123456789ab_acquire" is "acquire".
func function(name string) string {
	digest, short, ok := strings.Cut(strings.TrimPrefix(name, "headway_"), "_")
	if !ok || !strings.HasPrefix(name, "headway_") || len(digest) != 12 {
		return "other"
	}
	return short
}
