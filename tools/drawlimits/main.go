// Command drawlimits draws the pictures of docs/algorithms.md. It starts a
// redis-server of its own, gives every algorithm the same jobs in real time,
// writes an SVG of what came and when it went, and prints what a key costs.
//
//	go run ./tools/drawlimits
//
// It takes about a minute, because one of its limits is counted by the minute.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redisserver"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("drawlimits: ")
	dir := flag.String("dir", filepath.Join("docs", "algorithms"), "where the pictures go")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := drawAll(ctx, *dir); err != nil {
		stop()
		log.Fatal(err)
	}
}

func drawAll(ctx context.Context, dir string) error {
	temp, err := os.MkdirTemp("", "drawlimits")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	server, err := redisserver.Launch(temp)
	if errors.Is(err, redisserver.ErrNoServer) {
		return errors.New("redis-server is not installed: run tools/install-redis")
	}
	if err != nil {
		return err
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), PoolSize: 100})
	defer rdb.Close()

	runs, err := recordAll(ctx, rdb)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for i, p := range pictures {
		name := filepath.Join(dir, p.file())
		if err := os.WriteFile(name, []byte(draw(p, runs[i])), 0o644); err != nil {
			return err
		}
		fmt.Printf("%s: %s\n", name, runs[i].summary(p.limit.Window()))
	}
	fmt.Println()
	return printSizes(ctx, rdb, os.Stdout)
}

// recordAll runs every limit at once, each on its own key, and refuses a run
// that broke its limit: there is no picture of that.
func recordAll(ctx context.Context, rdb redis.UniversalClient) ([]run, error) {
	now, err := rdb.Time(ctx).Result()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	runs := make([]run, len(pictures))
	var all sync.WaitGroup
	for i, p := range pictures {
		start := time.Now().Add(p.delay(now))
		all.Go(func() {
			var err error
			if runs[i], err = record(ctx, rdb, p.limit, pattern, start); err == nil {
				err = runs[i].check(p)
			}
			if err != nil {
				cancel(fmt.Errorf("%s: %w", p.limit, err))
			}
		})
	}
	all.Wait()
	return runs, context.Cause(ctx)
}
