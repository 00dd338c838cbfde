package queuescripts

import (
	"context"
	"fmt"
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
