package queue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
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

func runSchedule(t *testing.T, rdb redis.UniversalClient, cfg ScheduleConfig, entries ...Entry) *running {
	t.Helper()
	return runSkewed(t, rdb, 0, cfg, entries...)
}

// runSkewed is runSchedule in a process whose clock is off.
func runSkewed(t *testing.T, rdb redis.UniversalClient, skew time.Duration, cfg ScheduleConfig, entries ...Entry) *running {
	t.Helper()
	s, err := NewSchedule(newClient(t, rdb), cfg, entries...)
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
func TestScheduleIsExactOverReplicas(t *testing.T) {
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
			entries = append(entries, Entry{Name: name, Spec: spec, Task: NewTask("t", nil), Missed: MissedRunAll, MissedMax: 1000})
		}
		time.Sleep(time.Until(time.Date(2000, 3, 26, 0, 0, 30, 0, time.UTC))) // the bubble's; Berlin at 01:00 UTC
		from := time.Now()
		rng := rand.New(rand.NewPCG(1, 2)) // #nosec G404
		var replicas [3]*running
		start := func(i int) {
			c := redis.NewClient(redistest.MiniOptions(m))
			r := runSkewed(t, c, time.Duration(i-1)*3*time.Second, ScheduleConfig{}, entries...)
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

// The answer to each call about a tick is lost; go-redis may send it again, or not.
func TestScheduleWhenRepliesAreLost(t *testing.T) {
	t.Parallel()
	for _, retries := range []int{-1, 3} {
		t.Run(fmt.Sprintf("retries %d", retries), func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			proxy := redistest.NewProxy(t, server.Addr())
			raw := server.Client(t)
			opts := server.ClientOptions()
			opts.Addr, opts.MaxRetries, opts.MinRetryBackoff = proxy.Addr(), retries, -1
			rdb := redis.NewClient(opts)
			defer rdb.Close()
			now := time.Date(2026, 3, 29, 0, 0, 30, 0, time.UTC)
			timed, err := redistest.NewTimed(t.Context(), rdb, now)
			if err != nil {
				t.Fatal(err)
			}
			s, err := NewSchedule(newClient(t, timed), ScheduleConfig{}, Entry{
				Name: "minutely", Spec: "* * * * *", Task: NewTask("t", nil), Missed: MissedRunAll, Overlap: OverlapAllow,
			})
			if err != nil {
				t.Fatal(err)
			}
			s.now = func() time.Time { return now }
			tickers := []*ticker{{schedule: s, scheduled: s.all[0]}, {schedule: s, scheduled: s.all[0]}}
			for _, tk := range tickers {
				tk.pass(t.Context())
			}
			from := now
			for i := range 30 {
				now = now.Add(time.Minute)
				if err := timed.SetTime(t.Context(), now); err != nil {
					t.Fatal(err)
				}
				proxy.CutNext(func(request []byte) bool { return bytes.Contains(request, []byte("minutely@")) })
				before := proxy.Cuts()
				tickers[i%2].pass(t.Context())
				want(t, proxy.Cuts(), before+1)
				tickers[(i+1)%2].pass(t.Context())
			}
			if diff := cmp.Diff(ticksOf("minutely", "* * * * *", from, now), pendingTicks(t, raw, "default")); diff != "" {
				t.Errorf("- want + got:\n%s", diff)
			}
		})
	}
}

// While Redis is away nothing is lost that is to be made up, and one line says so.
func TestScheduleWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, m := redistest.Mini(t)
		core, logs := observer.New(zapcore.InfoLevel)
		entries := []Entry{
			{Name: "all", Spec: "* * * * *", Task: NewTask("t", nil), Missed: MissedRunAll, MissedMax: 5},
			{Name: "once", Spec: "* * * * *", Task: NewTask("t", nil), Missed: MissedRunOnce, Queue: "once"},
			{Name: "skip", Spec: "* * * * *", Task: NewTask("t", nil), Queue: "skip", LateMax: 20 * time.Second},
		}
		time.Sleep(30 * time.Second)
		from := time.Now()
		s := runSchedule(t, rdb, ScheduleConfig{Logger: zap.New(core)}, entries...)
		time.Sleep(2 * time.Minute)
		m.SetError("LOADING")
		time.Sleep(10 * time.Minute)
		m.SetError("")
		time.Sleep(5 * time.Minute)
		s.stop()
		until := time.Now()
		ids := func(name string, but func(i int) bool) []string {
			var out []string
			for i, id := range ticksOf(name, "* * * * *", from, until) {
				if !but(i) {
					out = append(out, id)
				}
			}
			return out
		}
		// of the 10 ticks that were missed, 2 to 11, Redis is back 30 s after the last
		for _, tt := range []struct {
			name, queue string
			but         func(i int) bool
		}{
			{"all", "default", func(i int) bool { return i >= 2 && i < 6 }}, // 5, and one that is not late
			{"once", "once", func(i int) bool { return i >= 2 && i < 11 }},
			{"skip", "skip", func(i int) bool { return i >= 2 && i < 12 }},
		} {
			if diff := cmp.Diff(ids(tt.name, tt.but), pendingTicks(t, rdb, tt.queue)); diff != "" {
				t.Errorf("%s, - want + got:\n%s", tt.name, diff)
			}
		}
		var lines []string
		for _, l := range logs.All() {
			lines = append(lines, l.Message)
		}
		if diff := cmp.Diff([]string{"the schedule can't reach Redis", "the schedule reaches Redis again"}, lines); diff != "" {
			t.Errorf("log, - want + got:\n%s", diff)
		}
	})
}

// A record that was lost is written again by whoever still knows it.
func TestScheduleWhoseRecordIsLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		start := time.Now()
		s := runSchedule(t, rdb, ScheduleConfig{}, Entry{Name: "a", Spec: "* * * * *", Task: NewTask("t", nil)})
		time.Sleep(59 * time.Second)
		rdb.Del(t.Context(), "hw:{default}:tick:a")
		time.Sleep(30 * time.Second)
		s.stop()
		want(t, strings.Join(pendingTicks(t, rdb, "default"), " "), strings.Join(ticksOf("a", "* * * * *", start, time.Now()), " "))
	})
}

// A failover that loses the last writes loses ticks with their tasks: all are done again.
func TestScheduleWhoseLastWritesAreLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		start := time.Now()
		time.Sleep(500 * time.Millisecond)
		s := runSchedule(t, rdb, ScheduleConfig{}, Entry{Name: "a", Spec: "@every 1s", Task: NewTask("t", nil)})
		time.Sleep(5 * time.Second)
		const record = "hw:{default}:tick:a"
		before := rdb.HGetAll(t.Context(), record).Val()
		pending := rdb.LRange(t.Context(), "asynq:{default}:pending", 0, -1).Val()
		time.Sleep(2 * time.Second)
		for _, id := range rdb.LRange(t.Context(), "asynq:{default}:pending", 0, -1).Val()[:2] {
			rdb.Del(t.Context(), "asynq:{default}:t:"+id)
		}
		rdb.LTrim(t.Context(), "asynq:{default}:pending", 2, -1)
		rdb.HSet(t.Context(), record, before)
		want(t, int(rdb.LLen(t.Context(), "asynq:{default}:pending").Val()), len(pending))
		time.Sleep(3 * time.Second)
		s.stop()
		want(t, strings.Join(pendingTicks(t, rdb, "default"), " "), strings.Join(ticksOf("a", "@every 1s", start, time.Now()), " "))
	})
}

// On Redis Cluster a tick and its task are in one slot, that of the queue.
func TestScheduleOnCluster(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3)
	heard := make(chan Tick, 100)
	var entries []Entry
	for _, queue := range []string{"a", "b", "c", "d"} {
		entries = append(entries, Entry{Name: queue, Spec: "@every 1s", Queue: queue, Task: NewTask("t", nil), Overlap: OverlapQueueOne})
	}
	for range 2 {
		defer runSchedule(t, rdb, ScheduleConfig{TickFunc: func(tick Tick) { heard <- tick }}, entries...).stop()
	}
	seen := make(map[string]bool)
	for len(seen) < len(entries) {
		tick := <-heard
		if tick.Outcome != OutcomeEnqueued {
			continue
		}
		want(t, fmt.Sprint(pendingTicks(t, rdb, tick.Entry)), "["+tick.TaskID+"]")
		want(t, seen[tick.Entry], false)
		seen[tick.Entry] = true
	}
}

// The task is as asynq's own client would have it, in the entry's queue.
func TestScheduleKeepsOptions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		heard := make(chan Tick, 10)
		time.Sleep(22*time.Hour + 59*time.Minute)
		s := runSchedule(t, rdb, ScheduleConfig{TickFunc: func(tick Tick) { heard <- tick }}, Entry{
			Name: "report", Spec: "TZ=Europe/Berlin @daily", Queue: "low",
			Task: NewTaskWithHeaders("report:daily", []byte("payload"), map[string]string{"a": "b"},
				asynq.MaxRetry(3), asynq.Timeout(time.Minute), asynq.Retention(time.Hour)),
		})
		next := s.Next()[0]
		got := <-heard
		s.stop()
		want(t, fmt.Sprint(got), "{report 2000-01-02 00:00:00 +0100 CET report@2000-01-01T23:00:00Z enqueued}")
		want(t, next.At.Equal(got.At) && next.TaskID == got.TaskID, true)
		entry, tick, ok := TaskTick(got.TaskID)
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

// A task that can't be made is asked for again, one that could never run is given
// up, and neither stops later ticks. No log line has what the function said.
func TestScheduleGivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		core, logs := observer.New(zapcore.InfoLevel)
		const secret = "13612345678"
		calls := 0
		var got []string
		client := newClient(t, rdb, smsPolicy())
		s, err := NewSchedule(client, ScheduleConfig{
			Logger:   zap.New(core),
			TickFunc: func(tick Tick) { got = append(got, tick.At.Format("15:04 ")+string(tick.Outcome)) },
		}, Entry{Name: "sms", Spec: "*/5 * * * *", TaskFunc: func(_ context.Context, tick time.Time) (*Task, error) {
			calls++
			switch tick.Minute() {
			case 5:
				return nil, errors.New(secret) // always
			case 10:
				return NewTask("sms:send", []byte(`{"phone":"`+secret+`"}`)), nil // no $.to
			case 15:
				return NewTask("mail", nil, asynq.Unique(time.Hour)), nil
			case 20:
				return nil, nil
			case 25:
				if calls%2 == 0 {
					return nil, errors.New(secret)
				}
			}
			return NewTask("sms:send", []byte(`{"to":"`+secret+`"}`)), nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 32*time.Minute)
		defer cancel()
		if err := s.Run(ctx); err != nil {
			t.Fatal(err)
		}
		want := []string{"00:05 given up", "00:10 given up", "00:15 given up", "00:20 given up", "00:25 enqueued", "00:30 enqueued"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("- want + got:\n%s", diff)
		}
		for _, l := range logs.All() {
			if line := fmt.Sprint(l.Message, l.ContextMap()); strings.Contains(line, secret) {
				t.Errorf("a log line has personal data: %s", line)
			}
		}
		want4 := logs.FilterMessage("a tick is given up: it has no task that could run").Len()
		if want4 != 4 {
			t.Errorf("%d lines about ticks that were given up, want 4", want4)
		}
	})
}

// The failure of a call that began before another was answered is not logged: Redis is there.
func TestScheduleHearsInOrder(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zapcore.InfoLevel)
	now := time.Unix(1_770_000_000, 0)
	s := &Schedule{log: zap.New(core), now: func() time.Time { return now }}
	asked := now
	now = now.Add(time.Second)
	s.reached(asked, nil)
	s.reached(asked, errors.New("away"))
	want(t, logs.Len(), 0)
	now = now.Add(time.Second)
	s.reached(now, errors.New("away"))
	s.reached(now, errors.New("away"))
	want(t, logs.Len(), 1)
	s.reached(now, nil)
	want(t, logs.Len(), 2)
}

// The options of a refused task may name a person.
func TestScheduleNamesNoIDs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		core, logs := observer.New(zapcore.InfoLevel)
		const secret = "13612345678"
		s := runSchedule(t, rdb, ScheduleConfig{Logger: zap.New(core)}, Entry{Name: "a", Spec: "* * * * *",
			TaskFunc: func(context.Context, time.Time) (*Task, error) {
				return NewTask("t", nil, asynq.TaskID(secret), asynq.Group(secret), asynq.Queue(secret)), nil
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
func TestNewScheduleTellsAllFaults(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	task := NewTask("t", nil)
	_, err := NewSchedule(newClient(t, rdb, smsPolicy()), ScheduleConfig{},
		Entry{Name: "a b", Spec: "x", Queue: "{q}"},
		Entry{Name: "b", Spec: "@daily", Task: task, TaskFunc: func(context.Context, time.Time) (*Task, error) { return nil, nil }},
		Entry{Name: "c", Spec: "@daily", Task: NewTask("t", nil, asynq.Queue("q"), asynq.TaskID("x"), asynq.Unique(time.Hour), asynq.Group("g"),
			asynq.ProcessIn(time.Hour), asynq.ProcessAt(time.Time{}))},
		Entry{Name: "d", Spec: "@daily", Task: NewTask("sms:send", []byte(`{}`))},
		Entry{Name: "e", Spec: "@daily", Task: NewTask(" ", nil), Overlap: 3, Missed: -1, LateMax: 1, MissedWithin: 1000 * time.Hour, MissedMax: 1001},
		Entry{Name: "f", Spec: "@daily", Task: task, LateMax: time.Hour, MissedWithin: time.Minute},
		Entry{Name: "f", Spec: "@daily", Task: NewTask("t", nil, asynq.Timeout(1), asynq.Deadline(time.Unix(1, 0)))},
	)
	if !errors.Is(err, ErrInvalidEntry) || !errors.Is(err, ErrInvalidCron) || !errors.Is(err, ErrInvalidOption) || !errors.Is(err, ErrNoKey) {
		t.Errorf("NewSchedule = %v", err)
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
	want(t, fmt.Sprint(panicOf(func() { _, _ = NewSchedule(nil, ScheduleConfig{}) })), "queue: nil client")
}

// Entries change while the schedule runs; a set with a fault changes nothing.
func TestScheduleSet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		task := NewTask("t", nil)
		start := time.Now().Truncate(time.Hour)
		time.Sleep(10 * time.Second)
		s := runSchedule(t, rdb, ScheduleConfig{}, Entry{Name: "a", Spec: "*/10 * * * *", Task: task, Missed: MissedRunAll})
		time.Sleep(25 * time.Minute) // 10, 20
		if err := s.Set(Entry{Name: "a", Spec: "x"}, Entry{Name: "b"}); !errors.Is(err, ErrInvalidEntry) {
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

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestScheduleFile(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	path := filepath.Join(t.TempDir(), "s.yaml")
	writeFile(t, path, goodSchedule)
	funcs := map[string]TaskFunc{"campaign": func(context.Context, time.Time) (*Task, error) { return NewTask("made", nil), nil }}
	s, err := NewSchedule(newClient(t, rdb), ScheduleConfig{File: path, TaskFuncs: funcs}, Entry{Name: "code", Spec: "@daily", Task: NewTask("t", nil)})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range s.Next() {
		names = append(names, e.Entry)
	}
	if diff := cmp.Diff([]string{"block", "campaign", "code", "nightly", "quick"}, names); diff != "" {
		t.Errorf("- want + got:\n%s", diff)
	}
	block, campaign, nightly := s.all[0], s.all[1], s.all[3]
	want(t, string(block.Task.payload), "two\nlines\n")
	want(t, campaign.Task == nil && campaign.TaskFunc != nil && campaign.Overlap == OverlapSkip && campaign.Missed == MissedRunAll, true)
	want(t, nightly.cron.String(), "CRON_TZ=Europe/Berlin 30 2 * * *")
	want(t, fmt.Sprint(nightly.Task.typ, " ", string(nightly.Task.payload), " ", nightly.Task.opts), `report:nightly {"all":true} [MaxRetry(3) Timeout(10m0s) Retention(24h0m0s)]`)
	want(t, fmt.Sprint(nightly.Queue, nightly.Overlap, nightly.Missed, nightly.LateMax, nightly.MissedWithin, nightly.MissedMax), "low2 1 5m0s 48h0m0s 9")
}

func TestScheduleFileFaults(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	client := newClient(t, rdb, smsPolicy())
	path := filepath.Join(t.TempDir(), "s.yaml")
	for _, tt := range []struct {
		text string
		want []string
	}{
		{"", []string{"0:0: empty, want entries"}},
		{"entries: {}\n", []string{"1:1: no entries"}},
		{"x: 1\n", []string{"0:0: no entries", `1:1: unknown field "x", want entries`}},
		{"entries:\n  a: {spec: @daily, task: t}\n", []string{"2:13: not valid YAML"}},
		{"entries:\n  a: {spec: '@daily', task: t}\n  a: {spec: '@daily', task: t}\n", []string{`3:3: "a" is there already, on line 2`}},
		{`entries:
  a: {spec: 61 * * * *, task: t}
  b b: {spec: '@daily', task: sms:send, payload: '{}'}
  c: {zone: Mars/Phobos, queue: 7, tusk: t}
  d: {spec: '@daily', task: func nobody, payload: x}
  e:
    spec: TZ=UTC 0 9 * * *
    zone: UTC
    task: t
    timeout: 1500ms
    max_retry: -1
    overlap: sometimes
    missed: run
    late_max: 2h
    missed_within: 2
    missed_max: 5000
  f: {spec: '0 9 * * *', task: t, late_max: 2h}
  code: {spec: '@daily', task: t}
`, []string{
			`2:13: entry "a": cron spec "61 * * * *": want`,
			`3:3: entry "b b": want 1 to 64`,
			`3:31: entry "b b": task type "sms:send", rule`,
			`4:3: entry "c": no task`, `4:3: entry "c": no spec`,
			`4:13: "Mars/Phobos" is no time zone`, `4:33: a number`, `4:36: unknown field "tusk"`,
			`5:29: no function "nobody"`,
			`10:14: option Timeout(1.5s)`, `11:16: want a whole number`, `12:14: "sometimes", want allow, queue one, skip`,
			`13:13: "run", want run all, run once, skip`, `15:20: a number`, `16:17: want a whole number, 1 to 1000`,
			`17:45: entry "f": it is 2h0m0s, want 1s to 1h0m0s`,
			`18:3: entry "code": there is one of that name in code`,
		}},
	} {
		writeFile(t, path, tt.text)
		_, err := NewSchedule(client, ScheduleConfig{File: path}, Entry{Name: "code", Spec: "@daily", Task: NewTask("t", nil)})
		if !errors.Is(err, ErrInvalidEntry) || errors.Is(err, ErrInvalidPolicy) {
			t.Errorf("NewSchedule = %v, want ErrInvalidEntry", err)
			continue
		}
		var got []string
		for line := range strings.SplitSeq(err.Error(), "\n") {
			fe := &FileError{}
			if strings.HasPrefix(line, `queue: schedule file "`) {
				for _, e := range unjoined(err) {
					if f, ok := errors.AsType[*FileError](e); ok && f.Error() == line {
						fe = f
					}
				}
			}
			got = append(got, fmt.Sprintf("%d:%d: %s", fe.Line, fe.Column, fe.Reason))
		}
		for i := range max(len(got), len(tt.want)) {
			if i >= len(got) || i >= len(tt.want) || !strings.HasPrefix(got[i], tt.want[i]) {
				t.Errorf("faults of\n%s\n= %s,\nwant %s", tt.text, strings.Join(got, "\n  "), strings.Join(tt.want, "\n  "))
				break
			}
		}
	}
}

// unjoined are the errors that were joined, at any depth.
func unjoined(err error) []error {
	if _, ok := err.(*FileError); ok { //nolint:errorlint // one of the tree's nodes
		return []error{err}
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var out []error
	for _, e := range joined.Unwrap() {
		out = append(out, unjoined(e)...)
	}
	return out
}

// The file is read again when it changes; one with faults changes nothing.
func TestScheduleFileIsReloaded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.yaml")
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		writeFile(t, path, "entries:\n  a: {spec: '@every 10s', task: t}\n")
		core, logs := observer.New(zapcore.InfoLevel)
		s := runSchedule(t, rdb, ScheduleConfig{File: path, Logger: zap.New(core)})
		defer s.stop()
		names := func() string {
			var names []string
			for _, e := range s.Next() {
				names = append(names, e.Entry)
			}
			return strings.Join(names, " ")
		}
		time.Sleep(15 * time.Second)
		writeFile(t, path, "entries:\n  a: {spec: '@every 10s', task: t}\n  b: {spec: '@every 20s', task: t}\n")
		time.Sleep(4 * time.Second)
		want(t, names(), "a b")
		writeFile(t, path, "entries:\n  a: {spec: '@every 10s', tusk: t}\n")
		time.Sleep(60 * time.Second)
		want(t, names(), "a b")
		if err := s.Reload(); !errors.Is(err, ErrInvalidEntry) {
			t.Errorf("Reload = %v", err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Second)
		want(t, names(), "a b")
		writeFile(t, path, "entries:\n  c: {spec: '@every 10s', task: t}\n")
		if err := s.Reload(); err != nil {
			t.Fatal(err)
		}
		want(t, names(), "c")
		want(t, logs.FilterMessage("the schedule's file was read").Len(), 1)
		want(t, logs.FilterMessage("the schedule's file is wrong: its entries stay as they were").Len(), 2)
	})
}

// Two versions with different specs at once: an instant of both ticks once, and
// each goes on with its own.
func TestScheduleRollingDeploy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, m := redistest.Mini(t)
		start := time.Now()
		time.Sleep(30 * time.Second)
		entry := func(spec string) Entry {
			return Entry{Name: "a", Spec: spec, Task: NewTask("t", nil), Missed: MissedRunAll}
		}
		other := redis.NewClient(redistest.MiniOptions(m))
		defer other.Close()
		before := runSchedule(t, rdb, ScheduleConfig{}, entry("*/10 * * * *")) // 10 20 30 40
		time.Sleep(24 * time.Minute)
		after := runSchedule(t, other, ScheduleConfig{}, entry("*/15 * * * *")) // 30 45 60
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
		made := make(map[string]int)
		s := runSchedule(t, rdb, ScheduleConfig{}, Entry{
			Name: "a", Spec: "* * * * *", Overlap: OverlapQueueOne,
			TaskFunc: func(_ context.Context, tick time.Time) (*Task, error) {
				made[tick.Format("15:04")]++
				return NewTask("t", nil), nil
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
	})
}

func TestTaskTick(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"", "a", "@2026-03-29T01:00:00Z", "a b@2026-03-29T01:00:00Z", "a@2026-03-29T01:00:00+01:00", "a@2026-03-29T01:00:00.5Z"} {
		if entry, tick, ok := TaskTick(id); ok {
			t.Errorf("TaskTick(%q) = %q, %v", id, entry, tick)
		}
	}
}

// The record outlives the next tick, and what may be made up after it.
func TestScheduleRecordsLife(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	s, err := NewSchedule(newClient(t, rdb), ScheduleConfig{}, Entry{Name: "leap", Spec: "0 0 29 2 *", Task: NewTask("t", nil)})
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

// Whatever is read from a file is an entry or a fault, and no fault is outside of it.
func FuzzScheduleFile(f *testing.F) {
	for _, seed := range []string{goodSchedule, "entries:\n  a: {spec: x, task: t}\n", "entries: {a: [", "{}", "- a", "entries: &a\nb: *a", "a: |\n  x\n"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		file := scheduleFile{yamlFile: yamlFile{name: "s.yaml", kind: ofEntries}}
		if body := file.read(strings.NewReader(text)); body != nil {
			file.document(body)
		}
		all, err := file.join(nil, &Client{})
		if (len(all) > 0) == (err != nil) {
			t.Fatalf("%q gives %d entries and %v", text, len(all), err)
		}
		lines := strings.Count(text, "\n") + 2 + strings.Count(text, "\r")
		for _, e := range unjoined(err) {
			if fe, ok := errors.AsType[*FileError](e); err != nil && (!ok || fe.Line < 0 || fe.Line > lines || fe.Reason == "") {
				t.Fatalf("%q: fault %#v", text, e)
			}
		}
	})
}
