package luascripts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// BatchView is a batch at an instant.
type BatchView struct {
	Batch
	Open int       // elements that were enqueued and have not ended
	Now  time.Time // by the clock of the server that has it
}

// ErrNoBatch says that there is no such batch.
var ErrNoBatch = errors.New("luascripts: no such batch")

// ReadBatches reads records, and what else is known of them, in one trip; each fails
// alone, with ErrNoBatch when there is none.
func ReadBatches(ctx context.Context, c redis.UniversalClient, k QueueKeys, ids []string) ([]BatchView, []error) {
	views, errs := make([]BatchView, len(ids)), make([]error, len(ids))
	send := func(i int, pipe redis.Pipeliner) *redis.Cmd {
		of := k.batchKeys(ids[i])
		return batchPeekScript().EvalSha(ctx, pipe, []string{of.record, of.open})
	}
	pipelined(ctx, c, batchPeekScript(), len(ids), send, func(i int, v any, err error) {
		r, err := readReply("batchpeek.lua", 3, v, err).batchReply(ids[i], 0)
		if err == nil && r.Status == 0 {
			err = ErrNoBatch
		}
		views[i], errs[i] = r.BatchView, err
	})
	return views, errs
}

// StateOfBatch is what a batch does, "" when there is none.
func StateOfBatch(ctx context.Context, c redis.Cmdable, k QueueKeys, id string) (BatchState, error) {
	state, err := c.HGet(ctx, k.batchKeys(id).record, "state").Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return "", fmt.Errorf("HGET: %w", err)
	}
	return BatchState(state), nil
}

// EachUnfinished goes through the ids of the batches that have not ended, the oldest
// first, at most `most` at a time. One that is there all the time comes once, also when
// others end meanwhile.
func EachUnfinished(ctx context.Context, c redis.Scripter, k QueueKeys, most int, f func(ids []string) error) error {
	return eachBatch(ctx, c, k.batches, most, f)
}

// EachFinished goes through those that have ended, as long as their records are kept; some
// of them may be gone.
func EachFinished(ctx context.Context, c redis.Scripter, k QueueKeys, most int, f func(ids []string) error) error {
	return eachBatch(ctx, c, k.ended, most, f)
}

func eachBatch(ctx context.Context, c redis.Scripter, key string, most int, f func(ids []string) error) error {
	return EachElement(0, most, func(from int64, most int) ([]BatchElement, error) {
		return positioned(ctx, c, key, from, most)
	}, func(page []BatchElement) error {
		ids := make([]string, len(page))
		for i, e := range page {
			ids[i] = e.ID
		}
		return f(ids)
	})
}

// BatchElement is an element and its position in the source.
type BatchElement struct {
	ID       string
	Position int64
}

// OpenElements are those of a batch that were enqueued and have not ended, from a
// position on, in order, most of them 1 to 1000; AheadElements those that are settled and
// not before the cursor. An id comes once, and a position as often as the source gave it to
// another element. [EachElement] goes through all.
func OpenElements(ctx context.Context, c redis.Scripter, k QueueKeys, id string, from int64, most int) ([]BatchElement, error) {
	return positioned(ctx, c, k.batchKeys(id).open, from, most)
}

// AheadElements is said at [OpenElements].
func AheadElements(ctx context.Context, c redis.Scripter, k QueueKeys, id string, from int64, most int) ([]BatchElement, error) {
	return positioned(ctx, c, k.batchKeys(id).ahead, from, most)
}

func positioned(ctx context.Context, c redis.Scripter, key string, from int64, most int) ([]BatchElement, error) {
	r := run(ctx, c, batchListScript(), "batchlist.lua", 1, []string{key}, from, most)
	out := make([]BatchElement, r.count(2))
	for i := range out {
		out[i] = BatchElement{ID: r.text(), Position: r.int()}
	}
	return out, r.err
}

// EachElement goes through elements from a position on, at most `most` at a time, of which
// list gives so many from a position on. Those that are there all the time come once, also
// when others of one position are taken out meanwhile.
func EachElement(from int64, most int, list func(from int64, most int) ([]BatchElement, error), f func([]BatchElement) error) error {
	seen := make(map[string]bool) // at the position from, where the next page begins
	for {
		asked := most + len(seen)
		page, err := list(from, asked)
		if err != nil {
			return err
		}
		whole := len(page) < asked
		page = slices.DeleteFunc(page, func(e BatchElement) bool { return e.Position == from && seen[e.ID] })
		if len(page) == 0 {
			return nil
		}
		whole = whole && len(page) <= most
		page = page[:min(len(page), most)]
		if last := page[len(page)-1].Position; last != from {
			from = last
			clear(seen)
		}
		for _, e := range page {
			if e.Position == from {
				seen[e.ID] = true
			}
		}
		if err := f(page); err != nil || whole {
			return err
		}
	}
}
