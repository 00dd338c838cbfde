package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/throttle"
)

// redisAt starts an embedded Redis whose clock stands still until it is set.
func redisAt(t time.Time) (redis.UniversalClient, *miniredis.Miniredis) {
	m := miniredis.NewMiniRedis()
	if err := m.Start(); err != nil {
		panic(err)
	}
	m.SetTime(t)
	return redis.NewClient(&redis.Options{Addr: m.Addr()}), m
}

func Example() {
	eight := time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)
	rdb, server := redisAt(eight)
	defer server.Close()
	defer rdb.Close()

	sms, err := throttle.New(rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	fmt.Println("first:", sms.Acquire(ctx, "+491701234567", 1))
	_, err = sms.Policy().Acquire(ctx, throttle.Request{Key: "+491701234567", Cost: 1, MaxWait: 10 * time.Second})
	fmt.Println("second:", err, errors.Is(err, throttle.ErrTooLate))
	fmt.Println("another phone:", sms.Acquire(ctx, "+491707654321", 1))
	// Output:
	// first: <nil>
	// second: throttle: rule "sms" admits in 1m0s at the earliest, only 10s are left true
	// another phone: <nil>
}

func ExampleLimiter_TryAcquire() {
	eight := time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)
	rdb, server := redisAt(eight)
	defer server.Close()
	defer rdb.Close()

	sms, _ := throttle.New(rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
	ctx := context.Background()
	for _, at := range []time.Duration{0, 30 * time.Second, time.Minute} {
		server.SetTime(eight.Add(at))
		d, err := sms.TryAcquire(ctx, "+491701234567", 1)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%v: granted %v, wait %v\n", at, d.Granted, d.At.Sub(d.Now))
	}
	// Output:
	// 0s: granted true, wait 0s
	// 30s: granted false, wait 30s
	// 1m0s: granted true, wait 0s
}

// A job that may not run yet books its place, and redeems it when its instant
// has come.
func ExamplePolicy_Redeem() {
	eight := time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)
	rdb, server := redisAt(eight)
	defer server.Close()
	defer rdb.Close()

	sms, _ := throttle.New(rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
	ctx := context.Background()
	for _, job := range []string{"code", "invoice", "newsletter"} {
		d, err := sms.Policy().Redeem(ctx, throttle.Request{Key: "+491701234567", Cost: 1, Job: job})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(job, d.Granted, d.At.UTC().Format(time.TimeOnly))
	}
	next, _ := sms.Policy().Cancel(ctx, throttle.Request{Key: "+491701234567", Cost: 1, Job: "invoice"})
	for _, turn := range next {
		fmt.Println(turn.Job, "may come at", turn.At.UTC().Format(time.TimeOnly))
	}

	server.SetTime(eight.Add(time.Minute))
	d, _ := sms.Policy().Redeem(ctx, throttle.Request{Key: "+491701234567", Cost: 1, Job: "newsletter"})
	fmt.Println(d.Job, d.Granted, d.At.UTC().Format(time.TimeOnly))
	// Output:
	// code true 08:00:00
	// invoice false 08:01:00
	// newsletter false 08:02:00
	// newsletter may come at 08:01:00
	// newsletter true 08:01:00
}
