package throttle_test

import (
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
	// warmup 2/1s over 4s cold 3 -> 2 1s 1000000
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
