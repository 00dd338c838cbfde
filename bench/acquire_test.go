package main

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redisserver"
)

// Every contender that decides allows what it was told to, and no more.
func TestContendersDecide(t *testing.T) {
	t.Parallel()
	rdb := newRedis(t)
	for _, terms := range []terms{sms, {5, time.Minute}} {
		all, err := makeAll(t.Context(), rdb, terms, append([]maker{headway, headwayGCRA}, libraries...)...)
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range all {
			if err := rdb.FlushDB(t.Context()).Err(); err != nil { // two of them are the same rule
				t.Fatal(err)
			}
			var allowed int
			for range 10 {
				ok, err := one.try(t.Context(), "+491701")
				if err != nil {
					t.Fatalf("%s: %v", one.name, err)
				}
				if ok {
					allowed++
				}
			}
			if allowed != terms.permits {
				t.Errorf("%s at %v allowed %d of 10, want %d", one.name, terms, allowed, terms.permits)
			}
			if ok, err := one.try(t.Context(), "+491702"); err != nil || !ok {
				t.Errorf("%s: another key = %t, %v, want allowed", one.name, ok, err)
			}
		}
	}
}

func TestFloorsAnswer(t *testing.T) {
	t.Parallel()
	rdb := newRedis(t)
	all, err := makeAll(t.Context(), rdb, sms, floors...)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range all {
		if ok, err := one.try(t.Context(), "+491701"); err != nil || !ok || decides(one) {
			t.Errorf("%s = %t, %v, decides %t, want an answer, and that it decides nothing", one.name, ok, err, decides(one))
		}
	}
}

// drive gives each number once, and no more than it was told to.
func TestDrive(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var got []int64
	rate, err := drive(t.Context(), 8, time.Minute, 1_000, func(_ context.Context, i int64) error {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, i)
		return nil
	})
	if err != nil || rate <= 0 {
		t.Fatalf("drive = %v, %v", rate, err)
	}
	slices.Sort(got)
	if len(got) != 1_000 || got[0] != 0 || got[999] != 999 || len(slices.Compact(got)) != 1_000 {
		t.Errorf("drive called with %d numbers, want 0 to 999 once each", len(got))
	}
}

func TestDriveEnds(t *testing.T) {
	t.Parallel()
	failed := errors.New("failed")
	if _, err := drive(t.Context(), 8, time.Minute, 0, func(_ context.Context, i int64) error {
		if i == 100 {
			return failed
		}
		return nil
	}); !errors.Is(err, failed) {
		t.Errorf("drive = %v, want %v", err, failed)
	}
	if rate, err := drive(t.Context(), 2, 10*time.Millisecond, 0, func(context.Context, int64) error { return nil }); err != nil || rate <= 0 {
		t.Errorf("drive for 10ms = %v, %v, want calls and an end", rate, err)
	}
}

func TestAcquireTargets(t *testing.T) {
	t.Parallel()
	r := &acquireRun{}
	for _, c := range []struct {
		at           acquireCase
		rival        string
		ours, theirs float64
		want         string
	}{
		{acquireCase{128, 1, true}, "redis_rate", 150_000, 60_000, "yes"},
		{acquireCase{128, 1, true}, "redis_rate", 150_000, 60_001, "no"},
		{acquireCase{128, 1, true}, "redis_rate", 99_999, 10_000, "no"},
		{acquireCase{1, 1, true}, "redis_rate", 100, 115, "yes"},
		{acquireCase{1, 1, true}, "redis_rate", 100, 116, "no"},
		{acquireCase{16, 1, true}, "redis_rate", 1, 100, ""},
		{acquireCase{128, 1, false}, "redis_rate", 1, 100, ""},
		{acquireCase{128, 1, true}, "GET", 1, 100, ""},
	} {
		w := against("x", "/s", higher, c.rival, []float64{c.ours}, []float64{c.theirs})
		if got := r.target(c.at, w).verdict(); got != c.want {
			t.Errorf("%v, %s: %v to %v holds = %q, want %q", c.at, c.rival, c.ours, c.theirs, got, c.want)
		}
	}
}

// newRedis is a client of a server of its own.
func newRedis(t *testing.T) *redis.Client {
	t.Helper()
	b := &bench{out: &bytes.Buffer{}}
	_, rdb, err := b.server()
	if errors.Is(err, redisserver.ErrNoServer) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, f := range slices.Backward(b.closers) {
			if err := f(); err != nil {
				t.Error(err)
			}
		}
	})
	return rdb
}

func TestTerms(t *testing.T) {
	t.Parallel()
	if got := sms.String() + ", " + never.String(); got != "1/1m, 1000000/1s" {
		t.Errorf("terms = %q, want 1/1m, 1000000/1s", got)
	}
}
