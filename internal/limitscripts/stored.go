package limitscripts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/rediserr"
)

// SetLimitArgs are the arguments of setlimit.lua beside its key.
type SetLimitArgs struct {
	Limit  string        // its text, "" to take it away
	Absent bool          // only if none is stored
	TTL    time.Duration // zero for ever

	// Of a limit that a policy file has: the limits that it replaced, the newest first, and the
	// version of what is stored now, 0 for nothing. It is stored only if that is stored still.
	Replaced []string
	Version  int64
}

var setLimitScript = luascripts.NewScript("limit/setlimit")

// SetLimit runs setlimit.lua for a rule. The version is that of what is stored
// now, whether this call did it or not.
func SetLimit(ctx context.Context, c redis.Scripter, prefix, rule string, a SetLimitArgs) (done bool, version int64, err error) {
	var replaced strings.Builder
	for _, limit := range a.Replaced {
		replaced.WriteString("\n" + limit)
	}
	r := setLimitScript.Ask(ctx, c, 2, []string{StoredLimitKey(prefix, rule)},
		a.Limit, luascripts.Flag(a.Absent), luascripts.Micros(a.TTL), replaced.String(), a.Version)
	done = r.Int() == 1
	return done, r.Int(), r.Err()
}

var closeRuleScript = luascripts.NewScript("limit/closerule")

// CloseRule runs closerule.lua: a rule is closed on all keys for d from now on; 0
// opens it, and below 0 it only tells everybody that something has changed.
func CloseRule(ctx context.Context, c redis.Scripter, prefix, rule string, d time.Duration) (until time.Time, version int64, err error) {
	r := closeRuleScript.Ask(ctx, c, 2, []string{closingKey(prefix, rule), StoredLimitKey(prefix, rule)}, luascripts.Micros(d))
	version = r.Int()
	return r.Time(), version, r.Err()
}

// StoredLimit is what is stored of a rule's limit. Where no limit is stored it has no text and no error.
type StoredLimit struct {
	Text    string
	Version int64 // of the last change; 0 when none is known
	// Replaced are the limits that it replaced, the newest first, when a policy file has it.
	// It is nil for the limit of an operator.
	Replaced []string
	Err      error // a [luascripts.ReplyError] when this version can't read the stored text

	Closed  time.Time // until when the rule is closed on all keys; zero for not
	Closing int64     // version of that
}

// StoredLimits reads the stored limits of rules in one round trip, in order, and
// whether they are closed.
func StoredLimits(ctx context.Context, c redis.UniversalClient, prefix string, rules []string) []StoredLimit {
	pipe := c.Pipeline()
	cmds := make([]*redis.StringCmd, 0, 2*len(rules))
	for _, rule := range rules {
		cmds = append(cmds, pipe.Get(ctx, StoredLimitKey(prefix, rule)), pipe.Get(ctx, closingKey(prefix, rule)))
	}
	_, _ = rediserr.Exec(ctx, pipe) // each command carries its own error
	out := make([]StoredLimit, len(rules))
	for i := range rules {
		value, there, err := got(cmds[2*i])
		if out[i].Err = err; there {
			out[i] = readStored(value)
		}
		value, there, err = got(cmds[2*i+1])
		if there {
			out[i].Closing, out[i].Closed, err = readClosing(value)
		}
		out[i].Err = cmp.Or(out[i].Err, err)
	}
	return out
}

// got is a value, and whether there is one.
func got(cmd *redis.StringCmd) (value string, there bool, err error) {
	value, err = cmd.Result()
	switch {
	case errors.Is(err, redis.Nil):
		return "", false, nil
	case err != nil:
		return "", false, fmt.Errorf("GET: %w", err)
	}
	return value, true, nil
}

func readClosing(value string) (version int64, until time.Time, err error) {
	first, second, _ := strings.Cut(value, " ")
	version, err = strconv.ParseInt(first, 10, 64)
	us, bad := strconv.ParseInt(second, 10, 64)
	if err != nil || bad != nil || version < 1 || us < 0 {
		return 0, time.Time{}, &luascripts.ReplyError{Script: "GET", What: `a closing that is not "version until"`}
	}
	if us > 0 {
		until = time.UnixMicro(us)
	}
	return version, until, nil
}

func readStored(value string) StoredLimit {
	version, text, ok := strings.Cut(value, " ")
	n, err := strconv.ParseInt(version, 10, 64)
	if !ok || err != nil || n < 1 {
		return StoredLimit{Text: value, Err: &luascripts.ReplyError{Script: "GET", What: `a stored limit that is not "version limit"`}}
	}
	lines := strings.Split(text, "\n")
	stored := StoredLimit{Text: lines[0], Version: n}
	if len(lines) > 1 {
		stored.Replaced = lines[1:]
	}
	return stored
}
