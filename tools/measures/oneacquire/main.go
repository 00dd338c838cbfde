// Command oneacquire takes a permit and prints the file of each function that was
// called for it, in order. It is built by the program that starts it, with a call of
// [trace.Enter] in each function, see tools/measures.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/tools/measures/trace"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("oneacquire: ")
	if len(os.Args) != 2 {
		log.Fatal("want the address of a Redis")
	}
	rdb := redis.NewClient(&redis.Options{Addr: os.Args[1]})
	limiter, err := throttle.New(rdb, "phone", throttle.Sliding(1, time.Minute), throttle.Config{})
	if err != nil {
		log.Fatal(err)
	}
	// The first call assembles the script and reads the limits that are set. The second is
	// like all others.
	if err := limiter.Acquire(context.Background(), "+15550100", 1); err != nil {
		log.Fatal(err)
	}
	trace.Start()
	err = limiter.Acquire(context.Background(), "+15550101", 1)
	entered := trace.Stop()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(strings.Join(entered, "\n"))
}
