//go:build accept

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// acceptMemory weighs the keys of 10,000 deferred jobs: each on a phone of its
// own, and all on one.
func acceptMemory(t *testing.T, tab *table) {
	const jobs = 10_000
	for _, phones := range []int{jobs, 1} {
		s := newTestbed(t, "1/1h", workerSpec{})
		s.enqueue(jobs+phones, phones) // the first to each phone is granted
		pool, _ := s.pool(s.rdb)
		s.eventually(2*time.Minute, "all others are deferred", func() bool { return pool.Stats().Deferred >= jobs })
		pool.Shutdown()
		bytes := s.weigh()
		per := func(kinds ...string) float64 {
			sum := int64(0)
			for _, k := range kinds {
				sum += bytes[k]
			}
			return float64(sum) / jobs
		}
		name := fmt.Sprintf("%d jobs on %d phones, bytes a job: ", jobs, phones)
		tab.note(name+"ours", "%.0f (due %.0f, line %.0f)", per("due", "line"), per("due"), per("line"))
		tab.note(name+"asynq's", "%.0f", per("asynq"))
		tab.note("a phone's ledger and tokens, deferred jobs or not, bytes", "%.0f, %.0f",
			float64(bytes["ledger"])/float64(phones), float64(bytes["tokens"])/float64(phones))
	}
}

// weigh adds up MEMORY USAGE of all keys, by what they are.
func (s *testbed) weigh() map[string]int64 {
	s.Helper()
	bytes := make(map[string]int64)
	iter := s.rdb.Scan(s.Context(), 0, "*", 1000).Iterator()
	for iter.Next(s.Context()) {
		key := iter.Val()
		n, err := s.rdb.MemoryUsage(s.Context(), key, 0).Result()
		if err != nil {
			s.Fatal(err)
		}
		kind := "other"
		switch last := key[strings.LastIndex(key, ":")+1:]; {
		case strings.HasPrefix(key, "asynq:"):
			kind = "asynq"
		case last == ruleSMS:
			kind = "ledger"
		case strings.HasPrefix(key, throttleDefaults.Prefix+":"):
			kind = last
		}
		bytes[kind] += n
	}
	if err := iter.Err(); err != nil {
		s.Fatal(err)
	}
	return bytes
}

// acceptEverySec kills Redis while many callers are granted permits, and counts
// the grants that it has forgotten. It is a measurement: no limit is ever exceeded with
// appendfsync always.
func acceptEverySec(t *testing.T, tab *table) {
	const rounds = 5
	for _, fsync := range []string{"everysec", "always"} {
		var granted, latest, lost []int64
		for range rounds {
			g, last, l := lostAtKill(t, fsync)
			granted, latest, lost = append(granted, g), append(latest, last), append(lost, l)
		}
		name := fmt.Sprintf("appendfsync %s: grants before kill -9, of those lost, %d rounds", fsync, rounds)
		if fsync == "always" {
			total := int64(0)
			for _, l := range lost {
				total += l
			}
			tab.want(t, total == 0, name, fmt.Sprintf("%v, %v", granted, lost), "none lost")
			continue
		}
		tab.note(name, "%v, %v", granted, lost)
		tab.note("grants in the last second before it, which a power cut would lose besides", "%v", latest)
	}
}

// lostAtKill answers how many grants were told before Redis was killed, how many
// of them in the last second, and how many Redis has forgotten.
func lostAtKill(t *testing.T, fsync string) (granted, latest, lost int64) {
	t.Helper()
	const permits = 1_000_000
	server := redistest.Start(t, redistest.Arg("appendonly", "yes"), redistest.Arg("appendfsync", fsync))
	l, err := throttle.New(server.Client(t), ruleSMS, throttle.Sliding(permits, time.Hour), throttle.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var answered atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for ctx.Err() == nil {
				d, err := l.TryAcquire(ctx, phone(0), 1)
				if err != nil {
					if !errors.Is(err, throttle.ErrUnavailable) {
						t.Error(err)
					}
					return
				}
				if d.Granted {
					answered.Add(1)
				}
			}
		})
	}
	time.Sleep(1500 * time.Millisecond)
	before := answered.Load()
	time.Sleep(time.Second)
	server.Kill()
	cancel()
	wg.Wait()
	server.StartAgain()
	var state throttle.State
	if !poll(t.Context(), 10*time.Second, func() bool {
		state, err = l.Peek(t.Context(), phone(0), 0)
		return err == nil
	}) {
		t.Fatal(err)
	}
	// what was charged and never answered is no loss: it counts as granted
	return answered.Load(), answered.Load() - before, max(0, answered.Load()-int64(permits-state.Available))
}
