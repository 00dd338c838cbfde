package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/headwayq/headway/throttle"
)

// Book takes a place for a job and never a permit, however free the limit is.
// The same job keeps its place.
func ExamplePolicy_Book() {
	rdb, server := redisAt(time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC))
	defer server.Close()
	defer rdb.Close()

	ctx := context.Background()
	sms, err := throttle.New(rdb, "sms", throttle.Sliding(1, time.Hour), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, job := range []string{"code", "invoice", "code"} {
		d, err := sms.Policy().Book(ctx, throttle.Request{Key: "+491701234567", Cost: 1, Job: job})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(job, d.Granted, d.At.Sub(d.Now))
	}
	// Output:
	// code false 0s
	// invoice false 1h0m0s
	// code false 0s
}

// Who leaves the line moves up those behind, and the first of them is told.
func ExamplePolicy_Cancel() {
	ctx := context.Background()
	sms, err := throttle.NewLocal("sms", throttle.Sliding(1, time.Hour), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	request := func(job string) throttle.Request {
		return throttle.Request{Key: "+491701234567", Cost: 1, Job: job}
	}
	for _, job := range []string{"code", "invoice", "newsletter"} {
		if _, err := sms.Policy().Redeem(ctx, request(job)); err != nil {
			fmt.Println(err)
			return
		}
	}
	next, err := sms.Policy().Cancel(ctx, request("invoice"))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, turn := range next {
		fmt.Println(turn.Job, "may come in", turn.Wait.Round(time.Minute))
	}
	// Output:
	// newsletter may come in 1h0m0s
}

// The job turned out to have nothing to send: its permit is there for another.
func ExamplePolicy_Refund() {
	ctx := context.Background()
	sms, err := throttle.NewLocal("sms", throttle.Sliding(1, time.Hour), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	d, err := sms.TryAcquire(ctx, "+491701234567", 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(sms.Available(ctx, "+491701234567"))
	if _, err := sms.Policy().Refund(ctx, d.Request); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(sms.Available(ctx, "+491701234567"))
	// Output:
	// 0 <nil>
	// 1 <nil>
}

// The job was let in and could not start, because its worker is shutting down:
// it stays first.
func Example_returnForTheFirstPlace() {
	rdb, server := redisAt(time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC))
	defer server.Close()
	defer rdb.Close()

	ctx := context.Background()
	sms, err := throttle.New(rdb, "sms", throttle.Sliding(1, time.Hour), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	redeem := func(job string) throttle.Decision {
		d, err := sms.Policy().Redeem(ctx, throttle.Request{Key: "+491701234567", Cost: 1, Job: job})
		if err != nil {
			fmt.Println(err)
		}
		return d
	}
	first := redeem("code")
	fmt.Println("code", first.Granted)
	if _, err := throttle.ForWorkers.Return(ctx, sms.Policy(), first.Request); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("invoice", redeem("invoice").Granted)
	fmt.Println("code", redeem("code").Granted)
	// Output:
	// code true
	// invoice false
	// code true
}

// A token makes a call repeatable: the same one is charged once.
func ExamplePolicy_Redeem_token() {
	ctx := context.Background()
	sms, err := throttle.NewLocal("sms", throttle.Sliding(5, time.Hour), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	r := throttle.Request{Key: "+491701234567", Cost: 1, Job: "code", Token: throttle.NewToken()}
	for range 3 { // the answer got lost
		d, err := sms.Policy().Redeem(ctx, r)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(d.Granted)
	}
	fmt.Println(sms.Available(ctx, "+491701234567"))
	// Output:
	// true
	// true
	// true
	// 4 <nil>
}

// A job that would wait for too long takes no place.
func ExampleRequest_maxWait() {
	ctx := context.Background()
	sms, err := throttle.NewLocal("sms", throttle.Sliding(1, time.Hour), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, job := range []string{"code", "invoice"} {
		r := throttle.Request{Key: "+491701234567", Cost: 1, Job: job, MaxWait: time.Minute}
		_, err := sms.Policy().Redeem(ctx, r)
		fmt.Println(job, errors.Is(err, throttle.ErrTooLate))
	}
	// Output:
	// code false
	// invoice true
}
