package main

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// server measures what one call costs Redis (INFO commandstats and INFO cpu) and
// the client (allocations).
func server(ctx context.Context, b *bench) error {
	_, rdb, err := b.server()
	if err != nil {
		return err
	}
	calls := int64(5_000)
	if b.short {
		calls = 200
	}
	r := &costRun{b: b, rdb: rdb, calls: calls}
	fresh := acquireCase{goroutines: 1, keys: int(calls), granted: true}
	for _, w := range []struct {
		what   string
		c      acquireCase
		rivals []maker
	}{
		{"granted on a fresh key", fresh, append(append([]maker{}, libraries...), floors...)},
		{"granted on a hot key", acquireCase{1, 1, true}, []maker{redisRate, headwayGCRA}},
		{"refused", acquireCase{1, 1, false}, libraries},
		{"granted on a fresh key, 128 goroutines", acquireCase{128, int(calls), true}, []maker{redisRate}},
	} {
		if err := r.compare(ctx, w.what, w.c, w.rivals); err != nil {
			return err
		}
	}
	b.say("Each figure is over %s calls; 1 goroutine where nothing else is said. The commands' time is what INFO commandstats says of "+
		"those that the client sent, with all that their scripts call; "+
		"Redis counts whole microseconds for it, rounded down, so a GET is next to nothing. All of Redis' processor time (INFO cpu) has reading "+
		"and answering in it. Limits: %v on a hot key that grants, otherwise %v. Headway also reads the limit in force, at most twice a second; "+
		"that is not counted.",
		number(float64(calls)), never, sms)
	return nil
}

// costRun is the section while it runs.
type costRun struct {
	b     *bench
	rdb   *redis.Client
	calls int64
}

// cost is what a call takes: of Redis, and of the client.
type cost struct{ us, cpu, allocs, bytes float64 }

// costs are the figures, in the order of the rows.
var costs = []struct {
	what, unit string
	of         func(cost) float64
}{
	{"commands' time for a call", "µs", func(c cost) float64 { return c.us }},
	{"all of Redis' processor time for a call", "µs", func(c cost) float64 { return c.cpu }},
	{"client's allocations for a call", "allocs", func(c cost) float64 { return c.allocs }},
	{"client's memory for a call", "bytes", func(c cost) float64 { return c.bytes }},
}

// compare adds a row for each figure and rival.
func (r *costRun) compare(ctx context.Context, what string, c acquireCase, rivals []maker) error {
	all, err := makeAll(ctx, r.rdb, c.limit(), append([]maker{headway}, rivals...)...)
	if err != nil {
		return err
	}
	seen := make([][]cost, len(all))
	var measures []func() (float64, error)
	for i, one := range all {
		measures = append(measures, func() (float64, error) {
			found, err := r.measure(ctx, c, one)
			seen[i] = append(seen[i], found)
			return found.us, err
		})
	}
	if _, err := r.b.interleave(measures...); err != nil {
		return err
	}
	for k, kind := range costs {
		if k > 1 && c.goroutines > 1 { // the client's share is not the limiter's alone
			continue
		}
		figures := make([][]float64, len(all))
		picture := chart{file: "server-" + strconv.Itoa(k), title: kind.what + ", " + what, unit: kind.unit, wins: lower}
		for i, one := range all {
			for _, found := range seen[i] {
				figures[i] = append(figures[i], kind.of(found))
			}
			picture.bars = append(picture.bars, bar{one.name, median(figures[i]), i == 0})
			if i > 0 {
				r.b.row(against(kind.what+", "+what, kind.unit, lower, one.name, figures[0], figures[i]))
			}
		}
		if c.goroutines == 1 && c.keys > 1 && k > 0 && k < 3 {
			r.b.draw(picture)
		}
	}
	return nil
}

// measure makes the calls of a case and returns what one of them cost.
func (r *costRun) measure(ctx context.Context, c acquireCase, one contender) (cost, error) {
	if err := r.rdb.FlushAll(ctx).Err(); err != nil {
		return cost{}, err
	}
	if !decides(one) {
		if err := spend(ctx, r.rdb, c, one); err != nil {
			return cost{}, err
		}
	}
	// The first calls load the script, grow buffers, and spend the key that refuses.
	for range 10 {
		key := "warm"
		if !c.granted {
			key = phone(0)
		}
		if _, err := one.try(ctx, key); err != nil {
			return cost{}, err
		}
	}
	if err := r.rdb.ConfigResetStat(ctx).Err(); err != nil {
		return cost{}, err
	}
	cpu, err := cpuTime(ctx, r.rdb)
	if err != nil {
		return cost{}, err
	}
	before := allocated()
	_, err = drive(ctx, c.goroutines, time.Minute, r.calls, func(ctx context.Context, i int64) error {
		allowed, err := one.try(ctx, phone(i%int64(c.keys)))
		if err == nil && allowed != c.granted && decides(one) {
			err = fmt.Errorf("%s: call %d allowed %t, want %t", one.name, i, allowed, c.granted)
		}
		return err
	})
	if err != nil {
		return cost{}, err
	}
	after := allocated()
	cpuAfter, err := cpuTime(ctx, r.rdb)
	if err != nil {
		return cost{}, err
	}
	stats, err := commandStats(ctx, r.rdb)
	if err != nil {
		return cost{}, err
	}
	n := float64(r.calls)
	found := cost{cpu: (cpuAfter - cpu) / n, allocs: float64(after.Mallocs-before.Mallocs) / n, bytes: float64(after.TotalAlloc-before.TotalAlloc) / n}
	for _, name := range one.sends {
		found.us += stats[name].us / n
	}
	return found, nil
}

// allocated is what this process has allocated so far.
func allocated() runtime.MemStats {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m
}

// cpuTime is what the server has used so far, user and system, in microseconds.
func cpuTime(ctx context.Context, rdb *redis.Client) (float64, error) {
	info, err := rdb.Info(ctx, "cpu").Result()
	if err != nil {
		return 0, err
	}
	user, err := strconv.ParseFloat(infoField(info, "used_cpu_user"), 64)
	if err != nil {
		return 0, fmt.Errorf("INFO cpu: %w", err)
	}
	sys, err := strconv.ParseFloat(infoField(info, "used_cpu_sys"), 64)
	if err != nil {
		return 0, fmt.Errorf("INFO cpu: %w", err)
	}
	return (user + sys) * 1e6, nil
}

// commandStat is one line of INFO commandstats.
type commandStat struct{ calls, us float64 }

func commandStats(ctx context.Context, rdb *redis.Client) (map[string]commandStat, error) {
	info, err := rdb.Info(ctx, "commandstats").Result()
	if err != nil {
		return nil, err
	}
	return parseCommandStats(info)
}

// parseCommandStats reads lines as "cmdstat_get:calls=2,usec=10,usec_per_call=5.00".
// A subcommand is named as there, "config|set".
func parseCommandStats(info string) (map[string]commandStat, error) {
	stats := make(map[string]commandStat)
	for line := range strings.Lines(info) {
		line, ok := strings.CutPrefix(strings.TrimSpace(line), "cmdstat_")
		if !ok {
			continue
		}
		name, fields, _ := strings.Cut(line, ":")
		var s commandStat
		found := 0
		for field := range strings.SplitSeq(fields, ",") {
			key, value, _ := strings.Cut(field, "=")
			into := map[string]*float64{"calls": &s.calls, "usec": &s.us}[key]
			if into == nil {
				continue
			}
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return nil, fmt.Errorf("INFO commandstats: %s of %s is %q, want a number", key, name, value)
			}
			*into = v
			found++
		}
		if found != 2 {
			return nil, fmt.Errorf("INFO commandstats: %s has no calls and usec", name)
		}
		stats[name] = s
	}
	return stats, nil
}
