package history

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
)

const (
	// storedMax is how many keys of a rule are remembered as busy, and as waiting.
	storedMax = 256

	day = 24 * time.Hour
)

// ruleKeys are the keys of a rule's history.
type ruleKeys struct{ head string }

func keysOf(prefix, rule string) ruleKeys {
	return ruleKeys{prefix + ":history:{" + rule + "}:"}
}

// minutes holds the minutes of an hour, and hours the hours of a day.
func (k ruleKeys) minutes(at time.Time) string { return k.head + "minutes:" + number(at, time.Hour) }
func (k ruleKeys) hours(at time.Time) string   { return k.head + "hours:" + number(at, day) }

// busy holds the busiest keys of a minute or an hour.
func (k ruleKeys) busy(at time.Time, span time.Duration) string {
	return k.head + "busy:" + strconv.Itoa(int(span/time.Minute)) + ":" + number(at, span)
}

func (k ruleKeys) waiting() string { return k.head + "waiting" }

// number counts spans since 1970.
func number(at time.Time, span time.Duration) string {
	return strconv.FormatInt(at.Unix()/int64(span/time.Second), 10)
}

// Key is a key of a rule, as it stands in Redis, with what is known of it.
type Key struct {
	ID string
	N  int64 // permits, or an instant in microseconds since 1970
}

// RecordArgs is what a process saw of a rule in the last seconds.
type RecordArgs struct {
	Now           time.Time
	Limit, Counts string // see record.lua
	Busy, Waiting []Key
}

var recordScript = luascripts.NewScript("history/record")

// Record runs record.lua.
func Record(ctx context.Context, c redis.Scripter, prefix, rule string, a RecordArgs) error {
	k := keysOf(prefix, rule)
	keys := []string{k.minutes(a.Now), k.hours(a.Now), k.busy(a.Now, time.Minute), k.busy(a.Now, time.Hour), k.waiting()}
	args := []any{a.Now.UTC().Minute(), a.Now.UTC().Hour(), a.Limit, a.Counts, storedMax, len(a.Busy)}
	for _, some := range [][]Key{a.Busy, a.Waiting} {
		for _, id := range some {
			args = append(args, id.ID, id.N)
		}
	}
	return recordScript.Ask(ctx, c, 2, keys, args...).Err()
}

// Value is what Redis holds about a minute or an hour, see record.lua.
type Value struct {
	At    time.Time // when it began
	Value string
}

// Values returns what is known of a rule from one instant to another, in minutes or in
// hours, in no order. What nothing happened in is missing.
func Values(ctx context.Context, c redis.Cmdable, prefix, rule string, from, to time.Time, step time.Duration) ([]Value, error) {
	k, hash, of := keysOf(prefix, rule), time.Hour, ruleKeys.minutes
	if step == time.Hour {
		hash, of = day, ruleKeys.hours
	}
	var begins []time.Time
	var replies []*redis.MapStringStringCmd
	_, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		for at := from.UTC().Truncate(hash); at.Before(to); at = at.Add(hash) {
			begins, replies = append(begins, at), append(replies, p.HGetAll(ctx, of(k, at)))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the history of a rule: %w", err)
	}
	var all []Value
	for i, r := range replies {
		for field, value := range r.Val() {
			n, err := strconv.Atoi(field)
			at := begins[i].Add(time.Duration(n) * step)
			if err == nil && !at.Before(from) && at.Before(to) {
				all = append(all, Value{At: at, Value: value})
			}
		}
	}
	return all, nil
}

// BusyKeys returns the keys of a rule that were granted most in this hour and the one
// before, in no order.
func BusyKeys(ctx context.Context, c redis.Cmdable, prefix, rule string, now time.Time) ([]Key, error) {
	k := keysOf(prefix, rule)
	sums := make(map[string]int64)
	for _, at := range []time.Time{now, now.Add(-time.Hour)} {
		some, err := c.ZRevRangeWithScores(ctx, k.busy(at, time.Hour), 0, storedMax-1).Result()
		if err != nil {
			return nil, fmt.Errorf("read the busy keys of a rule: %w", err)
		}
		for _, z := range some {
			id, ok := z.Member.(string)
			if !ok {
				return nil, errors.New("read the busy keys of a rule: a member is no text")
			}
			sums[id] += int64(z.Score)
		}
	}
	all := make([]Key, 0, len(sums))
	for id, n := range sums {
		all = append(all, Key{id, n})
	}
	return all, nil
}

// WaitingKeys returns the keys of a rule on which jobs were deferred the furthest, the
// furthest first.
func WaitingKeys(ctx context.Context, c redis.Cmdable, prefix, rule string) ([]Key, error) {
	some, err := c.ZRevRangeWithScores(ctx, keysOf(prefix, rule).waiting(), 0, storedMax-1).Result()
	if err != nil {
		return nil, fmt.Errorf("read the waiting keys of a rule: %w", err)
	}
	all := make([]Key, 0, len(some))
	for _, z := range some {
		id, ok := z.Member.(string)
		if !ok {
			return nil, errors.New("read the waiting keys of a rule: a member is no text")
		}
		all = append(all, Key{id, int64(z.Score)})
	}
	return all, nil
}
