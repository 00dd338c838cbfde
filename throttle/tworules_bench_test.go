package throttle_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// BenchmarkTwoRules books and redeems the jobs of a batch: phones of 1/2s behind a
// provider of 1,024/s, 4,096 booked ahead. What Redis spends on each of both is
// reported, in microseconds and in commands.
func BenchmarkTwoRules(b *testing.B) {
	const chunk = 32
	raw := redistest.Start(b).Client(b)
	now := start
	rdb, err := redistest.NewTimed(b.Context(), redistest.LongLived{UniversalClient: raw}, now)
	if err != nil {
		b.Fatal(err)
	}
	p := newPolicy(b, newLimiter(b, rdb, "phone", throttle.Sliding(1, 2*time.Second), throttle.Config{}),
		newLimiter(b, rdb, "provider", throttle.Sliding(1024, time.Second), throttle.Config{}))
	var ahead []*booked
	job := 0
	book := func(many int) {
		wishes := make([]throttle.BookRequest, many)
		for i := range wishes {
			job++
			wishes[i] = wideWish(p, strconv.Itoa(49170_1000000+job%10_000), fmt.Sprintf("batch:winter:%08d", job))
		}
		for i, k := range throttle.BookMany(b.Context(), rdb, wishes) {
			if k.Err != nil || k.Refused {
				b.Fatal(k)
			}
			ahead = append(ahead, &booked{wishes[i].Request, k.At})
		}
		slices.SortStableFunc(ahead, func(x, y *booked) int { return x.at.Compare(y.at) })
	}
	redeem := func() {
		if last := ahead[chunk-1].at; last.After(now) {
			now = last
			if err := rdb.SetTime(b.Context(), now); err != nil {
				b.Fatal(err)
			}
		}
		var wg sync.WaitGroup
		for _, k := range ahead[:chunk] {
			wg.Go(func() {
				if d, err := p.Redeem(b.Context(), k.Request); err != nil || !d.Granted {
					b.Error(d, err)
				}
			})
		}
		wg.Wait()
		ahead = ahead[chunk:]
	}
	for len(ahead) < 4096 {
		book(chunk)
	}
	var booking, redeeming scriptCost
	for b.Loop() {
		booking.of(b, raw, func() { book(chunk) })
		redeeming.of(b, raw, redeem)
	}
	booking.report(b, "booking", chunk)
	redeeming.report(b, "redeem", chunk)
}

type booked struct {
	throttle.Request
	at time.Time
}

// scriptCost is what scripts took of Redis: microseconds, and commands of theirs.
type scriptCost struct{ us, commands float64 }

func (c *scriptCost) of(b *testing.B, rdb *redis.Client, f func()) {
	b.Helper()
	before := scriptsOf(b, rdb)
	f()
	after := scriptsOf(b, rdb)
	c.us, c.commands = c.us+after.us-before.us, c.commands+after.commands-before.commands
}

func (c *scriptCost) report(b *testing.B, of string, chunk int) {
	b.Helper()
	n := float64(b.N * chunk)
	b.ReportMetric(c.us/n, "us/"+of)
	b.ReportMetric(c.commands/n, "commands/"+of)
}

// scriptsOf is what all scripts took since the server began.
func scriptsOf(b *testing.B, rdb *redis.Client) (c scriptCost) {
	b.Helper()
	for line := range strings.Lines(rdb.Info(b.Context(), "commandstats").Val()) {
		var calls, us float64
		name, figures, _ := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":")
		if n, _ := fmt.Sscanf(figures, "calls=%f,usec=%f,", &calls, &us); n != 2 {
			continue
		}
		switch name {
		case "eval", "evalsha":
			c.us += us
		case "info", "hset":
		default:
			c.commands += calls
		}
	}
	return c
}
