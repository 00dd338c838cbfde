package throttle_test

import (
	"context"
	"fmt"
	"time"

	"github.com/headwayq/headway/throttle"
)

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
	fmt.Printf("%+v\n", sms.Counts())
	// Output:
	// true 0s
	// false 1h0m0s
	// cancelled: <nil>
	// {Granted:1 Booked:1 Refused:0 TooLate:0 Exceeded:0 Shadowed:0 Fallback:0 Failed:0}
}
