package luascripts

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// BatchView is a batch at an instant.
type BatchView struct {
	Batch
	Open int       // elements that were enqueued and have not ended
	Now  time.Time // Redis' clock
}

// ErrNoBatch says that there is no such batch.
var ErrNoBatch = errors.New("luascripts: no such batch")

// ReadBatches reads records, and what else is known of them, in one trip; each fails
// alone, with ErrNoBatch when there is none.
func ReadBatches(ctx context.Context, c redis.UniversalClient, k Queue, ids []string) ([]BatchView, []error) {
	views, errs := make([]BatchView, len(ids)), make([]error, len(ids))
	pipe := c.Pipeline()
	records, open := make([]*redis.MapStringStringCmd, len(ids)), make([]*redis.IntCmd, len(ids))
	for i, id := range ids {
		of := k.batchKeys(id)
		records[i], open[i] = pipe.HGetAll(ctx, of.record), pipe.ZCard(ctx, of.open)
	}
	now := pipe.Time(ctx)
	_, _ = pipe.Exec(ctx) // each command carries its own error
	for i, id := range ids {
		if err := errors.Join(records[i].Err(), open[i].Err(), now.Err()); err != nil {
			errs[i] = fmt.Errorf("HGETALL: %w", err)
			continue
		}
		if len(records[i].Val()) == 0 {
			errs[i] = ErrNoBatch
			continue
		}
		views[i].Open, views[i].Now = int(open[i].Val()), now.Val()
		views[i].Batch, errs[i] = readBatch(id, records[i].Val())
	}
	return views, errs
}

// StateOfBatch is what a batch does, "" when there is none.
func StateOfBatch(ctx context.Context, c redis.Cmdable, k Queue, id string) (BatchState, error) {
	state, err := c.HGet(ctx, k.batchKeys(id).record, "state").Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return "", fmt.Errorf("HGET: %w", err)
	}
	return BatchState(state), nil
}

// Unfinished are the ids of the batches that have not ended, the oldest first; from is
// a rank, and most how many.
func Unfinished(ctx context.Context, c redis.Cmdable, k Queue, from, most int) ([]string, error) {
	return ranked(ctx, c, k.batches, from, most)
}

// Finished are the ids of those that have, as long as their records are kept; some of
// them may be gone.
func Finished(ctx context.Context, c redis.Cmdable, k Queue, from, most int) ([]string, error) {
	return ranked(ctx, c, k.ended, from, most)
}

func ranked(ctx context.Context, c redis.Cmdable, key string, from, most int) ([]string, error) {
	ids, err := c.ZRange(ctx, key, int64(from), int64(from+most-1)).Result()
	if err != nil {
		return nil, fmt.Errorf("ZRANGE: %w", err)
	}
	return ids, nil
}

// BatchElement is an element and its position in the source.
type BatchElement struct {
	ID       string
	Position int64
}

// OpenElements are those of a batch that were enqueued and have not ended, from a
// position on, in order; AheadElements those that are settled and not before the
// cursor. An id comes once.
func OpenElements(ctx context.Context, c redis.Cmdable, k Queue, id string, from int64, most int) ([]BatchElement, error) {
	return positioned(ctx, c, k.batchKeys(id).open, from, most)
}

// AheadElements is said at [OpenElements].
func AheadElements(ctx context.Context, c redis.Cmdable, k Queue, id string, from int64, most int) ([]BatchElement, error) {
	return positioned(ctx, c, k.batchKeys(id).ahead, from, most)
}

func positioned(ctx context.Context, c redis.Cmdable, key string, from int64, most int) ([]BatchElement, error) {
	found, err := c.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{
		Key: key, Start: from, Stop: "+inf", ByScore: true, Count: int64(most),
	}).Result()
	if err != nil {
		return nil, fmt.Errorf("ZRANGE: %w", err)
	}
	out := make([]BatchElement, len(found))
	for i, z := range found {
		out[i] = BatchElement{ID: fmt.Sprint(z.Member), Position: int64(z.Score)}
	}
	return out, nil
}

// TaskStates are asynq's states of tasks, "" for one that is gone, in one trip.
func TaskStates(ctx context.Context, c redis.Cmdable, k Queue, ids []string) ([]string, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	pipe := c.Pipeline()
	cmds := make([]*redis.StringCmd, len(ids))
	for i, id := range ids {
		cmds[i] = pipe.HGet(ctx, k.Task(id), "state")
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, fmt.Errorf("HGET: %w", err)
	}
	out := make([]string, len(ids))
	for i, cmd := range cmds {
		if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) {
			return nil, fmt.Errorf("HGET: %w", err)
		}
		out[i] = cmd.Val()
	}
	return out, nil
}
