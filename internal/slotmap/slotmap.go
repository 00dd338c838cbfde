// Package slotmap keeps a client's map of a Redis Cluster fresh: which server has which
// slots.
//
// go-redis reads the map again when a server answers that a slot has moved, and otherwise
// once a minute. A master that was killed answers nothing. A client would go on to call it
// for up to a minute, although the Cluster has elected another master within seconds.
package slotmap

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/rediserr"
)

// Follow makes the client read the map again whenever a server can't be reached or does not
// answer. go-redis reads it at most five times a second, in the background, whatever the
// number of calls that fail. It holds for all commands of the client, also for those of
// asynq. Call it once for each client.
func Follow(c *redis.ClusterClient) { c.AddHook(hook{c}) }

type hook struct{ cluster *redis.ClusterClient }

// DialHook implements [redis.Hook]. The client of a Cluster dials nobody itself.
func (h hook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements [redis.Hook].
func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		h.heed(ctx, err)
		return err
	}
}

// ProcessPipelineHook implements [redis.Hook]. A pipeline goes to several servers, and its
// error is that of the first command that failed.
func (h hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			h.heed(ctx, cmd.Err())
		}
		return err
	}
}

// heed reads the map again when an error says that a server is gone.
func (h hook) heed(ctx context.Context, err error) {
	if err != nil && isGone(err) {
		h.cluster.ReloadState(ctx)
	}
}

// isGone says that a server could not be reached, or broke off. A caller that gave up says
// nothing about the server.
func isGone(err error) bool {
	return !rediserr.Of(err).Answered() && !errors.Is(err, context.Canceled)
}
