package throttletest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/throttletest"
)

// greet is the code under test.
func greet(ctx context.Context, l *throttle.Limiter, phone string) string {
	d, err := l.TryAcquire(ctx, phone, 1)
	switch {
	case errors.Is(err, throttle.ErrUnavailable):
		return "try again later"
	case err != nil:
		return err.Error()
	case !d.Granted:
		return fmt.Sprint("not before ", d.At.Format(time.TimeOnly))
	}
	return "hello"
}

func ExampleFake() {
	t := new(testing.T) // that of the test
	ctx := context.Background()
	fake := throttletest.New(t)
	sms := fake.Limiter("sms", throttle.Sliding(1, time.Minute), throttle.Config{})

	fmt.Println(greet(ctx, sms, "+491701234567"))
	fmt.Println(greet(ctx, sms, "+491701234567"))
	fake.Advance(time.Minute)
	fake.Away()
	fmt.Println(greet(ctx, sms, "+491701234567"))
	fake.Back()
	fmt.Println(greet(ctx, sms, "+491707654321"))
	for _, asked := range fake.Decisions() {
		fmt.Println(asked.Decision.Granted, asked.Err)
	}
	// Output:
	// hello
	// not before 08:01:00
	// try again later
	// hello
	// true <nil>
	// false <nil>
	// false throttle: acquire: redis: the fake is away
	// true <nil>
}
