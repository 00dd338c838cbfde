package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/throttle"
)

// sized are limits that let a thousand jobs go within a second.
var sized = [...]throttle.Limit{
	throttle.Sliding(100_000, time.Minute),
	throttle.Fixed(100_000, time.Minute),
	throttle.Calendar(100_000, throttle.Day, "UTC"),
	throttle.Bucket(100_000, time.Minute, 1_000),
	throttle.SteppedBucket(100_000, time.Minute, 100_000),
	throttle.GCRA(100_000, time.Minute, 1),
	throttle.Leaky(100_000, time.Minute),
	throttle.Smooth(100_000, time.Minute, 1_000),
	throttle.WarmUp(100_000, time.Minute, time.Second, 3),
}

// sizedAt are the numbers of permits after which a key is measured.
var sizedAt = [...]int{1, 100, 1_000}

// size is what MEMORY USAGE says of a key's ledger and of its tokens.
type size struct{ ledger, tokens int64 }

// printSizes prints a table of the bytes that a key costs in Redis.
func printSizes(ctx context.Context, rdb redis.UniversalClient, w io.Writer) error {
	fmt.Fprintln(w, "| bytes of the ledger after | 1 permit | 100 permits | 1,000 permits |\n|---|---|---|---|")
	var last [len(sizedAt)]size
	for i, limit := range sized {
		var err error
		// Keys of the same length: their names are in the figures.
		if last, err = measure(ctx, rdb, limit, fmt.Sprintf("+155501%02d", i)); err != nil {
			return fmt.Errorf("%s: %w", limit, err)
		}
		fmt.Fprintf(w, "| `%s` | %d | %d | %d |\n", limit, last[0].ledger, last[1].ledger, last[2].ledger)
	}
	_, err := fmt.Fprintf(w, "| tokens, the same for all | %d | %d | %d |\n", last[0].tokens, last[1].tokens, last[2].tokens)
	return err
}

func measure(ctx context.Context, rdb redis.UniversalClient, limit throttle.Limit, key string) (sizes [len(sizedAt)]size, err error) {
	l, err := throttle.New(rdb, "phone", limit, throttle.Config{})
	if err != nil {
		return sizes, err
	}
	granted := 0
	for i, count := range sizedAt {
		for ; granted < count; granted++ {
			if err := l.Acquire(ctx, key, 1); err != nil {
				return sizes, err
			}
		}
		if sizes[i].ledger, err = usage(ctx, rdb, l.Ledger(key)); err != nil {
			return sizes, err
		}
		if sizes[i].tokens, err = usage(ctx, rdb, l.Ledger(key)+":tokens"); err != nil {
			return sizes, err
		}
	}
	return sizes, nil
}

// usage looks at every element; a key that is not there costs nothing.
func usage(ctx context.Context, rdb redis.UniversalClient, key string) (int64, error) {
	n, err := rdb.MemoryUsage(ctx, key, 0).Result()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	return n, err
}
