package redistest

import (
	"context"
	"crypto/sha1" // #nosec G505: Redis names scripts by it
	"encoding/hex"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redisserver"
)

// Timed is a client whose scripts read a clock that the test sets, on a real Redis or on all masters of a Cluster:
// each call brings the time with it. Keys still expire by the server's own clock, so set times near to now, or later.
type Timed interface {
	redis.UniversalClient
	SetTime(now time.Time) // forward or backward
	Now() time.Time
}

// NewTimed wraps a client and sets its clock.
func NewTimed(c redis.UniversalClient, now time.Time) Timed { return newTimed(c, now, false) }

// NewTimedForLong is [NewTimed], and gives keys an hour more than the scripts ask for: the clock of a test goes other
// ways than that by which the server lets keys expire.
func NewTimedForLong(c redis.UniversalClient, now time.Time) Timed { return newTimed(c, now, true) }

func newTimed(c redis.UniversalClient, now time.Time, long bool) Timed {
	t := &timed{UniversalClient: c, long: long}
	t.SetTime(now)
	if cluster, ok := c.(*redis.ClusterClient); ok {
		return timedCluster{t, cluster}
	}
	return t
}

// Clock is one that a test sets.
type Clock struct{ us atomic.Int64 }

// SetTime moves the clock, forward or backward.
func (c *Clock) SetTime(now time.Time) { c.us.Store(now.UnixMicro()) }

// Now is what the clock shows.
func (c *Clock) Now() time.Time { return time.UnixMicro(c.us.Load()) }

func (c *Clock) after(args []any) []any {
	return append(slices.Clip(args), redisserver.ClockArgument(c.Now()))
}

type timed struct {
	redis.UniversalClient
	Clock
	long  bool
	texts sync.Map // SHA-1 -> timedText
}

// timedText is what runs in place of a script.
type timedText struct {
	text       string
	takesClock bool
}

// timedCluster is seen to be a client of a Cluster.
type timedCluster struct {
	*timed
	cluster *redis.ClusterClient
}

// ForEachShard calls fn with a client of each node.
func (t timedCluster) ForEachShard(ctx context.Context, fn func(context.Context, *redis.Client) error) error {
	return t.cluster.ForEachShard(ctx, fn)
}

// ClockStands tells limiters that an answer says nothing about its age.
func (t *timed) ClockStands() {}

// EvalSha runs the changed text if it is known, and asks for it otherwise.
func (t *timed) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	return t.evalSha(ctx, t.UniversalClient, sha, keys, args)
}

// Eval runs the changed text and remembers it.
func (t *timed) Eval(ctx context.Context, text string, keys []string, args ...any) *redis.Cmd {
	return t.evalSha(ctx, t.UniversalClient, t.change(text), keys, args)
}

// ScriptLoad remembers the changed text.
func (t *timed) ScriptLoad(ctx context.Context, text string) *redis.StringCmd {
	t.change(text)
	return t.UniversalClient.ScriptLoad(ctx, text)
}

// Pipeline returns a pipeline whose scripts read the test's clock.
func (t *timed) Pipeline() redis.Pipeliner { return &timedPipe{t.UniversalClient.Pipeline(), t} }

type timedPipe struct {
	redis.Pipeliner
	timed *timed
}

func (p *timedPipe) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	return p.timed.evalSha(ctx, p.Pipeliner, sha, keys, args)
}

func (t *timed) evalSha(ctx context.Context, to redis.Scripter, sha string, keys []string, args []any) *redis.Cmd {
	script, ok := t.texts.Load(sha)
	if !ok {
		cmd := redis.NewCmd(ctx, "evalsha")
		cmd.SetErr(noScript{})
		return cmd
	}
	instead := script.(timedText)
	if instead.takesClock {
		args = t.after(args)
	}
	return to.Eval(ctx, instead.text, keys, args...)
}

// change remembers what runs in place of a text, and answers by which SHA-1 that is known.
func (t *timed) change(text string) string {
	sum := sha1.Sum([]byte(text)) // #nosec G401
	sha := hex.EncodeToString(sum[:])
	var instead timedText
	instead.text, instead.takesClock = redisserver.ByArgument(text)
	if t.long {
		instead.text = redisserver.Longer(instead.text)
	}
	t.texts.Store(sha, instead)
	return sha
}

type noScript struct{}

func (noScript) Error() string { return "NOSCRIPT not known to this client" }
func (noScript) RedisError()   {}

// Skew loads a library of functions on a server, by whose functions the server's clock is ahead
// of its real one. Clients find the library there, and load no other.
func Skew(ctx context.Context, c *redis.Client, library string, ahead time.Duration) error {
	return c.FunctionLoad(ctx, redisserver.Ahead(library, ahead)).Err()
}
