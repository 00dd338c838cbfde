package worker_test

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

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// campaign is messages to phones, at most one per window and phone.
type campaign struct {
	per    time.Duration
	phones [][]string // ids by phone, in the order of enqueueing

	mu       sync.Mutex
	runs     runs
	deferred map[string]int
	granted  map[string]int
}

// newCampaign has so many phones with 1 to most messages each.
func newCampaign(per time.Duration, phones, most int) *campaign {
	c := &campaign{per: per, deferred: map[string]int{}, granted: map[string]int{}}
	for p := range phones {
		var ids []string
		for m := range p%most + 1 {
			ids = append(ids, fmt.Sprintf("p%02d-%d", p, m))
		}
		c.phones = append(c.phones, ids)
	}
	return c
}

func (c *campaign) size() int { return len(slices.Concat(c.phones...)) }

func (c *campaign) observer() event.Observer {
	count := func(by map[string]int, id string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		by[id]++
	}
	return event.Observer{
		Deferred: func(_ context.Context, e event.Deferred) { count(c.deferred, e.Task.ID) },
		Granted:  func(_ context.Context, e event.Granted) { count(c.granted, e.Task.ID) },
	}
}

// enqueue puts the messages of all phones in mixed, those of a phone in order.
// The next of a phone follows when the one before stands in its line, or ran:
// with several workers the line's order is that of arrival.
func (c *campaign) enqueue(t *testing.T, rdb redis.UniversalClient, settle func()) {
	t.Helper()
	for round := 0; ; round++ {
		order := rand.Perm(len(c.phones))
		some := false
		for _, p := range order {
			if round >= len(c.phones[p]) {
				continue
			}
			some = true
			enqueue(t, rdb, queue.NewTask("sms", []byte(to(fmt.Sprintf("+%d", p))), asynq.TaskID(c.phones[p][round]), asynq.MaxRetry(0)))
		}
		if !some {
			return
		}
		settle()
	}
}

func (c *campaign) pool(t *testing.T, rdb redis.UniversalClient) *worker.Pool {
	t.Helper()
	cfg := policies(phone("sms", c.per))
	cfg.Asynq.Concurrency, cfg.Servers, cfg.Observer = 5, 1, c.observer()
	return started(t, rdb, c.runs.handler(), cfg)
}

// check compares what ran with what was to be. A gap may be longer than the
// window by late at most.
func (c *campaign) check(t *testing.T, late time.Duration, pools ...*worker.Pool) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	var admissions int64
	for _, p := range pools {
		admissions += p.Stats().Admissions
	}
	if most := int64(2 * c.size()); admissions > most {
		t.Errorf("%d admissions for %d messages, want at most 2 each", admissions, c.size())
	}
	smallest, largest := time.Duration(1<<62), time.Duration(0)
	for _, ids := range c.phones {
		for i, id := range ids {
			if c.granted[id] != 1 || c.deferred[id] > 1 || c.runs.count(id) != 1 {
				t.Errorf("%s: %d grants, %d deferrals, %d runs, want 1, at most 1, 1", id, c.granted[id], c.deferred[id], c.runs.count(id))
			}
			n := c.runs.first(id)
			if n.at.Before(n.grant.Start()) {
				t.Errorf("%s started %v early", id, n.grant.Start().Sub(n.at))
			}
			if i == 0 {
				continue
			}
			gap := n.grant.At.Sub(c.runs.first(ids[i-1]).grant.At)
			smallest, largest = min(smallest, gap), max(largest, gap)
			if gap < c.per || gap >= c.per+late {
				t.Errorf("%s: %v after the message before, want %v to %v", id, gap, c.per, c.per+late)
			}
		}
	}
	t.Logf("%d messages, %d admissions, gaps %v to %v", c.size(), admissions, smallest, largest)
	for _, p := range pools {
		t.Logf("%+v", p.Stats())
	}
}

// The main job, whole: 1 per 60 s, 50 phones with 1 to 5 messages, two pools.
func TestVirtualOnePerMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clients, m := mini(t, 2)
		rdb := clients[0]
		c := newCampaign(time.Minute, sized(20, 50), 5)
		start := time.Now()
		pools := []*worker.Pool{c.pool(t, rdb), c.pool(t, clients[1])}
		c.enqueue(t, rdb, func() { time.Sleep(time.Second) }) // of the bubble
		for len(c.runs.all()) < c.size() && time.Since(start) < 10*time.Minute {
			time.Sleep(time.Second)
		}
		c.check(t, 100*ms, pools...)
		if took := time.Since(start); took > 4*time.Minute+5*time.Second {
			t.Errorf("it took %v, want 4m", took)
		}
		for _, p := range pools {
			p.Shutdown()
		}
		time.Sleep(33 * 24 * time.Hour) // past every TTL: the history by hour lives longest
		for _, key := range m.Keys() {
			if strings.HasPrefix(key, "hw:") && key != "hw:rules" {
				t.Errorf("left behind: %s", key)
			}
		}
	})
}

// The same on a real server and in real time, with smaller numbers.
func TestOnePerTwoSecondsOnARealServer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := newCampaign(2*time.Second, 10, 4)
	pools := []*worker.Pool{c.pool(t, r.rdb), c.pool(t, r.srv.Client(t))}
	c.enqueue(t, r.rdb, func() {
		r.eventually("all at rest", func() bool { q := r.queueInfo(); return q.Pending+q.Active == 0 })
	})
	c.runs.ran(t, c.size())
	r.eventually("an empty queue", func() bool { return r.queueInfo().Size == 0 })
	late := 500 * ms // and what the machine is late, as the pools measure it: the test in virtual time has the tight bound
	for _, p := range pools {
		late += p.Stats().LatenessMax
	}
	c.check(t, late, pools...)
	r.wantQueue(c.size(), 0, 0)
}

// Grants, bookings and instants follow Redis' clock, whatever the local one says.
func TestVirtualClockOfTheProcessIsAnHourOff(t *testing.T) {
	t.Parallel()
	for _, off := range []time.Duration{time.Hour, -time.Hour} {
		t.Run(off.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rdb, m := redistest.Mini(t)
				start := time.Now().Add(off).Truncate(time.Microsecond)
				m.SetTime(start)
				l, err := throttle.New(rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
				if err != nil {
					t.Fatal(err)
				}
				for i := range 5 {
					d, err := l.Policy().Redeem(t.Context(), throttle.Request{Key: "+1", Cost: 1, Job: fmt.Sprint(i)})
					want := start.Add(time.Duration(i) * time.Minute)
					if err != nil || d.Granted != (i == 0) || !d.At.Equal(want) || d.Wait() != time.Duration(i)*time.Minute {
						t.Fatalf("job %d: %v, wait %v, %v; want it at %v", i, d, d.Wait(), err, want)
					}
				}
				for i := 1; i < 5; i++ {
					for _, early := range []time.Duration{time.Second, 0} {
						m.SetTime(start.Add(time.Duration(i)*time.Minute - early))
						d, err := l.Policy().Redeem(t.Context(), throttle.Request{Key: "+1", Cost: 1, Job: fmt.Sprint(i)})
						if err != nil || d.Granted != (early == 0) {
							t.Errorf("job %d, %v before its instant: %v, %v", i, early, d, err)
						}
					}
				}
			})
		})
	}
}

func TestVirtualPoolRefusesToStartWithAWrongClock(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		ahead  time.Duration
		starts bool
		warns  int
	}{
		{-time.Hour, false, 0}, {-6 * time.Second, false, 0}, {-2 * time.Second, true, 1}, {0, true, 0},
		{2 * time.Second, true, 1}, {6 * time.Second, false, 0}, {time.Hour, false, 0},
	} {
		t.Run(tc.ahead.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rdb, m := redistest.Mini(t)
				m.SetTime(time.Now().Add(-tc.ahead))
				core, logs := observer.New(zapcore.WarnLevel)
				p, err := worker.New(rdb, new(runs).handler(), worker.Config{Logger: zap.New(core)})
				if err != nil {
					t.Fatal(err)
				}
				err = p.Start(t.Context())
				p.Shutdown()
				switch {
				case tc.starts && err != nil:
					t.Errorf("Start with a clock %v ahead: %v", tc.ahead, err)
				case !tc.starts && !errors.Is(err, worker.ErrClockSkew):
					t.Errorf("Start with a clock %v ahead: %v, want %v", tc.ahead, err, worker.ErrClockSkew)
				case !tc.starts && !strings.Contains(err.Error(), tc.ahead.String()):
					t.Errorf("the error does not say how far: %v", err)
				case !tc.starts && (!strings.Contains(err.Error(), "redis "+rdb.Options().Addr) || !strings.Contains(err.Error(), "NTP")):
					t.Errorf("the error does not say which server, or what to do: %v", err)
				}
				if n := logs.FilterMessageSnippet("clock differs").Len(); n != tc.warns {
					t.Errorf("%d warnings, want %d", n, tc.warns)
				}
			})
		})
	}
}

// Nothing is granted, and nothing early, when Redis' clock goes backwards.
func TestVirtualClockOfRedisGoesBackwards(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clients, m := mini(t, 1)
		rdb := clients[0]
		c := newCampaign(10*time.Second, 3, 3)
		p := c.pool(t, rdb)
		c.enqueue(t, rdb, func() { time.Sleep(time.Second) })
		const behind = 3 * time.Second
		base := time.Now()
		m.SetTime(base.Add(-behind)) // a failover to a clock that is behind
		for _, key := range m.Keys() {
			if life := m.TTL(key); life > 0 { // miniredis counts what is left of a life, where a server keeps the instant at which it ends
				m.SetTTL(key, life+behind)
			}
		}
		for range 600 {
			time.Sleep(100 * ms)
			m.SetTime(base.Add(time.Since(base) - behind))
		}
		c.check(t, 10*time.Second, p)
	})
}
