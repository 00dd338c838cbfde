package schedule

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
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
	"github.com/headwayq/headway/throttle"
)

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
			timed := redistest.NewTimed(rdb, now)
			s, err := New(newClient(t, timed), Config{}, Entry{
				Name: "minutely", Spec: "* * * * *", Task: queue.NewTask("t", nil), Missed: MissedRunAll, Overlap: OverlapAllow,
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
				timed.SetTime(now)
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
			{Name: "all", Spec: "* * * * *", Task: queue.NewTask("t", nil), Missed: MissedRunAll, MissedMax: 5},
			{Name: "once", Spec: "* * * * *", Task: queue.NewTask("t", nil), Missed: MissedRunOnce, Queue: "once"},
			{Name: "skip", Spec: "* * * * *", Task: queue.NewTask("t", nil), Queue: "skip", LateMax: 20 * time.Second},
		}
		time.Sleep(30 * time.Second)
		from := time.Now()
		s := runSchedule(t, rdb, Config{Logger: zap.New(core)}, entries...)
		time.Sleep(2*time.Minute + 500*time.Millisecond) // at no instant at which an entry asks: some would still be answered
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
		s := runSchedule(t, rdb, Config{}, Entry{Name: "a", Spec: "* * * * *", Task: queue.NewTask("t", nil)})
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
		s := runSchedule(t, rdb, Config{}, Entry{Name: "a", Spec: "@every 1s", Task: queue.NewTask("t", nil)})
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
	for _, name := range []string{"a", "b", "c", "d"} {
		entries = append(entries, Entry{Name: name, Spec: "@every 1s", Queue: name, Task: queue.NewTask("t", nil), Overlap: OverlapQueueOne})
	}
	for range 2 {
		defer runSchedule(t, rdb, Config{TickFunc: func(tick Tick) { heard <- tick }}, entries...).stop()
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
		s, err := New(client, Config{
			Logger:   zap.New(core),
			TickFunc: func(tick Tick) { got = append(got, tick.At.Format("15:04 ")+string(tick.Outcome)) },
		}, Entry{Name: "sms", Spec: "*/5 * * * *", TaskFunc: func(_ context.Context, tick time.Time) (*queue.Task, error) {
			calls++
			switch tick.Minute() {
			case 5:
				return nil, errors.New(secret) // always
			case 10:
				return queue.NewTask("sms:send", []byte(`{"phone":"`+secret+`"}`)), nil // no $.to
			case 15:
				return queue.NewTask("mail", nil, asynq.Unique(time.Hour)), nil
			case 20:
				return nil, nil
			case 25:
				if calls%2 == 0 {
					return nil, errors.New(secret)
				}
			}
			return queue.NewTask("sms:send", []byte(`{"to":"`+secret+`"}`)), nil
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

// Whatever LateMax is, and although Redis was away just before: a tick whose task can't be made is given up, and
// neither forgotten nor passed over without a word.
func TestScheduleGivesUpInTime(t *testing.T) {
	t.Parallel()
	for _, late := range []time.Duration{time.Second, 3 * time.Second, 15 * time.Second, time.Minute} {
		t.Run(late.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rdb, m := redistest.Mini(t)
				core, logs := observer.New(zapcore.InfoLevel)
				var got []Outcome
				s, err := New(newClient(t, rdb, smsPolicy()), Config{Logger: zap.New(core), TickFunc: func(tick Tick) { got = append(got, tick.Outcome) }},
					Entry{Name: "sms", Spec: "*/5 * * * *", LateMax: late, TaskFunc: func(context.Context, time.Time) (*queue.Task, error) {
						return nil, errors.New("the database is away, too")
					}})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 7*time.Minute)
				defer cancel()
				if late == time.Minute { // the ticker has failed often when Redis is back
					go func() {
						time.Sleep(5*time.Minute - 10*time.Second)
						m.SetError("LOADING an outage")
						time.Sleep(40 * time.Second)
						m.SetError("")
					}()
				}
				if err := s.Run(ctx); err != nil {
					t.Fatal(err)
				}
				if len(got) != 1 || got[0] != OutcomeGivenUp {
					t.Errorf("the ticks ended as %v, want one that is given up", got)
				}
				if n := logs.FilterMessage("a tick has no task yet").Len(); n != 1 {
					t.Errorf("%d lines say that there is no task yet, want 1", n)
				}
			})
		})
	}
}

// In shadow mode a task without a key is no fault of an entry, as the client enqueues it.
func TestScheduleInShadowMode(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	for shadow, want := range map[bool]bool{false: false, true: true} {
		c, err := queue.NewClient(rdb, queue.ClientConfig{Policies: []queue.Policy{smsPolicy()}, Throttle: throttle.Config{Shadow: shadow}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = New(c, Config{}, Entry{Name: "sms", Spec: "@daily", Task: queue.NewTask("sms:send", []byte(`{"phone":"1"}`))})
		if (err == nil) != want {
			t.Errorf("New with shadow mode %v = %v", shadow, err)
		}
	}
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

// A TaskFunc that panics, or does not return, costs its own ticks: the process lives,
// other entries tick, and a change of the entries does not wait for it.
func TestTaskFuncsThatPanicOrHang(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		hang := make(chan struct{})
		var hangs atomic.Int32
		var mu sync.Mutex
		got := make(map[string]int)
		count := func(what string) int {
			mu.Lock()
			defer mu.Unlock()
			return got[what]
		}
		every := func(name string, f TaskFunc) Entry {
			return Entry{Name: name, Spec: "*/5 * * * *", TaskFunc: f}
		}
		well := every("well", func(context.Context, time.Time) (*queue.Task, error) { return queue.NewTask("mail", nil), nil })
		s, err := New(newClient(t, rdb), Config{
			Logger: zap.NewNop(),
			TickFunc: func(tick Tick) {
				mu.Lock()
				defer mu.Unlock()
				got[tick.Entry+" "+string(tick.Outcome)]++
			},
		}, well, every("panics", func(context.Context, time.Time) (*queue.Task, error) {
			panic("13612345678")
		}), every("hangs", func(context.Context, time.Time) (*queue.Task, error) {
			hangs.Add(1)
			<-hang
			return nil, errors.New("too late")
		}))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		time.Sleep(11 * time.Minute)
		want(t, count("well enqueued"), 2)
		want(t, count("panics given up"), 2)
		want(t, count("hangs given up"), 2)
		want(t, hangs.Load(), 1)
		if err := s.Set(well); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		want(t, count("well enqueued"), 3)
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		close(hang)
	})
}

// A tick whose task can't be written, or whose policy panics, is given up. The next ones are not held up.
func TestTickThatCanNeverBeWritten(t *testing.T) {
	t.Parallel()
	for name, task := range map[string]*queue.Task{
		"headers":   queue.NewTaskWithHeaders("t", nil, map[string]string{"a": "\xff"}),
		"a policy":  queue.NewTask("keyed", nil),
		"an option": queue.NewTask("t", nil, nil),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rdb, _ := redistest.Mini(t)
				var told []string
				var mu sync.Mutex
				client, err := queue.NewClient(rdb, queue.ClientConfig{Policies: []queue.Policy{{Type: "keyed", Rules: []queue.Rule{{
					Name: "r", Limit: throttle.Sliding(1, time.Minute), Key: func(*asynq.Task) (string, error) { panic("personal data") },
				}}}}})
				if err != nil {
					t.Fatal(err)
				}
				s := runBy(t, client, 0, Config{TickFunc: func(tick Tick) {
					mu.Lock()
					defer mu.Unlock()
					told = append(told, fmt.Sprint(tick.At.Format("15:04 "), tick.Outcome))
				}}, Entry{Name: "a", Spec: "* * * * *", Missed: MissedRunAll, TaskFunc: func(_ context.Context, tick time.Time) (*queue.Task, error) {
					if tick.Minute() == 1 {
						return task, nil
					}
					return queue.NewTask("t", nil), nil
				}})
				defer s.stop()
				time.Sleep(2*time.Minute + 30*time.Second)
				mu.Lock()
				defer mu.Unlock()
				want(t, fmt.Sprint(told), "[00:01 given up 00:02 enqueued]")
			})
		})
	}
}
