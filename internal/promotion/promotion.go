// Package promotion moves tasks forward that may come earlier than they were told,
// because permits came back or a job gave its place up. Nothing depends on it: a
// task that is not moved comes at the instant that it was told, and runs then.
package promotion

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/throttle"
)

// Tasks are the promoted tasks of one queue, by task id.
type Tasks map[string]throttle.Promotion

// ByQueue sorts promotions by queue. Of several for one task the earliest is kept. Jobs
// that are no tasks are left out: they are callers that block in an Acquire, and look
// for themselves.
func ByQueue(promoted ...throttle.Promotion) map[string]Tasks {
	queues := make(map[string]Tasks)
	for _, p := range promoted {
		queue, id, ok := luascripts.TaskOf(p.Job)
		if !ok {
			continue
		}
		if queues[queue] == nil {
			queues[queue] = make(Tasks)
		}
		if known, ok := queues[queue][id]; !ok || p.At.Before(known.At) {
			queues[queue][id] = p
		}
	}
	return queues
}

// Retime moves the tasks to their earlier instants, the first to come first and in calls
// of at most [luascripts.RetimeMax] tasks. Tasks that come earlier already stay as they
// are. It calls gone for each task that is gone, with [luascripts.Gone] or
// [luascripts.Over]. It returns the ids of those that it moved, also with an error.
func (t Tasks) Retime(ctx context.Context, rdb redis.Scripter, keys luascripts.QueueKeys, gone func(p throttle.Promotion, code int64)) (moved []string, err error) {
	all := make([]luascripts.Retiming, 0, len(t))
	for id, p := range t {
		all = append(all, luascripts.Retiming{ID: id, At: p.At, Any: true})
	}
	slices.SortFunc(all, func(a, b luascripts.Retiming) int { return a.At.Compare(b.At) })
	for portion := range slices.Chunk(all, luascripts.RetimeMax) {
		codes, err := luascripts.Retime(ctx, rdb, keys, true, portion)
		if err != nil {
			return moved, err
		}
		for i, code := range codes {
			switch code {
			case luascripts.Gone, luascripts.Over:
				gone(t[portion[i].ID], code)
			case luascripts.Retimed:
				moved = append(moved, portion[i].ID)
			}
		}
	}
	return moved, nil
}

// First is how long it is until the first of them comes, and zero for none.
func (t Tasks) First() time.Duration {
	waits := make([]time.Duration, 0, len(t))
	for _, p := range t {
		waits = append(waits, p.Wait)
	}
	if len(waits) == 0 {
		return 0
	}
	return slices.Min(waits)
}
