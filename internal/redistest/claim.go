package redistest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	serverEnv   = "HEADWAY_TEST_REDIS"
	claimPrefix = "headway:redistest:db:" // in database 0, one key per claimed database
	claimTTL    = time.Hour               // longer than any test: a dead test's claim ends by itself
	claimWithin = time.Minute             // how long to wait while every database is claimed
	claimPoll   = 50 * time.Millisecond

	giveBackWithin = 5 * time.Second

	databasesDefault = 16 // of a Redis that does not tell
)

// claimDB finds an empty database on the server that addr names, claims it for
// tb, and flushes and gives it back when tb ends.
func claimDB(tb testing.TB, addr string) redis.Options {
	tb.Helper()
	options, err := parseAddr(addr)
	if err != nil {
		tb.Fatal(err)
	}
	token := rand.Text()
	ctx, cancel := context.WithTimeout(context.Background(), claimWithin)
	defer cancel()
	for {
		db, err := tryClaim(ctx, options, token)
		if err != nil {
			tb.Fatalf("redistest: claiming a database of %s=%s: %v", serverEnv, addr, err)
		}
		if db > 0 {
			options.DB = db
			tb.Cleanup(func() {
				if err := unclaim(options, token); err != nil {
					tb.Errorf("redistest: giving database %d back: %v", db, err)
				}
			})
			return options
		}
		select {
		case <-ctx.Done():
			tb.Fatalf("redistest: every database of %s=%s is claimed or not empty; "+
				"`redis-cli -n <number> flushdb` clears what a killed test left", serverEnv, addr)
		case <-time.After(claimPoll):
		}
	}
}

func parseAddr(addr string) (redis.Options, error) {
	if !strings.Contains(addr, "://") {
		return redis.Options{Addr: addr}, nil
	}
	options, err := redis.ParseURL(addr)
	if err != nil {
		return redis.Options{}, fmt.Errorf("redistest: %s: %w", serverEnv, err)
	}
	return *options, nil
}

// tryClaim returns the number of a database that is now ours and empty, or 0.
func tryClaim(ctx context.Context, options redis.Options, token string) (int, error) {
	claims := openDB(options, 0)
	defer claims.Close()
	databases := databasesDefault
	if conf, err := claims.ConfigGet(ctx, "databases").Result(); err == nil { // managed servers refuse CONFIG
		if n, err := strconv.Atoi(conf["databases"]); err == nil {
			databases = n
		}
	}
	for db := 1; db < databases; db++ {
		err := claims.SetArgs(ctx, claimKey(db), token, redis.SetArgs{Mode: "NX", TTL: claimTTL}).Err()
		if errors.Is(err, redis.Nil) {
			continue
		}
		if err != nil {
			return 0, err
		}
		// Look after the claim, not before: the last holder flushes, then unclaims.
		size, err := sizeOf(ctx, options, db)
		if err == nil && size == 0 {
			return db, nil
		}
		if err := errors.Join(err, claims.Del(ctx, claimKey(db)).Err()); err != nil {
			return 0, err
		}
	}
	return 0, nil
}

// unclaim flushes the database if it is still ours: an expired claim may have
// been followed by somebody else's.
func unclaim(options redis.Options, token string) error {
	ctx, cancel := context.WithTimeout(context.Background(), giveBackWithin)
	defer cancel()
	claims := openDB(options, 0)
	defer claims.Close()
	if holder, err := claims.Get(ctx, claimKey(options.DB)).Result(); err != nil || holder != token {
		return errors.Join(errors.New("the claim is lost"), err)
	}
	ours := openDB(options, options.DB)
	defer ours.Close()
	return errors.Join(ours.FlushDB(ctx).Err(), claims.Del(ctx, claimKey(options.DB)).Err())
}

func sizeOf(ctx context.Context, options redis.Options, db int) (int64, error) {
	client := openDB(options, db)
	defer client.Close()
	return client.DBSize(ctx).Result()
}

func openDB(options redis.Options, db int) *redis.Client {
	options.DB = db
	options.DialerRetries = 1 // a server that is not there is not there
	return redis.NewClient(&options)
}

func claimKey(db int) string { return claimPrefix + strconv.Itoa(db) }
