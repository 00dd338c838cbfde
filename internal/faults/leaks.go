package faults

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/redisserver"
)

// Leaks is what a soak needs and leaves.
type Leaks struct {
	Quarter Vitals   `json:"quarter"`        // behind a quarter of the time
	End     Vitals   `json:"end"`            // before its end
	Lasting int      `json:"lasting"`        // keys left in Redis that last, see [lastingKeys]
	Places  int      `json:"places"`         // of these, lines and turns
	Keys    []string `json:"keys,omitempty"` // that should be gone
}

// Vitals are what a process that was never struck needs. Each figure is the least of an eighth of the
// run: handlers at work and calls that wait for a Redis that is away do not count as leaks.
type Vitals struct {
	At         time.Time `json:"at"`
	Goroutines int       `json:"goroutines"`
	Heap       int64     `json:"heap"`  // bytes that are in use after a collection
	Redis      int64     `json:"redis"` // used_memory of the server; 0 for not known
}

// How much more a process may need at the end than at a quarter of the time. What Redis needs is
// reported only: it keeps messages that were sent for some minutes, and figures of each minute.
const (
	moreGoroutines = 5
	moreHeap       = 2 << 20
)

// found says what leaked.
func (l Leaks) found() []string {
	var leaks []string
	for _, key := range l.Keys {
		leaks = append(leaks, "left in Redis: "+key)
	}
	if l.Quarter.Goroutines == 0 || l.End.Goroutines == 0 {
		return append(leaks, "the process that is never struck did not say what it needs")
	}
	if more := l.End.Goroutines - l.Quarter.Goroutines; more > moreGoroutines {
		leaks = append(leaks, fmt.Sprintf("%d goroutines more at the end than at a quarter of the time", more))
	}
	if more := l.End.Heap - l.Quarter.Heap; more > moreHeap {
		leaks = append(leaks, fmt.Sprintf("%s of heap more at the end than at a quarter of the time", kilobytes(more)))
	}
	return leaks
}

func (l Leaks) print(line func(name, format string, a ...any)) {
	line("never struck", "goroutines %d at a quarter of the time, %d at the end; heap %s, %s", l.Quarter.Goroutines, l.End.Goroutines,
		kilobytes(l.Quarter.Heap), kilobytes(l.End.Heap))
	line("memory of Redis", "%s at a quarter of the time, %s at the end", kilobytes(l.Quarter.Redis), kilobytes(l.End.Redis))
	line("keys left", "%d that last, %d of them lines and turns; %d that should be gone", l.Lasting, l.Places, len(l.Keys))
}

func kilobytes(n int64) string { return fmt.Sprintf("%d kB", (n+512)>>10) }

// vitalsEvery is how often a process notes what it needs: five times in an eighth of the run at least.
func vitalsEvery(run time.Duration) time.Duration { return min(run/40, 5*time.Second) }

func vitalsFile(dir string) string { return filepath.Join(dir, "vitals.jsonl") }

// noteVitals notes what this process needs, again and again. Redis is asked beside that: its answer
// may take seconds.
func (p *workerProcess) noteVitals(ctx context.Context, rdb redis.UniversalClient) {
	file, err := e2e.OpenLines(p.spec.Vitals)
	if err != nil {
		return // the run misses what it should say
	}
	defer file.Close()
	began, every := time.Now(), vitalsEvery(p.spec.VitalsFor)
	profiles := heapProfiles(p.spec)
	var used atomic.Int64
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		again(ctx, every, func() { used.Store(usedMemory(ctx, rdb)) })
	})
	again(ctx, every, func() {
		for _, t := range p.types {
			t.gateway.Close() // each idle connection has two goroutines
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		_ = file.Write(Vitals{At: time.Now(), Goroutines: runtime.NumGoroutine(), Heap: int64(m.HeapAlloc), Redis: used.Load()}) // #nosec G115: far below 2^63
		if len(profiles) > 0 && time.Since(began) >= profiles[0].at {
			writeHeap(profiles[0].file)
			profiles = profiles[1:]
		}
	})
}

// heapProfile is what the heap holds at a time of the run, by who made it.
type heapProfile struct {
	at   time.Duration
	file string
}

// heapProfiles are to be compared when the heap has grown, with `go tool pprof -base`. They lie beside the figures.
func heapProfiles(spec workerSpec) []heapProfile {
	dir := filepath.Dir(spec.Vitals)
	return []heapProfile{
		{spec.VitalsFor / 4, filepath.Join(dir, "heap-quarter.pprof")},
		{spec.VitalsFor - spec.VitalsFor/16, filepath.Join(dir, "heap-end.pprof")},
	}
}

func writeHeap(path string) {
	file, err := os.Create(path)
	if err != nil {
		return // the run misses what it should show
	}
	defer file.Close()
	_ = pprof.Lookup("heap").WriteTo(file, 0)
}

// again does something again and again until ctx ends.
func again(ctx context.Context, every time.Duration, do func()) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			do()
		}
	}
}

func usedMemory(ctx context.Context, rdb redis.UniversalClient) int64 {
	info, err := rdb.Info(ctx, "memory").Result()
	if err != nil {
		return 0
	}
	text, _ := redisserver.InfoField(info, "used_memory")
	var n int64
	_, _ = fmt.Sscan(text, &n)
	return n
}

// findLeaks is called when all has drained and no process runs any more.
func findLeaks(ctx context.Context, r *run, rdb redis.UniversalClient) (*Leaks, error) {
	var l Leaks
	var err error
	if l.Quarter, l.End, err = vitalsOf(r); err != nil {
		return nil, err
	}
	wait := cmp.Or(r.spec.keysGoWithin, keysGoWithin)
	r.spec.Log("all has run; waiting until keys are gone, at most %v", wait)
	for giveUp := time.Now().Add(wait); ; time.Sleep(time.Second) {
		if err = l.lookForKeys(ctx, rdb); err != nil || len(l.Keys) == 0 || time.Now().After(giveUp) {
			return &l, err
		}
	}
}

// vitalsOf are what the process that is never struck has noted.
func vitalsOf(r *run) (quarter, end Vitals, err error) {
	file, err := os.Open(vitalsFile(r.spec.Dir))
	if err != nil {
		return Vitals{}, Vitals{}, err
	}
	defer file.Close()
	all, err := e2e.ReadLines(file, func(v Vitals) bool { return v.Goroutines > 0 })
	from, to := r.began.Add(r.spec.For/4), r.began.Add(r.spec.For)
	return leastOf(all, from, from.Add(r.spec.For/8)), leastOf(all, to.Add(-r.spec.For/8), to), err
}

// leastOf are the least figures of a time.
func leastOf(all []Vitals, from, to time.Time) Vitals {
	least := Vitals{At: from}
	for _, v := range all {
		if v.At.Before(from) || v.At.After(to) {
			continue
		}
		if least.Goroutines == 0 {
			least.Goroutines, least.Heap = v.Goroutines, v.Heap
		}
		least.Goroutines, least.Heap = min(least.Goroutines, v.Goroutines), min(least.Heap, v.Heap)
		if v.Redis > 0 && (least.Redis == 0 || v.Redis < least.Redis) {
			least.Redis = v.Redis
		}
	}
	return least
}

// keysGoWithin is how long keys of limits may stay when all is done: the longest window is a minute,
// and tokens are kept for a minute.
const keysGoWithin = 150 * time.Second

// lastingKeys are the keys that stay when nothing runs and nothing waits any more, and for how long
// at most, by docs/redis-keys.md. The others are gone by then.
var lastingKeys = []struct {
	keys *regexp.Regexp
	life time.Duration
}{
	// The places of jobs that were granted under another policy than the
	// one under which they waited, as in a deploy. Who reads them next drops them.
	{placeKeys, time.Hour},
	{lasting(`history:\{[a-z]+\}:minutes:\d+`), 25 * time.Hour},      // what pools saw of a rule
	{lasting(`history:\{[a-z]+\}:hours:\d+`), 32 * 24 * time.Hour},   //
	{lasting(`history:\{[a-z]+\}:busy:1:\d+`), 2 * time.Minute},      // its busiest keys
	{lasting(`history:\{[a-z]+\}:busy:60:\d+`), 2 * time.Hour},       //
	{lasting(`\{.+\}:[a-z]+:opening`), time.Hour},                    // how many wait for a gate to open
	{lasting(`\{all\}:smooth`), time.Hour},                           // the permits that a smooth limit has stored
	{lasting(`rules`), 3 * time.Minute},                              // the policies of pools that ran
	{lasting(`limit:phone`), time.Hour},                              // the version of a limit that was taken away: it only grows
	{lasting(`\{default\}:planned`), 7 * 24 * time.Hour},             // by which limits the queue was planned
	{lasting(`\{default\}:ticks?:each-second`), 33 * 24 * time.Hour}, // which ticks are decided
	{lasting(`\{default\}:batches:ended`), 24 * time.Hour},           // batches that ended, and their records
	{lasting(`\{default\}:batch:[^:]+`), 24 * time.Hour},             //
}

// lockKeys are in the names of asynq's locks of unique tasks, which are free when these have ended.
const lockKeys = ":unique:"

var placeKeys = lasting(`\{.+\}:[a-z]+:(line|turns:[0-9a-f]{16})`)

func lasting(name string) *regexp.Regexp {
	return regexp.MustCompile("^" + luascripts.PrefixDefault + ":" + name + "$")
}

// lookForKeys counts the keys that last, and names the others, with what they have left to live.
func (l *Leaks) lookForKeys(ctx context.Context, rdb redis.UniversalClient) error {
	l.Lasting, l.Places, l.Keys = 0, 0, nil
	keys := rdb.Scan(ctx, 0, "*", 1000).Iterator()
	for keys.Next(ctx) {
		key := keys.Val()
		if strings.HasPrefix(key, "asynq:") && !strings.Contains(key, lockKeys) {
			continue
		}
		left, err := rdb.PTTL(ctx, key).Result()
		if err != nil {
			return err
		}
		switch {
		case left == -2: // it is gone meanwhile
		case lasts(key, left):
			l.Lasting++
			if placeKeys.MatchString(key) {
				l.Places++
			}
		default:
			l.Keys = append(l.Keys, fmt.Sprintf("%s for %v", maskPhones(key), left))
		}
	}
	slices.Sort(l.Keys)
	return keys.Err()
}

// lasts says whether a key may be left, with so much to live. A key that lives for ever has -1.
func lasts(key string, left time.Duration) bool {
	for _, k := range lastingKeys {
		if k.keys.MatchString(key) {
			return left > 0 && left <= k.life+time.Second
		}
	}
	return false
}

var phones = regexp.MustCompile(`\+\d+`)

func maskPhones(key string) string { return phones.ReplaceAllStringFunc(key, e2e.Mask) }
