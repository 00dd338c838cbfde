package queuescripts

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
)

// Counts are the tasks of a queue by where they are.
type Counts struct {
	Now                                           time.Time
	Pending, Active, Scheduled, Retried, Archived int // in asynq's keys; those that are Waiting are among Scheduled and Retried
	Paused                                        bool
	Waiting                                       int       // deferred or booked: pools wake them
	First                                         time.Time // instant of the deferred and booked tasks; zero without any
	Within                                        []int     // how many of them come due within each span
}

var countScript = luascripts.NewScript("queue/count")

// Count runs count.lua with at most 100 spans.
func Count(ctx context.Context, c redis.Scripter, k QueueKeys, within ...time.Duration) (Counts, error) {
	args := []any{len(within)}
	for _, d := range within {
		args = append(args, luascripts.Micros(d))
	}
	r := countScript.Ask(ctx, c, 10, []string{k.Due, k.Pending, k.active, k.Scheduled, k.Retry, k.archived, k.paused}, args...)
	n := Counts{
		Now: r.Time(), Pending: int(r.Int()), Active: int(r.Int()), Scheduled: int(r.Int()), Retried: int(r.Int()),
		Archived: int(r.Int()), Paused: r.Int() == 1, Waiting: int(r.Int()), First: r.Time(),
	}
	for range r.Count(1) {
		n.Within = append(n.Within, int(r.Int()))
	}
	return n, r.Err()
}

// The audit list keeps so many entries, and each for so long.
const (
	auditMax = 1000
	auditTTL = 90 * 24 * time.Hour
)

// AppendAudit puts an entry in front of the list of what operators changed, and drops the
// oldest when there are [auditMax].
func AppendAudit(ctx context.Context, c redis.Cmdable, prefix string, entry []byte) error {
	key := auditKey(prefix)
	_, err := c.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.LPush(ctx, key, entry)
		p.LTrim(ctx, key, 0, auditMax-1)
		p.PExpire(ctx, key, auditTTL)
		return nil
	})
	if err != nil {
		return fmt.Errorf("write the audit list: %w", err)
	}
	return nil
}

// Audit are entries of the list, the newest first, without the first skip.
func Audit(ctx context.Context, c redis.Cmdable, prefix string, skip, most int) ([]string, error) {
	entries, err := c.LRange(ctx, auditKey(prefix), int64(skip), int64(skip+most-1)).Result()
	if err != nil {
		return nil, fmt.Errorf("read the audit list: %w", err)
	}
	return entries, nil
}

// processTTL is how long a process counts as running after it said so.
const processTTL = 20 * time.Second

// processesMax bounds how many processes are listed.
const processesMax = 500

// SayProcess notes that a process runs, with what there is to say about it. It says so
// every few seconds. now is by Redis' clock, in which all processes agree.
func SayProcess(ctx context.Context, c redis.Cmdable, prefix, id string, now time.Time, said []byte) error {
	if err := c.Set(ctx, processKey(prefix, id), said, processTTL).Err(); err != nil {
		return fmt.Errorf("say that a process runs: %w", err)
	}
	all := processesKey(prefix)
	_, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.ZAdd(ctx, all, redis.Z{Score: float64(now.UnixMicro()), Member: id})
		p.ZRemRangeByScore(ctx, all, "-inf", "("+strconv.FormatInt(now.Add(-processTTL).UnixMicro(), 10))
		p.PExpire(ctx, all, processTTL)
		return nil
	})
	if err != nil {
		return fmt.Errorf("list a process that runs: %w", err)
	}
	return nil
}

// ForgetProcess notes that a process has ended.
func ForgetProcess(ctx context.Context, c redis.Cmdable, prefix, id string) error {
	return errors.Join(c.Del(ctx, processKey(prefix, id)).Err(), c.ZRem(ctx, processesKey(prefix), id).Err())
}

// Processes are what the processes said that run, at most [processesMax], and how many
// there are.
func Processes(ctx context.Context, c redis.Cmdable, prefix string) (said []string, all int, err error) {
	ids, err := c.ZRevRange(ctx, processesKey(prefix), 0, processesMax-1).Result()
	if err != nil {
		return nil, 0, fmt.Errorf("list the processes: %w", err)
	}
	all = len(ids)
	if all == processesMax {
		n, err := c.ZCard(ctx, processesKey(prefix)).Result()
		if err != nil {
			return nil, 0, fmt.Errorf("count the processes: %w", err)
		}
		all = int(n)
	}
	replies := make([]*redis.StringCmd, len(ids))
	_, err = c.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, id := range ids {
			replies[i] = p.Get(ctx, processKey(prefix, id))
		}
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, 0, fmt.Errorf("read what processes say: %w", err)
	}
	for _, r := range replies {
		if r.Err() == nil {
			said = append(said, r.Val())
		}
	}
	if len(ids) < processesMax {
		all = len(said) // the others have died: nobody has taken them off the list yet
	}
	return said, all, nil
}

// Queues are the names of all queues that asynq knows, in no order.
func Queues(ctx context.Context, c redis.Cmdable) ([]string, error) {
	names, err := c.SMembers(ctx, queuesKey).Result()
	if err != nil {
		return nil, fmt.Errorf("list the queues: %w", err)
	}
	return names, nil
}

// HasQueue says whether asynq knows a queue.
func HasQueue(ctx context.Context, c redis.Cmdable, queue string) (bool, error) {
	known, err := c.SIsMember(ctx, queuesKey, queue).Result()
	if err != nil {
		return false, fmt.Errorf("look for a queue: %w", err)
	}
	return known, nil
}
