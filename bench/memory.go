package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// memory measures bytes in Redis: of a phone key, of a permit, of a deferred job.
func memory(ctx context.Context, b *bench) error {
	_, rdb, err := b.server()
	if err != nil {
		return err
	}
	for _, measure := range []func(context.Context, *bench, *redis.Client) error{phoneKeys, permits, deferredJobs} {
		if err := measure(ctx, b, rdb); err != nil {
			return err
		}
	}
	b.say("Sizes hardly vary from run to run, so each is measured once. MEMORY USAGE (SAMPLES 0) of all keys that were written is added up; " +
		"used_memory grows by the table of keys and by what expiry keeps, too.")
	return nil
}

// phoneKeys weighs keys that hold one permit and nothing else.
func phoneKeys(ctx context.Context, b *bench, rdb *redis.Client) error {
	phones := int64(100_000)
	if b.short {
		phones = 2_000
	}
	all, err := makeAll(ctx, rdb, sms, append([]maker{headway}, libraries...)...)
	if err != nil {
		return err
	}
	var usage, used []float64
	names := make([]int, len(all))
	for i, one := range all {
		empty, err := emptied(ctx, rdb, one)
		if err != nil {
			return err
		}
		_, err = drive(ctx, 64, time.Minute, phones, func(ctx context.Context, i int64) error {
			allowed, err := one.try(ctx, phone(i))
			if err == nil && !allowed {
				err = fmt.Errorf("%s refused a fresh key", one.name)
			}
			return err
		})
		if err != nil {
			return err
		}
		full, err := usedMemory(ctx, rdb)
		if err != nil {
			return err
		}
		sizes, err := weigh(ctx, rdb, func(key string) string { names[i] = len(key); return "" })
		if err != nil {
			return err
		}
		usage = append(usage, float64(sizes[""])/float64(phones))
		used = append(used, (full-empty)/float64(phones))
	}
	picture := chart{file: "memory-phone", title: "An idle phone key at " + sms.String(), unit: "bytes, MEMORY USAGE", wins: lower}
	for i, one := range all {
		picture.bars = append(picture.bars, bar{fmt.Sprintf("%s (name %d)", one.name, names[i]), usage[i], i == 0})
		if i == 0 {
			continue
		}
		r := against(fmt.Sprintf("idle phone key, name of %d bytes (theirs %d)", names[0], names[i]), "bytes", lower, one.name, usage[:1], usage[i:i+1])
		if i == 1 {
			r = r.holding("≤ 110", usage[0] <= 110)
		}
		b.row(r)
		b.row(against("the same, used_memory", "bytes", lower, one.name, used[:1], used[i:i+1]))
	}
	b.draw(picture)
	return nil
}

// permits weighs one key with a full window, filled by a permit a call.
func permits(ctx context.Context, b *bench, rdb *redis.Client) error {
	n := int64(100_000)
	if b.short {
		n = 5_000
	}
	limiter, err := throttle.New(rdb, "sms", throttle.Sliding(int(n), time.Hour), throttle.Config{})
	if err != nil {
		return err
	}
	if err := rdb.FlushAll(ctx).Err(); err != nil {
		return err
	}
	if _, err := drive(ctx, 64, 10*time.Minute, n, func(ctx context.Context, _ int64) error {
		d, err := limiter.TryAcquire(ctx, phone(0), 1)
		if err == nil && !d.Granted {
			err = fmt.Errorf("refused within the limit")
		}
		return err
	}); err != nil {
		return err
	}
	at := fmt.Sprintf("a permit of sliding %d/1h, window full, one permit a call, all keys", n)
	burst, sizes, err := permitBytes(ctx, rdb, limiter, n)
	if err != nil {
		return err
	}
	b.row(alone(at+", right after the burst", "bytes", lower, []float64{burst}))
	b.row(alone("the same, the ledger alone", "bytes", lower, []float64{float64(sizes[""]) / float64(n)}))
	var parts []string
	for _, kind := range sortedKeys(sizes) {
		parts = append(parts, fmt.Sprintf("%s %s", cmp.Or(kind, "ledger"), number(float64(sizes[kind])/float64(n))))
	}
	b.say("A permit right after the burst, bytes by key: %s. The tokens of grants are kept for a minute, while a copy of their calls may come. "+
		"The other libraries keep one number for a key, whatever the limit, and so they do not know the window exactly.", strings.Join(parts, ", "))
	if b.short { // it would have to wait for a minute
		return nil
	}
	if err := tokensGone(ctx, rdb, limiter.Ledger(phone(0))+":tokens"); err != nil {
		return err
	}
	each, _, err := permitBytes(ctx, rdb, limiter, n)
	if err != nil {
		return err
	}
	b.row(alone(at+", a minute after the burst", "bytes", lower, []float64{each}).holding("≤ 12", each <= 12))
	return nil
}

// permitBytes is what a permit takes in all keys, and the bytes of each key.
func permitBytes(ctx context.Context, rdb *redis.Client, limiter *throttle.Limiter, n int64) (each float64, sizes map[string]int64, err error) {
	ledger := limiter.Ledger(phone(0))
	sizes, err = weigh(ctx, rdb, func(key string) string { return strings.TrimPrefix(strings.TrimPrefix(key, ledger), ":") })
	for _, size := range sizes {
		each += float64(size) / float64(n)
	}
	return each, sizes, err
}

// tokensGone waits until the life of a key is over, which is that of the newest call.
func tokensGone(ctx context.Context, rdb *redis.Client, tokens string) error {
	for {
		left, err := rdb.PTTL(ctx, tokens).Result()
		if err != nil || left == -2 {
			return err
		}
		if left < 0 || left > 2*time.Minute {
			return fmt.Errorf("the tokens live for %v, want about a minute", left)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(left + time.Millisecond):
		}
	}
}

// deferredJobs weighs what a pool leaves in Redis for jobs that have to wait:
// each on a phone of its own, which has spent its permit.
func deferredJobs(ctx context.Context, b *bench, rdb *redis.Client) error {
	jobs := 10_000
	if b.short {
		jobs = 500
	}
	if err := rdb.FlushAll(ctx).Err(); err != nil {
		return err
	}
	rule := queue.Rule{Name: "sms", Limit: throttle.Sliding(1, time.Hour), Key: queue.MustJSONKey("$.to")}
	handler := asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })
	pool, err := worker.New(rdb, handler, worker.Config{
		Asynq:    asynq.Config{Concurrency: 64, LogLevel: asynq.FatalLevel},
		Policies: []queue.Policy{{Type: "sms:send", Rules: []queue.Rule{rule}}},
	})
	if err != nil {
		return err
	}
	client := asynq.NewClientFromRedisClient(rdb)
	if _, err := drive(ctx, 64, 10*time.Minute, int64(2*jobs), func(_ context.Context, i int64) error {
		payload := `{"to":"` + phone(i%int64(jobs)) + `"}`
		_, err := client.Enqueue(asynq.NewTask("sms:send", []byte(payload)))
		return err
	}); err != nil {
		return err
	}
	if err := deferAll(ctx, pool, jobs); err != nil {
		return err
	}
	sizes, err := weigh(ctx, rdb, kindOfKey)
	if err != nil {
		return err
	}
	per := func(kind string) float64 { return float64(sizes[kind]) / float64(jobs) }
	ours := 0.0
	var parts []string
	for _, kind := range []string{"due", "line"} {
		ours += per(kind)
		parts = append(parts, kind+" "+number(per(kind)))
	}
	field, err := fieldBytes(ctx, rdb, sizes["asynq"])
	if err != nil {
		return err
	}
	own := float64(field) / float64(jobs)
	asynqs := []float64{per("asynq") - own}
	r := against("a deferred job on a phone of its own: our keys beside asynq's share", "bytes", lower, "asynq", []float64{ours}, asynqs)
	b.row(r.holding("≤ 300", ours <= 300))
	b.row(against("the same, with our field in asynq's hash of the task", "bytes", lower, "asynq", []float64{ours + own}, asynqs))
	b.say("A deferred job, bytes of ours by key: %s; our field hw in asynq's hash of the task %s. The phone's own %s bytes, which are there "+
		"without a deferred job too, "+
		"and asynq's share are not in it.", strings.Join(parts, ", "), number(own), number(per("sms")+per("tokens")))
	return nil
}

// fieldBytes are what asynq's keys are smaller by without what we write into its
// hashes of tasks. It takes that out.
func fieldBytes(ctx context.Context, rdb *redis.Client, before int64) (int64, error) {
	iter := rdb.Scan(ctx, 0, "asynq:{*}:t:*", 1000).Iterator()
	for iter.Next(ctx) {
		if err := rdb.HDel(ctx, iter.Val(), "hw").Err(); err != nil {
			return 0, err
		}
	}
	if err := iter.Err(); err != nil {
		return 0, err
	}
	after, err := weigh(ctx, rdb, kindOfKey)
	return before - after["asynq"], err
}

// deferAll runs the pool until so many jobs are deferred.
func deferAll(ctx context.Context, pool *worker.Pool, jobs int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 3*time.Minute, fmt.Errorf("not all %d jobs were deferred in time", jobs))
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- pool.Run(ctx) }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for pool.Stats().Deferred < int64(jobs) {
		select {
		case err := <-ended:
			return fmt.Errorf("the pool ended early: %w", err)
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), <-ended)
		case <-tick.C:
		}
	}
	cancel()
	return <-ended
}

// kindOfKey sorts the keys of a queue and of its rules.
func kindOfKey(key string) string {
	if strings.HasPrefix(key, "asynq:") {
		return "asynq"
	}
	return key[strings.LastIndexByte(key, ':')+1:]
}

// weigh adds up MEMORY USAGE of all keys, by kind.
func weigh(ctx context.Context, rdb *redis.Client, kind func(key string) string) (map[string]int64, error) {
	sizes, seen := make(map[string]int64), make(map[string]bool) // SCAN may name a key twice
	var cursor uint64
	for {
		keys, next, err := rdb.Scan(ctx, cursor, "*", 1000).Result()
		if err != nil {
			return nil, err
		}
		keys = slices.DeleteFunc(keys, func(key string) bool { return seen[key] })
		pipe := rdb.Pipeline()
		usages := make([]*redis.IntCmd, len(keys))
		for i, key := range keys {
			usages[i] = pipe.MemoryUsage(ctx, key, 0)
			seen[key] = true
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return nil, err
		}
		for i, key := range keys {
			sizes[kind(key)] += usages[i].Val()
		}
		if cursor = next; cursor == 0 {
			return sizes, nil
		}
	}
}

// emptied empties the database, has the contender load its script and open its
// connections, and returns used_memory then.
func emptied(ctx context.Context, rdb *redis.Client, one contender) (float64, error) {
	_, err := drive(ctx, 64, time.Minute, 1_000, func(ctx context.Context, _ int64) error {
		_, err := one.try(ctx, phone(0))
		return err
	})
	if err != nil {
		return 0, err
	}
	if err := rdb.FlushAll(ctx).Err(); err != nil {
		return 0, err
	}
	return usedMemory(ctx, rdb)
}

func usedMemory(ctx context.Context, rdb *redis.Client) (float64, error) {
	info, err := rdb.Info(ctx, "memory").Result()
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(infoField(info, "used_memory"), 64)
}

func sortedKeys(m map[string]int64) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
