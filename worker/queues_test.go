package worker_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/worker"
)

// adapter is an adapter of the rig's, with the log of the rig.
func (r *rig) adapter(cfg worker.Config) *worker.Adapter {
	r.Helper()
	cfg.Logger = r.log
	a, err := worker.NewAdapter(r.rdb, cfg)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(a.Close)
	return a
}

// serve starts an asynq server until the test ends.
func (r *rig) serve(rdb redis.UniversalClient, cfg asynq.Config, h asynq.Handler) {
	r.Helper()
	srv := asynq.NewServerFromRedisClient(rdb, cfg)
	if err := srv.Start(h); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(srv.Shutdown)
}

func TestAdapterServesTheQueuesOfItsServer(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	a := r.adapter(policies(phone("sms", 300*ms)))
	cfg := a.Server(asynq.Config{Concurrency: 2, Queues: map[string]int{"critical": 6, "default": 1}})
	if cfg.Queues["critical"] != 6 || len(cfg.Queues) != 2 {
		t.Errorf("the server's queues are %v", cfg.Queues)
	}
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.serve(a.Client(), cfg, a.Handler(seen.handler()))
	for i := range 3 {
		r.enqueuePlain("sms", fmt.Sprint(i), to("+1"), asynq.Queue([]string{"critical", "default", "critical"}[i]))
	}
	seen.ran(t, 3)
	r.wantGaps(seen, 300*ms)
}

func TestAdapterRefusesQueuesThatContradict(t *testing.T) {
	t.Parallel()
	two, one := map[string]int{"critical": 6, "default": 1}, map[string]int{"default": 1}
	for name, tc := range map[string]struct {
		config, first map[string]int
		start         bool
		server        map[string]int
		want          string
	}{
		"Config":         {config: one, server: two, want: "was given the queues map[critical:6 default:1], and the adapter serves map[default:1]"},
		"another server": {first: two, server: one, want: "All servers of an adapter have the same queues"},
		"after Start":    {start: true, server: two, want: "before Adapter.Start"},
		"a bad one":      {server: map[string]int{"critical": 0, "": 1}, want: `queue "critical" has priority 0`},
		"same":           {config: two, first: two, start: true, server: two},
		"none":           {config: two, start: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			var cfg worker.Config
			cfg.Asynq.Queues = tc.config
			a := r.adapter(cfg)
			if tc.first != nil {
				a.Server(asynq.Config{Queues: tc.first})
			}
			if tc.start {
				if err := a.Start(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			var got error
			func() {
				defer func() { got, _ = recover().(error) }()
				a.Server(asynq.Config{Queues: tc.server})
			}()
			if tc.want == "" && got != nil || tc.want != "" && (!errors.Is(got, worker.ErrInvalidConfig) || !strings.Contains(got.Error(), tc.want)) {
				t.Errorf("Server panics with %v, want %q", got, tc.want)
			}
		})
	}
}

// What Config.Asynq says was dropped in silence when a server said nothing of it.
func TestAdapterTakesTheRestOfConfigAsynq(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var asked, judged atomic.Int64
	cfg := policies(phone("sms", time.Minute))
	cfg.Asynq = asynq.Config{
		Concurrency: 3, StrictPriority: true, ShutdownTimeout: time.Minute,
		IsFailure:       func(error) bool { judged.Add(1); return false },
		RetryDelayFunc:  func(int, error, *asynq.Task) time.Duration { asked.Add(1); return time.Hour },
		HealthCheckFunc: func(error) {},
	}
	a := r.adapter(cfg)
	first, second := a.Server(asynq.Config{}), a.Server(asynq.Config{Concurrency: 5, IsFailure: func(error) bool { return true }})
	if first.Concurrency != 3 || !first.StrictPriority || first.ShutdownTimeout != time.Minute || first.HealthCheckFunc == nil {
		t.Errorf("a server that says nothing has %+v, want what Config.Asynq says", first)
	}
	if first.IsFailure(errBusy) || first.RetryDelayFunc(1, errBusy, nil) != time.Hour || judged.Load() != 1 || asked.Load() != 1 {
		t.Error("the functions of Config.Asynq are not called")
	}
	if second.Concurrency != 5 || !second.StrictPriority || !second.IsFailure(errBusy) || second.HealthCheckFunc != nil {
		t.Errorf("a server that says something has %+v, want that", second)
	}
}
