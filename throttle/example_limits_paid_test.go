package throttle_test

import (
	"context"
	"fmt"
	"time"

	"github.com/headwayq/headway/throttle"
)

// A job of any cost goes, and the one after it waits until it has leaked out.
func ExampleLeaky() {
	export, err := throttle.NewLocal("export", throttle.Leaky(10, time.Hour), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, pages := range []int{5, 1} {
		d, err := export.TryAcquire(context.Background(), "printer", pages)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(pages, d.Granted, d.At.Sub(d.Now).Round(time.Minute))
	}
	// Output:
	// 5 true 0s
	// 1 false 30m0s
}

// A job pays for the one before it, not for itself.
func ExampleSmooth() {
	eight := time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)
	rdb, server := redisAt(eight)
	defer server.Close()
	defer rdb.Close()

	index, err := throttle.New(rdb, "index", throttle.Smooth(1, time.Hour, 1), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for n := 1; n <= 5; n++ {
		wait, err := index.TimeUntil(context.Background(), "cluster", n)
		if err != nil {
			fmt.Println(err)
			return
		}
		eight = eight.Add(wait)
		server.SetTime(eight)
		d, err := index.TryAcquire(context.Background(), "cluster", n)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(n, d.Granted, "after", wait)
	}
	// Output:
	// 1 true after 0s
	// 2 true after 1h0m0s
	// 3 true after 2h0m0s
	// 4 true after 3h0m0s
	// 5 true after 4h0m0s
}

// A server that was idle gets its work slowly at first: here up to three times
// slower, for four hours.
func ExampleWarmUp() {
	cache, err := throttle.NewLocal("cache", throttle.WarmUp(2, time.Hour, 4*time.Hour, 3), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	var before time.Time
	for i := range 7 {
		place, err := cache.Reserve(context.Background(), "replica", 1)
		if err != nil {
			fmt.Println(err)
			return
		}
		if i > 0 {
			fmt.Println(place.At().Sub(before).Round(time.Second))
		}
		before = place.At()
	}
	// Output:
	// 1h22m30s
	// 1h7m30s
	// 52m30s
	// 37m30s
	// 30m0s
	// 30m0s
}

// A limit from a configuration file decides like one in code.
func ExampleParseLimit_decides() {
	limit, err := throttle.ParseLimit("bucket 10/1h burst 3")
	if err != nil {
		fmt.Println(err)
		return
	}
	push, err := throttle.NewLocal("push", limit, throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, n := range []int{3, 1} {
		d, err := push.TryAcquire(context.Background(), "device 7", n)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(n, d.Granted, d.At.Sub(d.Now).Round(time.Minute))
	}
	// Output:
	// 3 true 0s
	// 1 false 6m0s
}
