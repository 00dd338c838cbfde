package throttle_test

import (
	"context"
	"fmt"
	"time"

	"github.com/headwayq/headway/throttle"
)

// An operator lowers the limit while senders run: it holds in every process. What
// was spent under the old one counts.
func ExampleLimiter_SetLimit() {
	eight := time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)
	rdb, server := redisAt(eight)
	defer server.Close()
	defer rdb.Close()

	ctx := context.Background()
	inCode := throttle.Sliding(10, time.Hour)
	operator, err := throttle.New(rdb, "sms", inCode, throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := operator.Acquire(ctx, "+491701234567", 2); err != nil {
		fmt.Println(err)
		return
	}
	if _, err := operator.SetLimit(ctx, throttle.Sliding(3, time.Hour), throttle.SetLimitOptions{}); err != nil {
		fmt.Println(err)
		return
	}
	sender, err := throttle.New(rdb, "sms", inCode, throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		d, err := sender.TryAcquire(ctx, "+491701234567", 1)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(d.Granted, d.At.Sub(d.Now))
	}
	// Output:
	// true 0s
	// false 1h0m0s
}

// A limit for the hour of a campaign; then the one in code counts again.
func ExampleLimiter_SetLimit_forAWhile() {
	rdb, server := redisAt(time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC))
	defer server.Close()
	defer rdb.Close()

	ctx := context.Background()
	inForce := func() { // as a process finds it that starts now
		sms, err := throttle.New(rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(sms.LimitStatus(ctx).Limit)
	}
	operator, err := throttle.New(rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := operator.SetLimit(ctx, throttle.Sliding(5, time.Minute), throttle.SetLimitOptions{For: time.Hour}); err != nil {
		fmt.Println(err)
		return
	}
	inForce()
	server.FastForward(time.Hour + time.Second)
	inForce()
	// Output:
	// sliding 5/1m
	// sliding 1/1m
}

// The first process sets what all begin with; those that start later leave it.
func ExampleLimiter_SetLimit_ifUnset() {
	ctx := context.Background()
	sms, err := throttle.NewLocal("sms", throttle.Sliding(1, time.Hour), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, n := range []int{5, 7} {
		fmt.Println(sms.SetLimit(ctx, throttle.Sliding(n, time.Hour), throttle.SetLimitOptions{IfUnset: true}))
		fmt.Println(sms.LimitStatus(ctx).Limit)
	}
	// Output:
	// true <nil>
	// sliding 5/1h
	// false <nil>
	// sliding 5/1h
}

func ExampleLimiter_UnsetLimit() {
	ctx := context.Background()
	sms, err := throttle.NewLocal("sms", throttle.Sliding(1, time.Hour), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := sms.SetLimit(ctx, throttle.Sliding(5, time.Hour), throttle.SetLimitOptions{}); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(sms.Available(ctx, "+491701234567"))
	if err := sms.UnsetLimit(ctx); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(sms.Available(ctx, "+491701234567"))
	// Output:
	// 5 <nil>
	// 1 <nil>
}

func ExampleLimiter_LimitStatus() {
	ctx := context.Background()
	sms, err := throttle.NewLocal("sms", throttle.Sliding(1, time.Hour), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(sms.LimitStatus(ctx).Stored)
	if _, err := sms.SetLimit(ctx, throttle.Sliding(5, time.Hour), throttle.SetLimitOptions{}); err != nil {
		fmt.Println(err)
		return
	}
	now := sms.LimitStatus(ctx)
	fmt.Println(now.Limit, now.Stored, now.Err)
	// Output:
	// false
	// sliding 5/1h true <nil>
}

// The limit in code, and the one that decides.
func ExampleLimiter_Limit() {
	ctx := context.Background()
	sms, err := throttle.NewLocal("sms", throttle.Sliding(1, time.Hour), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := sms.SetLimit(ctx, throttle.Sliding(5, time.Hour), throttle.SetLimitOptions{}); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(sms.Limit())
	fmt.Println(sms.LimitStatus(ctx).Limit)
	// Output:
	// sliding 1/1h
	// sliding 5/1h
}

// A loop that hears of each change, until it is left.
func ExampleLimiter_WatchLimit() {
	ctx := context.Background()
	sms, err := throttle.NewLocal("sms", throttle.Sliding(1, time.Hour), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for limit, err := range sms.WatchLimit(ctx) {
		fmt.Println(limit, err)
		if limit == throttle.Sliding(5, time.Hour) {
			break
		}
		if _, err := sms.SetLimit(ctx, throttle.Sliding(5, time.Hour), throttle.SetLimitOptions{}); err != nil {
			fmt.Println(err)
			return
		}
	}
	// Output:
	// sliding 1/1h <nil>
	// sliding 5/1h <nil>
}
