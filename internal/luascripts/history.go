package luascripts

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// historyKeysMax is how many keys of a rule are remembered as busy, and as waiting.
	historyKeysMax = 256

	day = 24 * time.Hour
)

// historyKeys are the keys of a rule's history.
type historyKeys struct{ head string }

func newHistoryKeys(prefix, rule string) historyKeys {
	return historyKeys{prefix + ":history:{" + rule + "}:"}
}

// minutes holds the minutes of an hour, and hours the hours of a day.
func (k historyKeys) minutes(at time.Time) string { return k.head + "minutes:" + number(at, time.Hour) }
func (k historyKeys) hours(at time.Time) string   { return k.head + "hours:" + number(at, day) }

// busy holds the busiest keys of a minute or an hour.
func (k historyKeys) busy(at time.Time, span time.Duration) string {
	return k.head + "busy:" + strconv.Itoa(int(span/time.Minute)) + ":" + number(at, span)
}

func (k historyKeys) waiting() string { return k.head + "waiting" }

// number counts spans since 1970.
func number(at time.Time, span time.Duration) string {
	return strconv.FormatInt(at.Unix()/int64(span/time.Second), 10)
}

// HistoryKey is a key of a rule, as it stands in Redis, with what is known of it.
type HistoryKey struct {
	ID string
	N  int64 // permits, or an instant in microseconds since 1970
}

// RecordArgs is what a process saw of a rule in the last seconds.
type RecordArgs struct {
	Now           time.Time
	Limit, Counts string // see record.lua
	Busy, Waiting []HistoryKey
}

var recordScript = NewScript("history/record")

// Record runs record.lua.
func Record(ctx context.Context, c redis.Scripter, prefix, rule string, a RecordArgs) error {
	k := newHistoryKeys(prefix, rule)
	keys := []string{k.minutes(a.Now), k.hours(a.Now), k.busy(a.Now, time.Minute), k.busy(a.Now, time.Hour), k.waiting()}
	args := []any{a.Now.UTC().Minute(), a.Now.UTC().Hour(), a.Limit, a.Counts, historyKeysMax, len(a.Busy)}
	for _, some := range [][]HistoryKey{a.Busy, a.Waiting} {
		for _, id := range some {
			args = append(args, id.ID, id.N)
		}
	}
	return recordScript.Ask(ctx, c, 2, keys, args...).Err()
}

// HistoryValue is what stands there about a minute or an hour: see record.lua.
type HistoryValue struct {
	At    time.Time // when it began
	Value string
}

// ReadHistory returns what is known of a rule from one instant to another, in minutes or in
// hours, in no order. What nothing happened in is missing.
func ReadHistory(ctx context.Context, c redis.Cmdable, prefix, rule string, from, to time.Time, step time.Duration) ([]HistoryValue, error) {
	k, hash, of := newHistoryKeys(prefix, rule), time.Hour, historyKeys.minutes
	if step == time.Hour {
		hash, of = day, historyKeys.hours
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
	var all []HistoryValue
	for i, r := range replies {
		for field, value := range r.Val() {
			n, err := strconv.Atoi(field)
			at := begins[i].Add(time.Duration(n) * step)
			if err == nil && !at.Before(from) && at.Before(to) {
				all = append(all, HistoryValue{At: at, Value: value})
			}
		}
	}
	return all, nil
}

// BusyKeys returns the keys of a rule that were granted most in this hour and the one
// before, in no order.
func BusyKeys(ctx context.Context, c redis.Cmdable, prefix, rule string, now time.Time) ([]HistoryKey, error) {
	k := newHistoryKeys(prefix, rule)
	sums := make(map[string]int64)
	for _, at := range []time.Time{now, now.Add(-time.Hour)} {
		some, err := c.ZRevRangeWithScores(ctx, k.busy(at, time.Hour), 0, historyKeysMax-1).Result()
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
	all := make([]HistoryKey, 0, len(sums))
	for id, n := range sums {
		all = append(all, HistoryKey{id, n})
	}
	return all, nil
}

// WaitingKeys returns the keys of a rule on which jobs were deferred the furthest, the
// furthest first.
func WaitingKeys(ctx context.Context, c redis.Cmdable, prefix, rule string) ([]HistoryKey, error) {
	some, err := c.ZRevRangeWithScores(ctx, newHistoryKeys(prefix, rule).waiting(), 0, historyKeysMax-1).Result()
	if err != nil {
		return nil, fmt.Errorf("read the waiting keys of a rule: %w", err)
	}
	all := make([]HistoryKey, 0, len(some))
	for _, z := range some {
		id, ok := z.Member.(string)
		if !ok {
			return nil, errors.New("read the waiting keys of a rule: a member is no text")
		}
		all = append(all, HistoryKey{id, int64(z.Score)})
	}
	return all, nil
}
