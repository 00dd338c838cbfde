package throttle_test

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// crowd fills the line of a key with jobs "w0", "w1", … without asking for each.
func crowd(tb testing.TB, rdb redis.UniversalClient, waiting int, promised time.Time) {
	tb.Helper()
	ctx := context.Background()
	name := "hw:{" + key + "}:sms"
	for from := 0; from < waiting; from += 5000 {
		var line []redis.Z
		for i := from; i < min(from+5000, waiting); i++ {
			member := fmt.Sprint("1:w", i)
			line = append(line, redis.Z{Score: float64(i), Member: member}, redis.Z{Score: float64(promised.UnixMicro() + 1<<51), Member: "@" + member})
		}
		pipe := rdb.Pipeline()
		pipe.ZAdd(ctx, name+":line", line...)
		pipe.Expire(ctx, name+":line", time.Hour)
		if _, err := pipe.Exec(ctx); err != nil {
			tb.Fatal(err)
		}
	}
}

var statLine = regexp.MustCompile(`(?m)^cmdstat_(\S+):calls=(\d+)`)

var (
	statFcall = regexp.MustCompile(`cmdstat_fcall:\S*usec_per_call=([0-9.]+)`)
	statEval  = regexp.MustCompile(`cmdstat_eval:\S*usec_per_call=([0-9.]+)`)
)

// commands counts the Redis commands that f's scripts make.
func commands(t *testing.T, rdb redis.UniversalClient, f func()) int {
	t.Helper()
	count := func() (sum int) {
		info, err := rdb.Info(context.Background(), "commandstats").Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range statLine.FindAllStringSubmatch(info, -1) {
			switch m[1] {
			case "fcall", "eval", "evalsha", "info":
			default:
				n, _ := strconv.Atoi(m[2])
				sum += n
			}
		}
		return sum
	}
	before := count()
	f()
	return count() - before
}

// Each call makes a bounded number of commands, whatever is in Redis: no loop
// over the line, over what expired, or over the cost.
func TestCallsAreBounded(t *testing.T) {
	t.Parallel()
	const big, atOnce = 100_000, 10_000
	fill := func(s *scene, l *throttle.Limiter) {
		for range big / atOnce {
			s.try(l, atOnce)
		}
	}
	for name, tt := range map[string]struct {
		n       int
		prepare func(s *scene, l *throttle.Limiter)
		cost    int
		most    int
	}{
		"idle":                {1, func(*scene, *throttle.Limiter) {}, 1, 13},
		"10,000 in the line":  {1, func(s *scene, _ *throttle.Limiter) { crowd(s, s.raw, 10_000, start.Add(time.Hour)) }, 1, 25},
		"100,000 in the line": {1, func(s *scene, _ *throttle.Limiter) { crowd(s, s.raw, big, start.Add(time.Hour)) }, 1, 25},
		"10,000 late":         {1, func(s *scene, _ *throttle.Limiter) { crowd(s, s.raw, 10_000, start.Add(-time.Hour)) }, 1, 65},
		"100,000 expired": {big, func(s *scene, l *throttle.Limiter) {
			fill(s, l)
			s.at(time.Minute)
		}, 1, 25},
		"10,000 at once": {big, func(s *scene, l *throttle.Limiter) {
			fill(s, l)
			s.at(time.Minute)
		}, atOnce, 25},
		"100,000 in the window": {big, fill, atOnce, 25},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSceneOnOne(t, "it counts the commands of one server", redistest.Own())
			l := s.limiter("sms", throttle.Sliding(tt.n, time.Minute))
			tt.prepare(s, l)
			_ = s.job(l, "warm up", tt.cost)
			var d throttle.Decision
			r := throttle.Request{Key: key, Cost: tt.cost, Job: "w500"}
			place := throttle.BookingRef{Policy: l.Policy(), IDs: []string{l.ID(key)}, Job: "w500", Costs: []int{1}}
			for _, c := range []struct { // in an order in which the redeem measured finds its place in the line
				op string
				f  func()
			}{
				{"try", func() { s.try(l, tt.cost) }},
				{"redeem", func() { d = s.job(l, "w500", tt.cost) }},
				{"refresh", func() { throttle.ForWorkers.Refresh(t.Context(), s.rdb, []throttle.BookingRef{place}) }},
				{"lookup", func() { _, _ = throttle.ForWorkers.Lookup(t.Context(), place, false) }},
				{"list", func() { _, _ = l.List(t.Context(), key, throttle.ListFrom{Ticket: 5000, Skip: 1}, 1) }},
				{"peek", func() { _, _ = l.Peek(t.Context(), key, 0) }},
				{"cancel", func() { _, _ = l.Policy().Cancel(t.Context(), r) }},
				{"refund", func() { r.Token = d.Token; _, _ = l.Policy().Refund(t.Context(), r) }},
				{"reset", func() { _, _ = l.Reset(t.Context(), key) }},
			} {
				op, f, most := c.op, c.f, tt.most
				if op == "refund" || op == "peek" {
					most += 3 * 20 // binary searches
				}
				if op == "refund" || tt.cost == atOnce {
					most += 2 * big / 2000 // records move and are written by 2000
				}
				f() // the text is sent once
				if got := commands(t, s.raw, f); got > most {
					t.Errorf("%s: %d commands, want %d at most", op, got, most)
				}
			}
		})
	}
}

// A permit costs 7 bytes, up to twice that while Redis' strings grow by
// doubling, and a key of one permit what a small string costs.
func TestMemory(t *testing.T) {
	t.Parallel()
	s := newSceneOnOne(t, "a node of a Cluster keeps more of each key")
	name := "hw:{+49170123456}:sms1" // 22 bytes
	one := s.limiter("sms1", throttle.Sliding(1, time.Minute))
	if _, err := one.TryAcquire(t.Context(), "+49170123456", 1); err != nil {
		t.Fatal(err)
	}
	if got := s.raw.MemoryUsage(t.Context(), name).Val(); got > 110 || got == 0 {
		t.Errorf("MEMORY USAGE of an idle key = %d, want 110 at most", got)
	}
	many := s.limiter("many", throttle.Sliding(100_000, time.Minute))
	for range 10 {
		s.try(many, 10_000)
	}
	if got := s.raw.MemoryUsage(t.Context(), "hw:{"+key+"}:many").Val(); got > 16*100_000 || got == 0 {
		t.Errorf("MEMORY USAGE of 100,000 permits = %d, want 16 bytes each at most", got)
	}
}
