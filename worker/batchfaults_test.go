package worker_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/throttle"
)

// sleepy is the Redis client of a process that is stopped now and then, before a call or
// before it has the answer, for longer than a lease, and goes on.
type sleepy struct {
	redis.UniversalClient
	mu  sync.Mutex
	rng *rand.Rand
	n   int
}

func (s *sleepy) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	s.mu.Lock()
	when, d := s.rng.IntN(60), time.Duration(s.rng.IntN(5000))*ms
	if when < 2 {
		s.n++
	}
	s.mu.Unlock()
	if when == 0 {
		time.Sleep(d)
	}
	cmd := s.UniversalClient.EvalSha(ctx, sha, keys, args...)
	if when == 1 {
		time.Sleep(d)
	}
	return cmd
}

func (s *sleepy) Pipeline() redis.Pipeliner { return s.UniversalClient.Pipeline() }

// seeds is how many courses a random test takes.
func seeds() uint64 { return uint64(sized(2, 4)) }

// Feeders that are stopped for longer than their lease, and go on when another has it:
// each message runs once, and the window holds.
func TestVirtualBatchWhoseFeedersFreeze(t *testing.T) {
	t.Parallel()
	const phones = 20
	n := sized(200, 400)
	for seed := range seeds() {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := virtualBatchRig(t, phoneAndProvider(300*ms, throttle.Sliding(5, 100*ms)))
				h.pool(5)
				frozen := 0
				var all []*sleepy
				for i := range uint64(2) {
					c := &sleepy{UniversalClient: h.connect(), rng: rand.New(rand.NewPCG(seed, i))} // #nosec G404
					all = append(all, c)
					h.feedOn(c, map[string]batch.Source{"messages": messages(n, phones)})
				}
				h.begin(batch.Spec{ID: "winter", Type: "sms", Source: "messages", Total: int64(n), Window: 15})
				h.ends()
				for _, c := range all {
					frozen += c.n
				}
				t.Logf("frozen %d times", frozen)
				if frozen < n/80 {
					t.Errorf("they were stopped %d times, want more", frozen)
				}
				h.allDone(n, phones)
				h.nothingLeft()
			})
		})
	}
}

// Neither a pause nor what follows it cuts the back-off of a task that failed short, and
// the batch ends with the last of them.
func TestVirtualBatchOfTasksThatFail(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n, backOff = 200, 30 * time.Second
		h := virtualBatchRig(t, provider())
		var mu sync.Mutex
		failed := make(map[string]time.Time)
		cfg := policies(h.policies...)
		cfg.Asynq.Concurrency = 4
		cfg.Asynq.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return backOff }
		h.startOn(h.connect(), asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			id, _ := asynq.GetTaskID(ctx)
			mu.Lock()
			defer mu.Unlock()
			var i int
			_, element, _ := batch.ParseTaskID(id)
			if _, err := fmt.Sscan(element, &i); err != nil {
				t.Error(err)
			}
			if at, again := failed[id]; i%10 == 0 && !again {
				failed[id] = time.Now()
				return errors.New("busy")
			} else if again && time.Since(at) < backOff-time.Second {
				t.Errorf("%s is tried again after %v, want %v", id, time.Since(at), backOff)
			}
			h.seen.note(ctx, task)
			return nil
		}), cfg)
		h.feed(map[string]batch.Source{"messages": messages(n, 1)})
		h.begin(batch.Spec{ID: "winter", Type: "sms", Source: "messages", Total: n})
		h.until("all others are done", func() bool { return h.progress("winter").Done == n-n/10 })
		for range 3 {
			if err := h.batches.Pause(t.Context(), "default", "winter"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second)
			if err := h.batches.Resume(t.Context(), "default", "winter"); err != nil {
				t.Fatal(err)
			}
			for range 100 {
				time.Sleep(20 * ms)
				if n := h.rdb.ZCard(t.Context(), "hw:{acme}:provider:line").Val(); n != 0 {
					t.Fatalf("%d that failed have a place, want none before they come", n)
				}
			}
		}
		if p := h.progress("winter"); p.State != batch.Running || p.Open != n/10 {
			t.Errorf("it is %+v, want it to wait for those that failed", p)
		}
		if p := h.ends(); p.Done != n || p.Failed != 0 {
			t.Errorf("it ended as %+v, want all done", p)
		}
	})
}

// Redis loses everything while a batch runs: its feeder gives it up in silence, and it
// can be started again.
func TestVirtualBatchThatIsFlushed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := virtualBatchRig(t, phoneAndProvider(300*ms, throttle.Sliding(5, 100*ms)))
		h.pool(5)
		h.feed(map[string]batch.Source{"messages": messages(300, 60)})
		spec := batch.Spec{ID: "winter", Type: "sms", Source: "messages", Window: 50}
		h.begin(spec)
		h.until("some ran", func() bool { return len(h.seen.all()) > 50 })
		h.rdb.FlushAll(t.Context())
		time.Sleep(20 * time.Second)
		if n := h.logs.Len(); n > 20 {
			t.Errorf("%d lines were logged, want few", n)
		}
		h.begin(spec)
		if p := h.ends(); p.Done != 300 {
			t.Errorf("it ended as %+v, want all done", p)
		}
	})
}

// faraway is a Redis client behind a slow network.
type faraway struct{ redis.UniversalClient }

func (f faraway) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	time.Sleep(2 * ms)
	return f.UniversalClient.EvalSha(ctx, sha, keys, args...)
}

// A large window goes on within a second behind a network that is slow, and is
// cancelled within one.
func TestVirtualBatchBehindASlowNetwork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := sized(250, 500)
		h := virtualBatchRig(t, provider())
		far := faraway{h.connect()}
		h.feedOn(far, map[string]batch.Source{"messages": messages(2*n, 1)})
		c, err := queue.NewClient(far, queue.ClientConfig{Policies: h.policies})
		if err != nil {
			t.Fatal(err)
		}
		batches := batch.NewControl(c)
		h.begin(batch.Spec{ID: "winter", Type: "sms", Source: "messages", Window: n})
		h.until("the window is full", func() bool { return h.progress("winter").Open == int64(n) })
		if err := errors.Join(batches.Pause(t.Context(), "default", "winter"), batches.SetWindow(t.Context(), "default", "winter", n+10)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		began := time.Now()
		if err := batches.Resume(t.Context(), "default", "winter"); err != nil {
			t.Fatal(err)
		}
		h.until("it goes on", func() bool { return h.progress("winter").Open > int64(n) })
		if took := time.Since(began); took > 1500*ms {
			t.Errorf("it went on after %v, want about a second", took)
		}
		began = time.Now()
		if p, err := batches.Cancel(t.Context(), "default", "winter"); err != nil || p.Open != 0 || time.Since(began) > time.Second {
			t.Errorf("Cancel = %+v, %v after %v, want all within a second", p, err, time.Since(began))
		}
		time.Sleep(5 * time.Second)
		h.gone()
	})
}
