package throttle_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// BenchmarkTwoRules books and redeems the jobs of a batch at its pace: phones of 1/2s behind a provider of
// 1,000/s, 4,000 booked ahead, in calls of 32. What Redis spends on a booking and on a redeem
// is reported, and in how many commands.
func BenchmarkTwoRules(b *testing.B) {
	raw := redistest.Start(b).Client(b)
	now := start
	rdb, err := redistest.NewTimed(b.Context(), redistest.LongLived{UniversalClient: raw}, now)
	if err != nil {
		b.Fatal(err)
	}
	p, err := throttle.NewPolicy(
		newLimiter(b, rdb, "phone", throttle.Sliding(1, 2*time.Second), throttle.Config{}),
		newLimiter(b, rdb, "provider", throttle.Sliding(1024, time.Second), throttle.Config{}))
	if err != nil {
		b.Fatal(err)
	}
	type booked struct {
		throttle.Request
		at time.Time
	}
	var ahead []booked
	job := 0
	var again atomic.Int64               // redeems that came too early
	spent := make(map[string][2]float64) // of a phase: microseconds, commands
	jobs := make(map[string]float64)
	inner := make(map[string]map[string][2]float64)
	phase := func(name string, count int, f func()) {
		us, cmds := scriptStats(b, raw)
		f()
		us2, cmds2 := scriptStats(b, raw)
		total := 0.0
		if inner[name] == nil {
			inner[name] = map[string][2]float64{}
		}
		for c, v := range cmds2 {
			total += v[0] - cmds[c][0]
			o := inner[name][c]
			inner[name][c] = [2]float64{o[0] + v[0] - cmds[c][0], o[1] + v[1] - cmds[c][1]}
		}
		s := spent[name]
		spent[name] = [2]float64{s[0] + us2 - us, s[1] + total}
		jobs[name] += float64(count)
	}
	book := func(many int) {
		wishes := make([]throttle.Wish, many)
		for i := range wishes {
			job++
			wishes[i] = wideWish(p, "+49170"+strconv.Itoa(1000000+job%10_000), fmt.Sprintf("batch:winter:%08d", job))
		}
		for i, k := range throttle.BookMany(b.Context(), rdb, wishes) {
			if k.Err != nil {
				b.Fatal(k.Err)
			}
			if !k.Refused {
				ahead = append(ahead, booked{wishes[i].Request, k.At})
			}
		}
	}
	redeem := func(many int) {
		var wg sync.WaitGroup
		for i := range ahead[:many] {
			if os.Getenv("SOLO") != "" {
				wg.Wait()
			}
			wg.Go(func() {
				d, err := p.Redeem(b.Context(), ahead[i].Request)
				if err != nil {
					b.Error(err)
				}
				if !d.Granted {
					again.Add(1)
					ahead[i].at = d.At
				} else {
					ahead[i].at = time.Time{}
				}
			})
		}
		wg.Wait()
		ahead = slices.DeleteFunc(ahead, func(k booked) bool { return k.at.IsZero() })
	}
	for len(ahead) < 4096 {
		book(64)
	}
	step := func(phase func(string, int, func())) {
		phase("book", 4096-len(ahead), func() { book(4096 - len(ahead)) })
		slices.SortStableFunc(ahead, func(x, y booked) int { return x.at.Compare(y.at) })
		if ahead[31].at.After(now) {
			now = ahead[31].at
			if err := rdb.SetTime(b.Context(), now); err != nil {
				b.Fatal(err)
			}
		}
		phase("redeem", 32, func() { redeem(32) })
	}
	for job < 8000 {
		step(func(_ string, _ int, f func()) { f() })
	}
	again.Store(0)
	raw.Del(b.Context(), "prof")
	for b.Loop() {
		step(phase)
	}
	// PROF
	prof := raw.HGetAll(b.Context(), "prof").Val()
	for _, k := range slices.Sorted(maps.Keys(prof)) {
		if n := prof[k+":n"]; n != "" {
			us, _ := strconv.ParseFloat(prof[k], 64)
			cnt, _ := strconv.ParseFloat(n, 64)
			which := "redeem"
			if strings.HasPrefix(k, "3") {
				which = "book"
			}
			fmt.Printf("%-16s %8.2f us/job, %6.2f times a job, each %7.2f\n", k, us/jobs[which], cnt/jobs[which], us/cnt)
		}
	}
	b.ReportMetric(float64(again.Load())/jobs["redeem"], "again/redeem")
	for name, s := range spent {
		b.ReportMetric(s[0]/jobs[name], "us/"+name)
		b.ReportMetric(s[1]/jobs[name], "cmds/"+name)
		if os.Getenv("INNER") != "" {
			for _, c := range slices.Sorted(maps.Keys(inner[name])) {
				v := inner[name][c]
				fmt.Printf("%s %-16s %6.2f calls %7.2f us\n", name, c, v[0]/jobs[name], v[1]/jobs[name])
			}
		}
	}
}

// scriptStats is how long scripts took, and each command of theirs: calls, microseconds.
func scriptStats(b *testing.B, rdb *redis.Client) (us float64, cmds map[string][2]float64) {
	b.Helper()
	cmds = make(map[string][2]float64)
	for line := range strings.Lines(rdb.Info(b.Context(), "commandstats").Val()) {
		var name string
		var calls, t float64
		line = strings.NewReplacer("cmdstat_", "", ":calls=", " ", ",usec=", " ", ",", " ").Replace(line)
		if n, _ := fmt.Sscan(line, &name, &calls, &t); n < 3 {
			continue
		}
		switch name {
		case "eval", "evalsha":
			us += t
		case "info":
		default:
			cmds[name] = [2]float64{calls, t}
		}
	}
	return us, cmds
}
