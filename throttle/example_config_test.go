package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/throttle"
)

// A limiter that needs no Redis, for a test or a program of one process.
func ExampleNewLocal() {
	ctx := context.Background()
	sms, err := throttle.NewLocal("sms", throttle.Sliding(1, time.Hour), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, phone := range []string{"+491701234567", "+491701234567", "+491707654321"} {
		d, err := sms.TryAcquire(ctx, phone, 1)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(d.Granted, d.At.Sub(d.Now).Round(time.Minute))
	}
	// Output:
	// true 0s
	// false 1h0m0s
	// true 0s
}

// A new limit is tried on real traffic: everything runs, and the counts tell what
// the limit would have held back.
func ExampleConfig_shadow() {
	ctx := context.Background()
	sms, err := throttle.NewLocal("sms", throttle.Sliding(1, time.Hour), throttle.Config{Shadow: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		d, err := sms.TryAcquire(ctx, "+491701234567", 1)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("sent:", d.Granted, "shadowed:", d.Shadowed)
	}
	counts := sms.Policy().Counts()
	fmt.Println(counts.Granted, "within the limit,", counts.Shadowed, "above it")
	// Output:
	// sent: true shadowed: false
	// sent: true shadowed: true
	// sent: true shadowed: true
	// 1 within the limit, 2 above it
}

// Redis is away: nothing is granted, everything, or what this process can answer
// for.
func ExampleConfig_whenAway() {
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1}) // nobody listens
	defer rdb.Close()

	for _, away := range []throttle.FailureMode{throttle.FailClosed, throttle.FailOpen, throttle.FailLocal} {
		sms, err := throttle.New(rdb, "sms", throttle.Sliding(1, time.Hour), throttle.Config{OnUnavailable: away})
		if err != nil {
			fmt.Println(err)
			return
		}
		for range 2 {
			d, err := sms.TryAcquire(ctx, "+491701234567", 1)
			fmt.Println(away, d.Granted, errors.Is(err, throttle.ErrUnavailable))
		}
	}
	// Output:
	// fail closed false true
	// fail closed false true
	// fail open true false
	// fail open true false
	// fail local true false
	// fail local false false
}

// Each worker process has the limit for itself.
func ExampleConfig_perClient() {
	ctx := context.Background()
	rdb, server := redisAt(time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC))
	defer server.Close()
	defer rdb.Close()

	for _, client := range []string{"worker-1", "worker-2", "worker-1"} {
		cpu, err := throttle.New(rdb, "encode", throttle.Sliding(1, time.Minute), throttle.Config{PerClient: true, Client: client})
		if err != nil {
			fmt.Println(err)
			return
		}
		d, err := cpu.TryAcquire(ctx, "video", 1)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(client, d.Granted)
	}
	// Output:
	// worker-1 true
	// worker-2 true
	// worker-1 false
}

func ExampleConfig_observer() {
	ctx := context.Background()
	var granted, refused atomic.Int64 // the functions are called from many goroutines
	sms, err := throttle.NewLocal("sms", throttle.Sliding(1, time.Hour), throttle.Config{Observer: event.Observer{
		Granted: func(context.Context, event.Granted) { granted.Add(1) },
		Refused: func(_ context.Context, e event.Refused) { refused.Add(1); fmt.Println(e.Rule, "refuses:", e.Reason) },
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		if _, err := sms.TryAcquire(ctx, "+491701234567", 1); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println(granted.Load(), "granted,", refused.Load(), "refused")
	// Output:
	// sms refuses: no permits
	// 1 granted, 1 refused
}

func ExamplePolicy_Counts() {
	ctx := context.Background()
	sms, err := throttle.NewLocal("sms", throttle.Sliding(1, time.Hour), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, n := range []int{1, 1, 2} {
		if _, err := sms.TryAcquire(ctx, "+491701234567", n); err != nil {
			fmt.Println(err)
		}
	}
	counts := sms.Policy().Counts()
	fmt.Println(counts.Granted, "granted,", counts.Refused, "refused,", counts.Exceeded, "above the limit")
	// Output:
	// throttle: rule "sms": cost 2 exceeds the limit sliding 1/1h
	// 1 granted, 1 refused, 1 above the limit
}
