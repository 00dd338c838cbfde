package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/headwayq/headway/throttle"
)

func ExampleParseLimit() {
	for _, text := range []string{"1/60s", "sliding 10/1h", "5/d", "bucket 100/1s", "calendar 10/day", "warmup 2/1s over 4s", "0/1s"} {
		limit, err := throttle.ParseLimit(text)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(limit, "->", limit.Permits(), limit.Window(), limit.MaxCost())
	}
	// Output:
	// sliding 1/1m -> 1 1m0s 1
	// sliding 10/1h -> 10 1h0m0s 10
	// sliding 5/1d -> 5 24h0m0s 5
	// bucket 100/1s burst 100 -> 100 1s 100
	// calendar 10/day UTC -> 10 24h0m0s 10
	// warmup 2/1s over 4s cold 3 -> 2 1s 210240000
	// throttle: invalid limit: "0/1s": 0 permits, want 1 to 1000000; right is for example "1/60s"
}

func ExampleLimit() {
	for _, limit := range []throttle.Limit{
		throttle.Sliding(1, time.Minute),
		throttle.Fixed(10, time.Hour),
		throttle.Calendar(10, throttle.Day, "Asia/Shanghai"),
		throttle.Bucket(100, time.Second, 200),
		throttle.SteppedBucket(10, time.Second, 50),
		throttle.GCRA(100, time.Second, 20),
		throttle.Leaky(10, time.Second),
		throttle.Smooth(5, time.Second, 5),
		throttle.WarmUp(2, time.Second, 4*time.Second, 3),
	} {
		fmt.Println(limit)
	}
	// Output:
	// sliding 1/1m
	// fixed 10/1h
	// calendar 10/day Asia/Shanghai
	// bucket 100/1s burst 200
	// bucket 10/1s burst 50 step
	// gcra 100/1s burst 20
	// leaky 10/1s
	// smooth 5/1s burst 5
	// warmup 2/1s over 4s cold 3
}

func ExampleLimit_Validate() {
	err := throttle.SteppedBucket(10, time.Nanosecond, 5).Validate()
	fmt.Println(err)
	if fault, ok := errors.AsType[*throttle.LimitError](err); ok {
		fmt.Printf("first: %s is %s\n", fault.Field, fault.Value)
	}
	// Output:
	// throttle: invalid limit: window 1ns, want 1ms to 3650d
	// throttle: invalid limit: burst 5, want at least the 10 permits of a step: what does not fit would be lost at every tick
	// first: window is 1ns
}

// Each permit comes back one window after it went.
func ExampleSliding() {
	eight := time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)
	rdb, server := redisAt(eight)
	defer server.Close()
	defer rdb.Close()

	sms, err := throttle.New(rdb, "sms", throttle.Sliding(2, time.Hour), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, at := range []time.Duration{0, 20 * time.Minute, 50 * time.Minute, time.Hour, time.Hour} {
		server.SetTime(eight.Add(at))
		d, err := sms.TryAcquire(context.Background(), "+491701234567", 1)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(d.Now.UTC().Format(time.Kitchen), d.Granted, d.At.Sub(d.Now))
	}
	// Output:
	// 8:00AM true 0s
	// 8:20AM true 0s
	// 8:50AM false 10m0s
	// 9:00AM true 0s
	// 9:00AM false 20m0s
}

// The whole window ends at once: twice the limit fits around its edge.
func ExampleFixed() {
	eight := time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)
	rdb, server := redisAt(eight)
	defer server.Close()
	defer rdb.Close()

	login, err := throttle.New(rdb, "login", throttle.Fixed(10, time.Hour), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, call := range []struct {
		at     time.Duration
		logins int
	}{{0, 1}, {59 * time.Minute, 9}, {59 * time.Minute, 1}, {time.Hour, 10}} {
		server.SetTime(eight.Add(call.at))
		d, err := login.TryAcquire(context.Background(), "192.0.2.7", call.logins)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(d.Now.UTC().Format(time.Kitchen), call.logins, d.Granted, d.At.Sub(d.Now))
	}
	// Output:
	// 8:00AM 1 true 0s
	// 8:59AM 9 true 0s
	// 8:59AM 1 false 1m0s
	// 9:00AM 10 true 0s
}

// A day ends at midnight where the customer lives.
func ExampleCalendar() {
	shanghai, err := time.LoadLocation("Asia/Shanghai")
	if err != nil {
		fmt.Println(err)
		return
	}
	evening := time.Date(2026, 3, 1, 23, 0, 0, 0, shanghai)
	rdb, server := redisAt(evening)
	defer server.Close()
	defer rdb.Close()

	quota, err := throttle.New(rdb, "quota", throttle.Calendar(10, throttle.Day, "Asia/Shanghai"), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, at := range []time.Duration{0, 30 * time.Minute, time.Hour} {
		server.SetTime(evening.Add(at))
		d, err := quota.TryAcquire(context.Background(), "tenant 7", 10)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(d.Now.In(shanghai).Format("Jan 2 15:04"), d.Granted, d.At.Sub(d.Now))
	}
	// Output:
	// Mar 1 23:00 true 0s
	// Mar 1 23:30 false 30m0s
	// Mar 2 00:00 true 0s
}

// A burst goes at once, and the bucket fills evenly.
func ExampleBucket() {
	push, err := throttle.NewLocal("push", throttle.Bucket(10, time.Hour, 3), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 4 {
		d, err := push.TryAcquire(context.Background(), "device 7", 1)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(d.Granted, d.At.Sub(d.Now).Round(time.Minute))
	}
	// Output:
	// true 0s
	// true 0s
	// true 0s
	// false 6m0s
}

// The bucket gains its permits at once, when an interval is over.
func ExampleSteppedBucket() {
	eight := time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)
	rdb, server := redisAt(eight)
	defer server.Close()
	defer rdb.Close()

	api, err := throttle.New(rdb, "api", throttle.SteppedBucket(5, time.Hour, 10), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, call := range []struct {
		at    time.Duration
		calls int
	}{{0, 10}, {50 * time.Minute, 1}, {time.Hour, 5}} {
		server.SetTime(eight.Add(call.at))
		d, err := api.TryAcquire(context.Background(), "tenant 7", call.calls)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(d.Now.UTC().Format(time.Kitchen), call.calls, d.Granted, d.At.Sub(d.Now))
	}
	// Output:
	// 8:00AM 10 true 0s
	// 8:50AM 1 false 10m0s
	// 9:00AM 5 true 0s
}

// Ten an hour, evenly: one each six minutes.
func ExampleGCRA() {
	mail, err := throttle.NewLocal("mail", throttle.GCRA(10, time.Hour, 1), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, job := range []string{"a", "b", "c"} {
		d, err := mail.Policy().Redeem(context.Background(), throttle.Request{Key: "a@example.com", Cost: 1, Job: job})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(job, d.Granted, d.At.Sub(d.Now).Round(time.Minute))
	}
	// Output:
	// a true 0s
	// b false 6m0s
	// c false 12m0s
}
