package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// waiting are those who wait, in the order of their tickets: a line has other members too.
func waiting(ctx context.Context, rdb redis.Cmdable, line string) ([]string, error) {
	return rdb.ZRangeArgs(ctx, redis.ZRangeArgs{Key: line, ByScore: true, Start: "-inf", Stop: "(2251799813685248"}).Result()
}

// Random traces on a real Redis, whose clock goes forward and backward.
//
// Keys expire by the server's own clock, which such a trace leaves behind. So
// they get an hour more than the scripts ask for, and nothing expires: what is
// compared is what the scripts decide, and that every key has a TTL at all.
// That the TTL is right is tested by [TestModelOnMiniredis], where expiry and
// TIME are one clock that only goes forward, and in keys_test.go.
func TestModelOnRedis(t *testing.T) {
	t.Parallel()
	raw := redistest.Start(t).Client(t)
	rdb, err := redistest.NewTimed(t.Context(), redistest.LongLived{UniversalClient: raw}, start)
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(rt *rapid.T) {
		runTrace(rt, rdb, raw, true, func(now time.Time) {
			if err := rdb.SetTime(context.Background(), now); err != nil {
				rt.Fatal(err)
			}
		})
	})
}

func TestModelOnMiniredis(t *testing.T) {
	t.Parallel()
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	t.Cleanup(m.Close)
	rdb := redis.NewClient(redistest.MiniOptions(m))
	t.Cleanup(func() { _ = rdb.Close() })
	rapid.Check(t, func(rt *rapid.T) { runTrace(rt, rdb, rdb, false, m.SetTime) })
}

// trace compares a limiter with the model, call by call.
type trace struct {
	*rapid.T
	ctx     context.Context
	l       *throttle.Limiter
	m       *model
	rdb     redis.UniversalClient
	raw     *redis.Client
	setTime func(time.Time)
	back    bool // the clock may go backward

	now, latest int64
	costs       map[string]int
	jobs        []string
}

func runTrace(rt *rapid.T, rdb redis.UniversalClient, raw *redis.Client, back bool, setTime func(time.Time)) {
	ctx := context.Background()
	if err := raw.FlushAll(ctx).Err(); err != nil {
		rt.Fatal(err)
	}
	n := rapid.SampledFrom([]int{1, 2, 3, 5, 100}).Draw(rt, "n")
	window := rapid.SampledFrom([]time.Duration{10 * ms, time.Second, time.Minute}).Draw(rt, "W")
	l, err := throttle.New(rdb, "rule", throttle.Sliding(n, window), throttle.Config{})
	if err != nil {
		rt.Fatal(err)
	}
	tr := &trace{
		T: rt, ctx: ctx, l: l, m: newModel(n, window), rdb: rdb, raw: raw, setTime: setTime, back: back,
		now: start.UnixMicro(), costs: map[string]int{},
	}
	tr.m.mixed = n > 1 && rapid.Bool().Draw(rt, "mixed costs")
	equal := rapid.IntRange(1, min(n, 3)).Draw(rt, "cost")
	for i := range 12 {
		job := fmt.Sprintf("job:%d", i)
		tr.jobs = append(tr.jobs, job)
		tr.costs[job] = equal
		if tr.m.mixed {
			tr.costs[job] = rapid.IntRange(1, n).Draw(rt, "cost of "+job)
		}
	}
	tr.move(0)
	for range rapid.IntRange(5, 60).Draw(rt, "length") {
		tr.step()
		tr.invariants()
	}
}

func (tr *trace) step() {
	switch op := rapid.IntRange(0, 19).Draw(tr.T, "op"); op {
	case 0, 1, 2, 3, 4:
		tr.redeem(tr.job(), throttle.NewToken(), tr.maxWait())
	case 5, 6:
		tr.book(tr.job())
	case 7, 8:
		tr.try(rapid.IntRange(1, tr.m.n).Draw(tr.T, "cost"))
	case 9:
		tr.again()
	case 10:
		tr.cancel(tr.job())
	case 11:
		tr.refund(false)
	case 12:
		tr.refund(true)
	case 13:
		tr.check(tr.job())
	case 14:
		tr.peek()
	case 15:
		tr.lose()
	default:
		tr.tick()
	}
}

func (tr *trace) job() string { return rapid.SampledFrom(tr.jobs).Draw(tr.T, "job") }

func (tr *trace) maxWait() time.Duration {
	return rapid.SampledFrom([]time.Duration{0, 0, 0, -1, time.Duration(tr.m.window) * time.Microsecond}).Draw(tr.T, "max wait")
}

// move sets the clock. A trace stays below an hour: then late turns are forgotten.
func (tr *trace) move(d int64) {
	if tr.now+d-start.UnixMicro() > 50*60e6 || (d < 0 && !tr.back) {
		return
	}
	tr.now += d
	tr.latest = max(tr.latest, tr.now)
	tr.setTime(time.UnixMicro(tr.now))
}

func (tr *trace) tick() {
	w := tr.m.window
	steps := []int64{1, 999, 15_000, 60_000, w / 3, w - 15_000, w - 1, w, w + 1, 2 * w, 150_000, -1, -w / 3, -w, -3 * w}
	if first := len(tr.m.line); first > 0 { // to the head's instant, or a little before
		told := tr.m.told[tr.m.line[0].job]
		steps = append(steps, told-tr.now, told-tr.now-15_000, told-tr.now+100_000, told-tr.now+100_001, told-tr.now-50_000, told-tr.now-50_001)
	}
	tr.move(rapid.SampledFrom(steps).Draw(tr.T, "time"))
}

// invariants hold after every call, whatever the model says.
func (tr *trace) invariants() {
	if from, used, over := tr.m.over(); over {
		tr.Fatalf("%d permits of %d within one window from %v", used, tr.m.n, time.UnixMicro(from))
	}
	keys, err := tr.raw.Keys(tr.ctx, "hw:*").Result()
	if err != nil {
		tr.Fatal(err)
	}
	for _, k := range keys {
		if ttl, err := tr.raw.PTTL(tr.ctx, k).Result(); ttl < 0 || err != nil { // -1: none
			tr.Fatalf("PTTL(%s) = %v, %v, want a life", k, ttl, err)
		}
	}
	line, err := waiting(tr.ctx, tr.raw, "hw:{"+tr.l.ID(key)+"}:rule:line")
	if err != nil {
		tr.Fatal(err)
	}
	// Who is parked stands before all others, in the order of tickets too.
	var want []string
	for _, p := range append(tr.m.inTickets(), tr.m.line...) {
		want = append(want, fmt.Sprintf("%d:%s", p.cost, p.job))
	}
	if !slices.Equal(line, want) {
		tr.Fatalf("line = %v, want %v", line, want)
	}
}

// content is all that Redis holds of ours.
func (tr *trace) content() map[string]string {
	out := map[string]string{}
	keys, err := tr.raw.Keys(tr.ctx, "hw:*").Result()
	if err != nil {
		tr.Fatal(err)
	}
	for _, k := range keys {
		if strings.HasSuffix(k, ":rule") {
			out[k], err = tr.raw.Get(tr.ctx, k).Result()
		} else {
			var members []redis.Z
			members, err = tr.raw.ZRangeWithScores(tr.ctx, k, 0, -1).Result()
			out[k] = fmt.Sprint(members)
		}
		if err != nil {
			tr.Fatal(err)
		}
	}
	return out
}

func (tr *trace) again() {
	var tokens []throttle.Token
	for _, g := range tr.m.spent {
		if !g.refunded && !g.gone && g.at+tr.m.window > tr.latest && g.job != "" {
			tokens = append(tokens, g.token)
		}
	}
	if len(tokens) > 0 {
		g := *tr.m.find(rapid.SampledFrom(tokens).Draw(tr.T, "token"))
		d, err := tr.l.Redeem(tr.ctx, throttle.Request{Key: key, Cost: g.cost, Job: g.job, Token: g.token})
		if err != nil || !d.Granted || d.At.UnixMicro() != g.at {
			tr.Fatalf("the same token again: %v, %v, want the grant at %v", d, err, time.UnixMicro(g.at))
		}
	}
	for token, at := range tr.m.withdrawn {
		if at+60e6 <= tr.latest {
			continue
		}
		job := tr.jobs[0]
		_, err := tr.l.Redeem(tr.ctx, throttle.Request{Key: key, Cost: tr.costs[job], Job: job, Token: token})
		if !errors.Is(err, throttle.ErrWithdrawn) {
			tr.Fatalf("Redeem with a withdrawn token: %v, want %v", err, throttle.ErrWithdrawn)
		}
	}
}
