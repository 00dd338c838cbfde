package presence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// processesKey is the set of the processes that run, and processKey what one says of itself.
func processesKey(prefix string) string { return prefix + ":processes" }

func processKey(prefix, id string) string { return prefix + ":process:" + id }

// processTTL is how long a process counts as running after it said so.
const processTTL = 20 * time.Second

// processesMax bounds how many processes are listed.
const processesMax = 500

// Say notes that a process runs, with what there is to say about it. It says so
// every few seconds. now is by Redis' clock, in which all processes agree.
func Say(ctx context.Context, c redis.Cmdable, prefix, id string, now time.Time, text []byte) error {
	if err := c.Set(ctx, processKey(prefix, id), text, processTTL).Err(); err != nil {
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

// forget notes that a process has ended.
func forget(ctx context.Context, c redis.Cmdable, prefix, id string) error {
	return errors.Join(c.Del(ctx, processKey(prefix, id)).Err(), c.ZRem(ctx, processesKey(prefix), id).Err())
}

// Running are the processes that run, at most [processesMax], in no order, and how many there are. What another version says and nobody
// here can read is counted and left out.
func Running(ctx context.Context, c redis.Cmdable, prefix string) (running []Process, all int, err error) {
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
	said := 0
	for _, r := range replies {
		if r.Err() != nil {
			continue
		}
		said++
		var p Process
		if json.Unmarshal([]byte(r.Val()), &p) == nil {
			running = append(running, p)
		}
	}
	if len(ids) < processesMax {
		all = said // the others have died: nobody has taken them off the list yet
	}
	return running, all, nil
}
