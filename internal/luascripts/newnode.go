package luascripts

import (
	"context"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/slotmap"
)

// prepareCluster prepares a client of a Redis Cluster. From now on the library is also loaded on a node that go-redis does
// not count among the masters. That is one which has no slots yet: while its first slot moves there, calls are
// sent on to it, and ForEachMaster does not name it. Nodes that the client has met before, and servers without functions, are
// not helped: there such calls fail until the master has its slot.
func prepareCluster(c *redis.ClusterClient) {
	slotmap.Follow(c)
	c.OnNewNode(func(node *redis.Client) { node.AddHook(libraryLoader{node}) })
}

// libraryLoader loads the library on a node that answers a call that it lacks it. The call itself is sent again by
// [server.repair], as where all masters get the library.
type libraryLoader struct{ node *redis.Client }

// DialHook implements [redis.Hook].
func (libraryLoader) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements [redis.Hook].
func (l libraryLoader) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		l.heed(ctx, cmd, err)
		return err
	}
}

// ProcessPipelineHook implements [redis.Hook]. A call that another node sends on comes in a pipeline, too.
func (l libraryLoader) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			if l.heed(ctx, cmd, cmd.Err()) {
				break
			}
		}
		return err
	}
}

// heed says whether a call of ours came back from a node without the library. If that can't be loaded, the call that is
// sent again says why.
func (l libraryLoader) heed(ctx context.Context, cmd redis.Cmder, err error) bool {
	if remedyFor(err, byFunction) != loadFirst || !callsLibrary(cmd) {
		return false
	}
	_ = loadLibrary(ctx, l.node)
	return true
}

// callsLibrary says whether a command calls a function of our library: the client may call others, too.
func callsLibrary(cmd redis.Cmder) bool {
	args := cmd.Args()
	if len(args) < 2 {
		return false
	}
	function, ok := args[1].(string)
	return ok && strings.HasPrefix(function, theLibrary().name+"_")
}
