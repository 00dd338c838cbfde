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
	"github.com/headwayq/headway/internal/policyset"
	"github.com/headwayq/headway/internal/queuescripts"
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
		queues[queue].add(id, p)
	}
	return queues
}

// AddAll adds other tasks of the queue. Of two promotions of one task the earlier one is kept.
func (t Tasks) AddAll(others Tasks) {
	for id, p := range others {
		t.add(id, p)
	}
}

func (t Tasks) add(id string, p throttle.Promotion) {
	if known, ok := t[id]; !ok || p.At.Before(known.At) {
		t[id] = p
	}
}

// lookupsMax bounds how many promoted tasks of a queue are looked up, two short calls each.
const lookupsMax = 64

// Move moves promoted tasks of any queue forward and tells the pools, for programs that are
// no pool. It ends with the first error: the tasks that are left come at the instants that
// they were told. Pools give up the places of those that are gone.
func Move(ctx context.Context, rdb redis.UniversalClient, prefix string, set *policyset.Set, promoted ...throttle.Promotion) {
	for queue, tasks := range ByQueue(promoted...) {
		keys := queuescripts.NewQueueKeys(prefix, queue)
		tasks.lookup(ctx, rdb, keys, queue, set)
		if _, err := tasks.Retime(ctx, rdb, keys, func(throttle.Promotion, int64) {}); err != nil || queuescripts.Notify(ctx, rdb, keys, tasks.First()) != nil {
			return
		}
	}
}

// lookup corrects the instants of tasks under several rules. A promotion is about one rule:
// another may hold the task up for longer. A pool would find that out when it wakes the
// task. Until then, and where no pool runs, the task would stand as due now.
func (t Tasks) lookup(ctx context.Context, rdb redis.UniversalClient, keys queuescripts.QueueKeys, queue string, set *policyset.Set) {
	left := lookupsMax
	for id, p := range t {
		if left--; left < 0 {
			return
		}
		at, wait, ok := instantOf(ctx, rdb, keys, set, queue, id)
		if ok && wait > p.Wait {
			p.At, p.Wait = at, wait
			t[id] = p
		}
	}
}

// instantOf is when a task may run that waits under several rules, as its places are now, and
// how long that is from now.
func instantOf(ctx context.Context, rdb redis.UniversalClient, keys queuescripts.QueueKeys, set *policyset.Set,
	queue, id string) (at time.Time, wait time.Duration, ok bool) {
	f, err := queuescripts.GetTask(ctx, rdb, keys, id)
	if err != nil || !f.PoolsWake {
		return time.Time{}, 0, false
	}
	record, _ := queuescripts.ParseWaitRecord(f.Record)
	booking, ok := set.Booking(record.Booking, luascripts.JobID(queue, id))
	if !ok || len(booking.Policy.Rules()) == 1 {
		return time.Time{}, 0, false
	}
	s, err := throttle.ForWorkers.Lookup(ctx, booking, false)
	return s.At, s.At.Sub(s.Now), err == nil && s.Known
}

// Retime moves the tasks to their earlier instants, the first to come first and in calls
// of at most [queuescripts.RetimeMax] tasks. Tasks that come earlier already stay as they
// are. It calls gone for each task that is gone, with [queuescripts.Deleted] or
// [queuescripts.Ended]. It returns the ids of those that it moved, also with an error.
func (t Tasks) Retime(ctx context.Context, rdb redis.Scripter, keys queuescripts.QueueKeys,
	gone func(p throttle.Promotion, code int64)) (moved []string, err error) {
	all := make([]queuescripts.Retiming, 0, len(t))
	for id, p := range t {
		all = append(all, queuescripts.Retiming{ID: id, At: p.At, In: p.Wait, Any: true,
			Reason: queuescripts.WaitReason{Cause: queuescripts.CausePromotion, Rule: queuescripts.SameRule}})
	}
	slices.SortFunc(all, func(a, b queuescripts.Retiming) int { return a.At.Compare(b.At) })
	for portion := range slices.Chunk(all, queuescripts.RetimeMax) {
		codes, err := queuescripts.RetimeEarlier(ctx, rdb, keys, portion)
		if err != nil {
			return moved, err
		}
		for i, code := range codes {
			switch code {
			case queuescripts.Deleted, queuescripts.Ended:
				gone(t[portion[i].ID], code)
			case queuescripts.Retimed:
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
