package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/headwayq/headway/throttle"
)

// Acquire blocks until the permits are there, and gives up at once when they come
// after the context's deadline.
func ExampleLimiter_Acquire() {
	sms, err := throttle.NewLocal("sms", throttle.Sliding(1, time.Hour), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	fmt.Println(sms.Acquire(ctx, "+491701234567", 1))
	fmt.Println(errors.Is(sms.Acquire(ctx, "+491701234567", 1), throttle.ErrTooLate))
	fmt.Println(sms.Acquire(ctx, "+491701234567", 2))
	// Output:
	// <nil>
	// true
	// throttle: rule "sms": cost 2 exceeds the limit sliding 1/1h
}

func ExamplePolicy_Acquire_maxWait() {
	sms, err := throttle.NewLocal("sms", throttle.Sliding(1, time.Hour), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		_, err := sms.Policy().Acquire(context.Background(), throttle.Request{Key: "+491701234567", Cost: 1, MaxWait: 5 * time.Second})
		if late, ok := errors.AsType[*throttle.TooLateError](err); ok {
			fmt.Println("not within", late.MaxWait.Round(time.Second), "but in", late.Wait.Round(time.Minute))
			continue
		}
		fmt.Println("sent:", err)
	}
	// Output:
	// sent: <nil>
	// not within 5s but in 1h0m0s
}

// A place that is worth having is booked, another is not.
func ExamplePolicy_Reserve() {
	ctx := context.Background()
	sms, err := throttle.NewLocal("sms", throttle.Sliding(1, time.Hour), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		place, err := sms.Policy().Reserve(ctx, throttle.Request{Key: "+491701234567", Cost: 1, MaxWait: 90 * time.Minute})
		if errors.Is(err, throttle.ErrTooLate) {
			fmt.Println("too late")
			continue
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(place.Granted(), place.Delay().Round(time.Minute))
	}
	// Output:
	// true 0s
	// false 1h0m0s
	// too late
}

// A look at a key: which jobs wait for it, and until when.
func ExampleLimiter_Peek() {
	ctx := context.Background()
	sms, err := throttle.NewLocal("sms", throttle.Sliding(2, time.Hour), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, job := range []string{"code", "invoice", "newsletter"} {
		if _, err := sms.Policy().Redeem(ctx, throttle.Request{Key: "+491701234567", Cost: 1, Job: job}); err != nil {
			fmt.Println(err)
			return
		}
	}
	look, err := sms.Peek(ctx, "+491701234567", 10)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(look.Available, "available,", look.Waiting, "waiting")
	for _, w := range look.Booked {
		fmt.Println(w.Job, w.At.Sub(look.Now).Round(time.Minute))
	}
	// Output:
	// 0 available, 1 waiting
	// newsletter 1h0m0s
}

func ExampleLimiter_Available() {
	ctx := context.Background()
	sms, err := throttle.NewLocal("sms", throttle.Sliding(5, time.Hour), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := sms.Acquire(ctx, "+491701234567", 2); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(sms.Available(ctx, "+491701234567"))
	fmt.Println(sms.Available(ctx, "+491707654321"))
	// Output:
	// 3 <nil>
	// 5 <nil>
}

// How long a newcomer would wait, for a progress bar or a Retry-After.
func ExampleLimiter_TimeUntil() {
	ctx := context.Background()
	push, err := throttle.NewLocal("push", throttle.Bucket(10, time.Hour, 3), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := push.Acquire(ctx, "device 7", 2); err != nil {
		fmt.Println(err)
		return
	}
	for n := 1; n <= 3; n++ {
		wait, err := push.TimeUntil(ctx, "device 7", n)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(n, wait.Round(time.Minute))
	}
	// Output:
	// 1 0s
	// 2 6m0s
	// 3 12m0s
}

// A customer called: the number may be sent to again at once.
func ExampleLimiter_Reset() {
	ctx := context.Background()
	sms, err := throttle.NewLocal("sms", throttle.Sliding(1, time.Hour), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		d, err := sms.TryAcquire(ctx, "+491701234567", 1)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(d.Granted)
	}
	if _, err := sms.Reset(ctx, "+491701234567"); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(sms.Available(ctx, "+491701234567"))
	// Output:
	// true
	// false
	// 1 <nil>
}

// A place in line is asked about again before its holder goes; one that is
// given up leaves no hole.
func ExampleLimiter_Reserve() {
	ctx := context.Background()
	sms, err := throttle.NewLocal("sms", throttle.Sliding(1, time.Hour), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		place, err := sms.Reserve(ctx, "+49170", 1)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(place.Granted(), place.Delay().Round(time.Minute))
		if !place.Granted() { // too long for us
			err = place.Cancel(ctx)
			fmt.Println("cancelled:", err)
		}
	}
	fmt.Printf("%+v\n", sms.Policy().Counts())
	// Output:
	// true 0s
	// false 1h0m0s
	// cancelled: <nil>
	// {Granted:1 Booked:1 Refused:0 TooLate:0 Exceeded:0 Shadowed:0 Fallback:0 Failed:0}
}
