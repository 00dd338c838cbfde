package redistest

import (
	"context"
	"crypto/sha1" // #nosec G505: Redis names scripts by it
	"encoding/hex"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redisserver"
)

// Timed is a client whose scripts read a clock that the test sets, on a real
// Redis: each TIME in a script's text is replaced by a look at a key. Keys
// still expire by the server's own clock, so set times near to now, or later.
type Timed struct {
	redis.UniversalClient
	texts sync.Map // SHA-1 -> text that reads the test's clock
}

// NewTimed wraps a client and sets its clock.
func NewTimed(ctx context.Context, c redis.UniversalClient, now time.Time) (*Timed, error) {
	t := &Timed{UniversalClient: c}
	return t, t.SetTime(ctx, now)
}

// SetTime moves the clock, forward or backward.
func (t *Timed) SetTime(ctx context.Context, now time.Time) error {
	return SetClock(ctx, t, now)
}

// ClockStands tells limiters that an answer says nothing about its age.
func (t *Timed) ClockStands() {}

// EvalSha runs the changed text if it is known, and asks for it otherwise.
func (t *Timed) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	if text, ok := t.texts.Load(sha); ok {
		return t.UniversalClient.Eval(ctx, text.(string), keys, args...)
	}
	return unknownScript(ctx)
}

// Eval runs the changed text and remembers it.
func (t *Timed) Eval(ctx context.Context, text string, keys []string, args ...any) *redis.Cmd {
	return t.UniversalClient.Eval(ctx, t.change(text), keys, args...)
}

// ScriptLoad remembers the changed text.
func (t *Timed) ScriptLoad(ctx context.Context, text string) *redis.StringCmd {
	t.change(text)
	return t.UniversalClient.ScriptLoad(ctx, text)
}

// Pipeline returns a pipeline whose scripts read the test's clock.
func (t *Timed) Pipeline() redis.Pipeliner { return &timedPipe{t.UniversalClient.Pipeline(), t} }

type timedPipe struct {
	redis.Pipeliner
	timed *Timed
}

func (p *timedPipe) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	if text, ok := p.timed.texts.Load(sha); ok {
		return p.Eval(ctx, text.(string), keys, args...)
	}
	return unknownScript(ctx)
}

func (t *Timed) change(text string) string {
	sum := sha1.Sum([]byte(text)) // #nosec G401
	changed := redisserver.ByClockKey(text)
	t.texts.Store(hex.EncodeToString(sum[:]), changed)
	return changed
}

type noScript struct{}

func (noScript) Error() string { return "NOSCRIPT not known to this client" }
func (noScript) RedisError()   {}

func unknownScript(ctx context.Context) *redis.Cmd {
	cmd := redis.NewCmd(ctx, "evalsha")
	cmd.SetErr(noScript{})
	return cmd
}

// Skew loads a library of functions on a server, by whose functions the server's clock is ahead
// of its real one. Clients find the library there, and load no other.
func Skew(ctx context.Context, c *redis.Client, library string, ahead time.Duration) error {
	return c.FunctionLoad(ctx, redisserver.Ahead(library, ahead)).Err()
}
