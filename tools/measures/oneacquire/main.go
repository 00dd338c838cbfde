// Command oneacquire takes one permit and writes which lines ran for it. It is
// built with coverage counters by the program that starts it, see tools/measures.
package main

import (
	"context"
	"log"
	"os"
	"runtime/coverage"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/throttle"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("oneacquire: ")
	if len(os.Args) != 3 {
		log.Fatal("want the address of a Redis and a directory for the counters")
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func run(addr, counters string) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	limiter, err := throttle.New(rdb, "phone", throttle.Sliding(1, time.Minute), throttle.Config{})
	if err != nil {
		return err
	}
	if err := coverage.WriteMetaDir(counters); err != nil {
		return err
	}
	if err := coverage.ClearCounters(); err != nil {
		return err
	}
	if err := limiter.Acquire(context.Background(), "+15550100", 1); err != nil {
		return err
	}
	return coverage.WriteCountersDir(counters)
}
