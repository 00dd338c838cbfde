package luascripts

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// SetLimitArgs are the arguments of setlimit.lua beside its key.
type SetLimitArgs struct {
	Limit  string        // its text, "" to take it away
	Absent bool          // only if none is stored
	TTL    time.Duration // zero for ever
}

// SetLimit runs setlimit.lua for a rule. The version is that of what is stored
// now, whether this call did it or not.
func SetLimit(ctx context.Context, c redis.Scripter, prefix, rule string, a SetLimitArgs) (done bool, version int64, err error) {
	absent := 0
	if a.Absent {
		absent = 1
	}
	r := run(ctx, c, setLimitScript, "setlimit.lua", 2, []string{StoredLimitKey(prefix, rule)}, a.Limit, absent, micros(a.TTL))
	done = r.int() == 1
	return done, r.int(), r.err
}

// StoredLimit is what is stored of a rule's limit. No text and no error means
// that there is none.
type StoredLimit struct {
	Text    string
	Version int64 // of the last change; 0 when none is known
	Err     error // a [ReplyError] when what is stored has another form
}

// StoredLimits reads the stored limits of rules in one round trip, in order.
func StoredLimits(ctx context.Context, c redis.UniversalClient, prefix string, rules []string) []StoredLimit {
	pipe := c.Pipeline()
	cmds := make([]*redis.StringCmd, len(rules))
	for i, rule := range rules {
		cmds[i] = pipe.Get(ctx, StoredLimitKey(prefix, rule))
	}
	_, _ = pipe.Exec(ctx) // each command carries its own error
	out := make([]StoredLimit, len(rules))
	for i, cmd := range cmds {
		value, err := cmd.Result()
		switch {
		case errors.Is(err, redis.Nil):
		case err != nil:
			out[i].Err = fmt.Errorf("GET: %w", err)
		default:
			out[i] = readStored(value)
		}
	}
	return out
}

func readStored(value string) StoredLimit {
	version, text, ok := strings.Cut(value, " ")
	n, err := strconv.ParseInt(version, 10, 64)
	if !ok || err != nil || n < 1 {
		return StoredLimit{Text: value, Err: &ReplyError{Script: "GET", What: `a stored limit that is not "version limit"`}}
	}
	return StoredLimit{Text: text, Version: n}
}
