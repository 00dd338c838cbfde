package e2e

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/worker"
)

// startPool runs a pool in this process, to the end of the test.
func startPool(tb testing.TB, rdb redis.UniversalClient, h asynq.Handler, cfg worker.Config) *worker.Pool {
	tb.Helper()
	pool, err := worker.New(rdb, h, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	if err := pool.Start(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(pool.Shutdown)
	return pool
}

// starts counts handlers and keeps the instants of their grants.
type starts struct {
	mu sync.Mutex
	n  int
	at map[string]time.Time // by task id

	promised time.Time // the latest instant that was promised to any
}

// ProcessTask implements [asynq.Handler].
func (s *starts) ProcessTask(ctx context.Context, _ *asynq.Task) error {
	id, _ := asynq.GetTaskID(ctx)
	d, _ := worker.GrantFrom(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	s.at[id] = d.At
	if d.Promised.After(s.promised) {
		s.promised = d.Promised
	}
	return nil
}

func (s *starts) lastPromise() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.promised
}

// count is how many handlers ran.
func (s *starts) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

// granted is when a task was let in; zero when it was not.
func (s *starts) granted(id string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at[id]
}

// instants are the instants of all grants, in order.
func (s *starts) instants() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.at), time.Time.Compare)
}

// isAcquire recognises a call of acquire.lua on the wire: of all scripts on a
// limit's keys only its arguments have a limit in the form of one text.
func isAcquire(request []byte) bool {
	return bytes.Contains(request, []byte(":tokens\r\n")) && bytes.Contains(request, []byte("|s|"))
}

// TestLostReplies: of every other admission Redis' answer is lost on its way.
// The script ran; the same attempt must not be charged again.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		retries int // of the Redis client; -1 leaves it to the pool
	}{
		{"the client sends it again", 0},
		{"the pool sends it again", -1},
	} {
		t.Run(tc.name+", granted at once", func(t *testing.T) {
			t.Parallel()
			s := newTestbed(t, "5/1h", workerSpec{})
			proxy, lost := s.lossy(tc.retries)
			_, h := s.pool(lost)
			s.enqueue(3, 1)
			s.eventually(20*time.Second, "three handlers ran", func() bool { return h.count() == 3 })
			if proxy.Cuts() < 3 {
				t.Errorf("%d replies were lost, want at least 3", proxy.Cuts())
			}
			state, err := s.limiter.Peek(t.Context(), phone(0), 0)
			if err != nil {
				t.Fatal(err)
			}
			if state.Available != 2 {
				t.Errorf("%d of 5 permits left after 3 messages, want 2", state.Available)
			}
		})
		t.Run(tc.name+", booked and redeemed", func(t *testing.T) {
			t.Parallel()
			const n = 3
			s := newTestbed(t, "3/4s", workerSpec{})
			proxy, lost := s.lossy(tc.retries)
			_, h := s.pool(lost)
			s.enqueue(2*n, 1)
			s.eventually(20*time.Second, "all handlers ran", func() bool { return h.count() == 2*n })
			if proxy.Cuts() < 2*n {
				t.Errorf("%d replies were lost, want at least %d", proxy.Cuts(), 2*n)
			}
			at := h.instants()
			if gap := at[n].Sub(at[0]); gap < s.limit.Window() {
				t.Errorf("message %d was granted %v after the first, want %v or more", n+1, gap, s.limit.Window())
			}
			// With a permit charged twice the last would be promised another window later. A
			// busy machine keeps no promise to the millisecond, so it is promises that count.
			if gap := h.lastPromise().Sub(at[n-1]); gap > s.limit.Window()*3/2 {
				t.Errorf("message %d was promised its permit %v after that of message %d, want %v", 2*n, gap, n, s.limit.Window())
			}
		})
	}
}

// lossy returns a client behind a proxy that loses the reply to every other
// acquire, the first included.
func (s *testbed) lossy(retries int) (*redistest.Proxy, redis.UniversalClient) {
	s.Helper()
	rdb, proxy := redistest.Behind(s, s.server, func(o *redis.Options) { o.MaxRetries = retries })
	n := 0
	proxy.CutReplies(func(request []byte) bool {
		if !isAcquire(request) {
			return false
		}
		n++
		return n%2 == 1
	})
	return proxy, rdb
}

// pool runs a pool in this process whose handlers only count.
func (s *testbed) pool(rdb redis.UniversalClient) (*worker.Pool, *starts) {
	s.Helper()
	h := &starts{at: make(map[string]time.Time)}
	return startPool(s, rdb, h, worker.Config{
		Asynq: asynq.Config{Concurrency: s.crew.spec.Concurrency}, Policies: []queue.Policy{smsPolicy(s.limit)},
	}), h
}
