package schedule

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
)

// pendingTicks are the ids of the tasks that wait, sorted.
func pendingTicks(t *testing.T, rdb redis.UniversalClient, queue string) []string {
	t.Helper()
	ids := rdb.LRange(t.Context(), "asynq:{"+queue+"}:pending", 0, -1).Val()
	slices.Sort(ids)
	return ids
}

// ticksOf are the ids of an entry's tasks from after one instant up to another.
func ticksOf(name, spec string, from, until time.Time) []string {
	var ids []string
	for _, at := range MustCron(spec, nil).between(from, until) {
		ids = append(ids, tickID(name, at))
	}
	slices.Sort(ids)
	return ids
}

// running is a Schedule that runs until it is stopped.
type running struct {
	*Schedule
	stop func()
}

func runSchedule(t *testing.T, rdb redis.UniversalClient, cfg Config, entries ...Entry) *running {
	t.Helper()
	return runSkewed(t, rdb, 0, cfg, entries...)
}

// runSkewed is runSchedule in a process whose clock is off.
func runSkewed(t *testing.T, rdb redis.UniversalClient, skew time.Duration, cfg Config, entries ...Entry) *running {
	t.Helper()
	return runBy(t, newClient(t, rdb), skew, cfg, entries...)
}

// runBy is runSkewed by a client that has policies.
func runBy(t *testing.T, client *queue.Client, skew time.Duration, cfg Config, entries ...Entry) *running {
	t.Helper()
	s, err := New(client, cfg, entries...)
	if err != nil {
		t.Fatal(err)
	}
	s.now = func() time.Time { return time.Now().Add(skew) }
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Errorf("Run = %v", err)
		}
	})
	return &running{s, func() { cancel(); wg.Wait() }}
}

// Three processes that run at the same time, started and killed at random, over a
// change of the clock: what all missed is made up, and each tick has one task.
func TestVirtualScheduleIsExactOverReplicas(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, m := redistest.Mini(t)
		specs := map[string]string{
			"fixed":   "CRON_TZ=Europe/Berlin */10 0-23 * * *",
			"elapsed": "CRON_TZ=America/New_York */10 * * * *",
			"every":   "@every 7m",
		}
		var entries []Entry
		for name, spec := range specs {
			entries = append(entries, Entry{Name: name, Spec: spec, Task: queue.NewTask("t", nil), Missed: MissedRunAll, MissedMax: 1000})
		}
		time.Sleep(time.Until(time.Date(2000, 3, 26, 0, 0, 30, 0, time.UTC))) // the bubble's; Berlin at 01:00 UTC
		from := time.Now()
		rng := rand.New(rand.NewPCG(1, 2)) // #nosec G404
		var replicas [3]*running
		start := func(i int) {
			c := redis.NewClient(redistest.MiniOptions(m))
			r := runSkewed(t, c, time.Duration(i-1)*3*time.Second, Config{}, entries...)
			stop := r.stop
			r.stop = func() { stop(); _ = c.Close() }
			replicas[i] = r
		}
		start(0)
		for range 90 {
			time.Sleep(time.Duration(rng.IntN(20*60)) * time.Second)
			i := rng.IntN(3)
			if replicas[i] == nil {
				start(i)
				continue
			}
			replicas[i].stop()
			replicas[i] = nil
		}
		for i := range replicas {
			if replicas[i] == nil {
				start(i)
			}
		}
		synctest.Wait()
		until := time.Now()
		for _, r := range replicas {
			r.stop()
		}
		var want []string
		for name, spec := range specs {
			want = append(want, ticksOf(name, spec, from, until)...)
		}
		slices.Sort(want)
		if diff := cmp.Diff(want, pendingTicks(t, rdb, "default")); diff != "" || len(want) < 150 {
			t.Errorf("tasks of %d ticks, - want + got:\n%s", len(want), diff)
		}
	})
}

// The task is as asynq's own client would have it, in the entry's queue.
func TestScheduleKeepsOptions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		heard := make(chan Tick, 10)
		time.Sleep(22*time.Hour + 59*time.Minute)
		s := runSchedule(t, rdb, Config{TickFunc: func(tick Tick) { heard <- tick }}, Entry{
			Name: "report", Spec: "TZ=Europe/Berlin @daily", Queue: "low",
			Task: queue.NewTaskWithHeaders("report:daily", []byte("payload"), map[string]string{"a": "b"},
				asynq.MaxRetry(3), asynq.Timeout(time.Minute), asynq.Retention(time.Hour)),
		})
		next := s.Next()[0]
		got := <-heard
		s.stop()
		want(t, fmt.Sprint(got), "{report 2000-01-02 00:00:00 +0100 CET report@2000-01-01T23:00:00Z enqueued}")
		want(t, next.At.Equal(got.At) && next.TaskID == got.TaskID, true)
		entry, tick, ok := ParseTaskID(got.TaskID)
		want(t, entry == "report" && tick.Equal(got.At) && ok, true)
		inspector := asynq.NewInspectorFromRedisClient(rdb)
		info, err := inspector.GetTaskInfo("low", got.TaskID)
		if err != nil {
			t.Fatal(err)
		}
		want(t, info.Type, "report:daily")
		want(t, string(info.Payload), "payload")
		want(t, info.Headers["a"], "b")
		want(t, info.MaxRetry, 3)
		want(t, info.Timeout, time.Minute)
		want(t, info.Retention, time.Hour)
		want(t, info.State, asynq.TaskStatePending)
		queues, err := inspector.Queues()
		want(t, err, nil)
		want(t, slices.Contains(queues, "low"), true)
		q, err := inspector.GetQueueInfo("low")
		want(t, err, nil)
		want(t, q.Latency, time.Duration(0))
	})
}

// The options of a refused task may name a person.
func TestScheduleNamesNoIDs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		core, logs := observer.New(zapcore.InfoLevel)
		const secret = "13612345678"
		s := runSchedule(t, rdb, Config{Logger: zap.New(core)}, Entry{Name: "a", Spec: "* * * * *",
			TaskFunc: func(context.Context, time.Time) (*queue.Task, error) {
				return queue.NewTask("t", nil, asynq.TaskID(secret), asynq.Group(secret), asynq.Queue(secret)), nil
			}})
		time.Sleep(90 * time.Second)
		s.stop()
		want(t, logs.Len(), 1)
		for _, l := range logs.All() {
			if line := l.Message + " " + l.ContextMap()["error"].(string); strings.Contains(line, secret) {
				t.Errorf("a log line has personal data: %s", line)
			}
		}
	})
}
func TestNewTellsAllFaults(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	task := queue.NewTask("t", nil)
	_, err := New(newClient(t, rdb, smsPolicy()), Config{},
		Entry{Name: "a b", Spec: "x", Queue: "{q}"},
		Entry{Name: "b", Spec: "@daily", Task: task, TaskFunc: func(context.Context, time.Time) (*queue.Task, error) { return nil, nil }},
		Entry{Name: "c", Spec: "@daily", Task: queue.NewTask("t", nil, asynq.Queue("q"), asynq.TaskID("x"), asynq.Unique(time.Hour), asynq.Group("g"),
			asynq.ProcessIn(time.Hour), asynq.ProcessAt(time.Time{}))},
		Entry{Name: "d", Spec: "@daily", Task: queue.NewTask("sms:send", []byte(`{}`))},
		Entry{Name: "e", Spec: "@daily", Task: queue.NewTask(" ", nil), Overlap: 3, Missed: -1, LateMax: 1, MissedWithin: 1000 * time.Hour, MissedMax: 1001},
		Entry{Name: "f", Spec: "@daily", Task: task, LateMax: time.Hour, MissedWithin: time.Minute},
		Entry{Name: "f", Spec: "@daily", Task: queue.NewTask("t", nil, asynq.Timeout(1), asynq.Deadline(time.Unix(1, 0)))},
	)
	if !errors.Is(err, ErrInvalid) || !errors.Is(err, ErrInvalidCron) || !errors.Is(err, queue.ErrInvalidOption) || !errors.Is(err, queue.ErrNoKey) {
		t.Errorf("New = %v", err)
	}
	text := fmt.Sprint(err)
	for _, part := range []string{
		`entry "a b": Name: want 1 to 64`, `entry "a b": Spec: cron spec "x": want`, `entry "a b": Queue: want`, `entry "a b": Task: want exactly one`,
		`entry "b": Task: want exactly one`, "option Queue:", "option TaskID:", `option Unique(1h0m0s)`, "option Group:", "option ProcessIn(1h", "option ProcessAt(",
		`entry "d": Task: task type "sms:send"`, `entry "e": Task: a task without a type`, `entry "e": Overlap: it is 3`, `entry "e": Missed: it is -1`,
		`entry "e": LateMax: it is 1ns`, `entry "e": MissedWithin: it is 1000h`, `entry "e": MissedMax: it is 1001`, `entry "f": MissedWithin: it is 1m0s, want 1h0m0s`,
		`entry "f": Name: there is another`, `option Timeout(1ns)`, `option Deadline(`,
	} {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in:\n%s", part, text)
		}
	}
	if n := strings.Count(text, "\n") + 1; n != 22 {
		t.Errorf("%d faults, want 22:\n%s", n, text)
	}
	want(t, fmt.Sprint(panicOf(func() { _, _ = New(nil, Config{}) })), "schedule: nil client")
}

// Entries change while the schedule runs; a set with a fault changes nothing.
func TestScheduleSet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		task := queue.NewTask("t", nil)
		start := time.Now().Truncate(time.Hour)
		time.Sleep(10 * time.Second)
		s := runSchedule(t, rdb, Config{}, Entry{Name: "a", Spec: "*/10 * * * *", Task: task, Missed: MissedRunAll})
		time.Sleep(25 * time.Minute) // 10, 20
		if err := s.Set(Entry{Name: "a", Spec: "x"}, Entry{Name: "b"}); !errors.Is(err, ErrInvalid) {
			t.Errorf("Set = %v", err)
		}
		time.Sleep(10 * time.Minute) // 30
		// the ticks of the new spec count from now on: 5, 12, 19, 26 and 33 are no missed ones
		if err := s.Set(Entry{Name: "a", Spec: "5,12,19,26,33,40,47 * * * *", Task: task, Missed: MissedRunAll}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(7 * time.Minute) // 40
		if err := s.Set(); err != nil {
			t.Fatal(err)
		}
		want(t, len(s.Next()), 0)
		time.Sleep(10 * time.Minute) // 47 was missed by all
		if err := s.Set(Entry{Name: "a", Spec: "5,12,19,26,33,40,47 * * * *", Task: task, Missed: MissedRunAll}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		s.stop()
		var ids []string
		for _, minute := range []int{10, 20, 30, 40, 47} {
			ids = append(ids, tickID("a", start.Add(time.Duration(minute)*time.Minute)))
		}
		if diff := cmp.Diff(ids, pendingTicks(t, rdb, "default")); diff != "" {
			t.Errorf("- want + got:\n%s", diff)
		}
	})
}

const goodSchedule = `entries:
  nightly:
    spec: 30 2 * * *
    zone: Europe/Berlin
    queue: low
    task: report:nightly
    payload: '{"all":true}'
    max_retry: 3
    timeout: 10m
    retention: 24h
    overlap: queue one
    missed: run once
    late_max: 5m
    missed_within: 48h
    missed_max: 9
  quick: {spec: '@every 10s', task: t}
  campaign: {spec: '0 9 * * 1-5', zone: UTC, task: func campaign, overlap: skip, missed: run all}
  block:
    spec: '*/5 * * * *'
    task: t
    overlap: allow
    missed: skip
    payload: |
      two
      lines
`

// Two versions with different specs at once: an instant of both ticks once, and
// each goes on with its own.
func TestScheduleRollingDeploy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, m := redistest.Mini(t)
		start := time.Now()
		time.Sleep(30 * time.Second)
		entry := func(spec string) Entry {
			return Entry{Name: "a", Spec: spec, Task: queue.NewTask("t", nil), Missed: MissedRunAll}
		}
		other := redis.NewClient(redistest.MiniOptions(m))
		defer other.Close()
		before := runSchedule(t, rdb, Config{}, entry("*/10 * * * *")) // 10 20 30 40
		time.Sleep(24 * time.Minute)
		after := runSchedule(t, other, Config{}, entry("*/15 * * * *")) // 30 45 60
		time.Sleep(20 * time.Minute)
		before.stop()
		time.Sleep(20 * time.Minute)
		after.stop()
		var ids []string
		for _, minute := range []int{10, 20, 30, 40, 45, 60} {
			ids = append(ids, tickID("a", start.Add(time.Duration(minute)*time.Minute)))
		}
		if diff := cmp.Diff(ids, pendingTicks(t, rdb, "default")); diff != "" {
			t.Errorf("- want + got:\n%s", diff)
		}
	})
}

// One is held until the one before has ended, and it is enqueued soon after.
func TestScheduleHoldsOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		made, told := make(map[string]int), make(map[Outcome]int)
		var mu sync.Mutex // over told
		s := runSchedule(t, rdb, Config{TickFunc: func(tick Tick) {
			mu.Lock()
			defer mu.Unlock()
			told[tick.Outcome]++
		}}, Entry{
			Name: "a", Spec: "* * * * *", Overlap: OverlapQueueOne,
			TaskFunc: func(_ context.Context, tick time.Time) (*queue.Task, error) {
				if made[tick.Format("15:04")]++; made[tick.Format("15:04")] == 1 {
					return nil, errors.New("it can't be made yet") // also of one that is held
				}
				return queue.NewTask("t", nil), nil
			},
		})
		defer s.stop()
		time.Sleep(3*time.Minute + 30*time.Second)
		want(t, fmt.Sprint(pendingTicks(t, rdb, "default")), "[a@2000-01-01T00:01:00Z]")
		rdb.Del(t.Context(), "asynq:{default}:pending", "asynq:{default}:t:a@2000-01-01T00:01:00Z") // it is done
		time.Sleep(2 * heldLook)
		want(t, fmt.Sprint(pendingTicks(t, rdb, "default")), "[a@2000-01-01T00:02:00Z]")
		if n := made["00:02"]; n > 3 { // not at each look
			t.Errorf("the task of the tick that is held was made %d times", n)
		}
		mu.Lock()
		defer mu.Unlock()
		want(t, fmt.Sprint(told), "map[enqueued:2 held:1 skipped:1]") // a tick is told when it is decided, and not while it is held
	})
}

func TestTaskTick(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"", "a", "@2026-03-29T01:00:00Z", "a b@2026-03-29T01:00:00Z", "a@2026-03-29T01:00:00+01:00", "a@2026-03-29T01:00:00.5Z"} {
		if entry, tick, ok := ParseTaskID(id); ok {
			t.Errorf("TaskTick(%q) = %q, %v", id, entry, tick)
		}
	}
}

// The record outlives the next tick, and what may be made up after it.
func TestScheduleRecordsLife(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	s, err := New(newClient(t, rdb), Config{}, Entry{Name: "leap", Spec: "0 0 29 2 *", Task: queue.NewTask("t", nil)})
	if err != nil {
		t.Fatal(err)
	}
	tk := &ticker{schedule: s, scheduled: s.all[0]}
	want(t, tk.pass(t.Context()) <= tickLook, true)
	ttl := rdb.PTTL(t.Context(), "hw:{default}:tick:leap").Val()
	if least := time.Until(s.all[0].cron.Next(time.Now())) + 30*24*time.Hour; ttl < least {
		t.Errorf("the record lives for %v, want %v at least", ttl, least)
	}
}
