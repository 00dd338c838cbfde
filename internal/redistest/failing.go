package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// FailingScripts is a hook of a client. It makes scripts fail as if their server could not be reached. By the name of a
// script it says which of its calls fail: those of which a key or an argument contains the text; all where that is empty.
//
// It knows a script by the name of its function, so a test that uses it calls [NeedFunctions].
type FailingScripts map[string]string

// DialHook changes nothing.
func (FailingScripts) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessPipelineHook changes nothing: calls in pipelines do not fail.
func (FailingScripts) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// ProcessHook makes calls fail.
func (f FailingScripts) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !f.fails(cmd.Args()) {
			return next(ctx, cmd)
		}
		err := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
		cmd.SetErr(err)
		return err
	}
}

func (f FailingScripts) fails(args []any) bool {
	name := fmt.Sprint(args[min(1, len(args)-1)])
	for script, text := range f {
		if strings.HasSuffix(name, "_"+script) && slices.ContainsFunc(args, func(a any) bool { return strings.Contains(fmt.Sprint(a), text) }) {
			return true
		}
	}
	return false
}
