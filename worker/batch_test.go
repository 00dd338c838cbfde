package worker_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// batchRig feeds and runs batches, on a real server or an embedded one.
type batchRig struct {
	*rig
	connect  func() redis.UniversalClient // one a process
	policies []queue.Policy
	batches  *batch.Control
	seen     runs
	takes    time.Duration // each handler
	real     bool          // time is real: a machine may not keep up, and what comes late lets others pass
	moved    bool          // a limit was opened or changed while tasks waited: they may change places
	resumed  time.Time     // when the batch was resumed, if what was put away can be passed then
	rebooked time.Time     // when what was put away had its places again
}

func newBatchRig(t *testing.T, policies ...queue.Policy) *batchRig {
	t.Helper()
	r := newRig(t)
	h := batchRigOn(r, func() redis.UniversalClient { return r.srv.Client(t) }, policies)
	h.real = true
	return h
}

// virtualBatchRig is one in a bubble.
func virtualBatchRig(t *testing.T, policies ...queue.Policy) *batchRig {
	t.Helper()
	rdb, m := redistest.Mini(t)
	connect := func() redis.UniversalClient {
		c := redis.NewClient(redistest.MiniOptions(m))
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	return batchRigOn(rigOn(t, nil, rdb), connect, policies)
}

func batchRigOn(r *rig, connect func() redis.UniversalClient, policies []queue.Policy) *batchRig {
	r.Helper()
	c, err := queue.NewClient(connect(), queue.ClientConfig{Policies: policies})
	if err != nil {
		r.Fatal(err)
	}
	return &batchRig{rig: r, connect: connect, policies: policies, batches: batch.NewControl(c)}
}

// pool runs a pool with so many workers.
func (h *batchRig) pool(workers int) *worker.Pool {
	h.Helper()
	cfg := policies(h.policies...)
	cfg.Asynq.Concurrency = workers
	cfg.Asynq.DelayedTaskCheckInterval = time.Second // what waits here does so in Headway's set, not in asynq's
	p, _ := h.startOn(h.connect(), h.handler(), cfg)
	return p
}

func (h *batchRig) handler() asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		h.seen.note(ctx, task)
		if h.takes > 0 {
			time.Sleep(h.takes) // of the bubble
		}
		return nil
	})
}

// phoneAndProvider is a policy with a narrow and a wide key.
func phoneAndProvider(per time.Duration, provider throttle.Limit) queue.Policy {
	return queue.Policy{Type: "sms", Rules: []queue.Rule{
		{Name: "phone", Limit: throttle.Sliding(1, per), Key: queue.MustJSONKey("$.to")},
		{Name: "provider", Limit: provider, Constant: "acme"},
	}}
}

// messages is a source of n messages to so many phones in turn; the n-th is named n.
func messages(n, phones int) batch.Source {
	return batch.Seq(func(batch.Spec) iter.Seq[batch.Element] {
		return func(yield func(batch.Element) bool) {
			for i := range n {
				if !yield(batch.Element{Payload: []byte(to(fmt.Sprint("+", i%phones)))}) {
					return
				}
			}
		}
	})
}

// feed runs a feeder of its own connection until the test ends or stop is called.
func (h *batchRig) feed(sources map[string]batch.Source) (stop func()) {
	h.Helper()
	return h.feedOn(h.connect(), sources)
}

func (h *batchRig) feedOn(rdb redis.UniversalClient, sources map[string]batch.Source) (stop func()) {
	h.Helper()
	c, err := queue.NewClient(rdb, queue.ClientConfig{Policies: h.policies})
	if err != nil {
		h.Fatal(err)
	}
	f, err := batch.NewFeeder(c, batch.FeederConfig{Queues: []string{"default"}, Sources: sources, Logger: h.log})
	if err != nil {
		h.Fatal(err)
	}
	return h.run(f)
}

// run runs a feeder until the test ends or stop is called.
func (h *batchRig) run(f *batch.Feeder) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(h.Context()))
	var wg sync.WaitGroup
	wg.Go(func() { _ = f.Run(ctx) })
	stop = func() {
		cancel()
		wg.Wait()
	}
	h.Cleanup(stop)
	return stop
}

func (h *batchRig) begin(spec batch.Spec) {
	h.Helper()
	if started, err := h.batches.Start(h.Context(), spec); err != nil || !started {
		h.Fatalf("Start = %v, %v, want it started", started, err)
	}
}

func (h *batchRig) progress(id string) batch.Progress {
	h.Helper()
	p, err := h.batches.Progress(h.Context(), "default", id)
	if err != nil {
		h.Fatal(err)
	}
	return p
}

// ends waits for the end of the batch "winter", and checks on the way that the window
// holds.
func (h *batchRig) ends() batch.Progress {
	h.Helper()
	h.until("the batch ends", func() bool {
		p := h.progress("winter")
		if p.Open > int64(p.Window) {
			h.Errorf("%d elements are open, want %d at most", p.Open, p.Window)
		}
		return p.State == batch.Ended
	})
	return h.progress("winter")
}

// until polls until cond holds, in a bubble, where a look takes a machine longer than to
// wait.
func (h *batchRig) until(what string, cond func() bool) {
	h.Helper()
	for began := time.Now(); !cond(); time.Sleep(50 * ms) {
		if time.Since(began) > 10*time.Minute {
			h.Fatalf("not within ten minutes: %s", what)
		}
	}
}

// together is how many permits of the narrowest rule may come free at one instant: the
// tasks that get them may start in any order.
func (h *batchRig) together() int {
	if len(h.policies) == 0 {
		return 1
	}
	return h.policies[0].Rules[0].Limit.Permits()
}

// ranMessage is when a message ran, and how long after its instant it was granted.
type ranMessage struct {
	n    int
	at   time.Time
	late time.Duration
}

// passed says that others may pass a message, because it came so late. It may also have passed
// all before it: they were later still, and may have been promised anew.
func (m ranMessage) passed() bool { return m.late >= 100*ms }

// once checks that each of n messages ran once, and the messages of a phone in the order
// of its line: but what ran after a resume, before the feeder had given all messages their
// places again, may have passed some of them.
func (h *batchRig) once(want string, n, phones int) {
	h.Helper()
	times := make(map[string]int)
	last := make(map[int]ranMessage) // by phone: the one with the highest number so far
	var behind []time.Time           // when the machine did not keep up
	for _, r := range h.seen.all() {
		if h.real && r.grant.At.Sub(r.grant.Promised) >= 100*ms && !r.grant.Promised.IsZero() {
			behind = append(behind, r.at)
		}
	}
	for _, r := range h.seen.all() {
		name, element, ok := batch.ParseTaskID(r.id)
		if !ok || name != want {
			continue
		}
		times[element]++
		var i int
		if _, err := fmt.Sscan(element, &i); err != nil {
			h.Fatal(err)
		}
		m := ranMessage{i, r.at, r.grant.At.Sub(r.grant.Promised)}
		before, ok := last[i%phones]
		// One that came late and was promised anew does not show it: those beside it do.
		late := slices.ContainsFunc(behind, func(at time.Time) bool { return at.Sub(before.at).Abs() < time.Second })
		if ok && before.n-i >= h.together() && !m.passed() && !late && !h.moved {
			h.Errorf("message %d ran after %d to the same phone, granted %v and %v after their instants", i, before.n, m.late, before.late)
			if !h.resumed.IsZero() {
				h.Logf("message %d ran %v after the resume, %d at %v; all had their places again at %v", i, m.at.Sub(h.resumed), before.n, before.at.Sub(h.resumed), h.rebooked.Sub(h.resumed))
			}
		}
		if (!ok || i > before.n) && !m.passed() && (r.at.Before(h.resumed) || r.at.After(h.rebooked)) {
			last[i%phones] = m
		}
	}
	for i := range n {
		if times[fmt.Sprint(i)] != 1 {
			h.Errorf("message %d ran %d times, want once", i, times[fmt.Sprint(i)])
		}
	}
	if len(times) != n {
		h.Errorf("%d messages ran, want %d", len(times), n)
	}
}

// mortal is a Redis client of a process that dies at its n-th script call that names a
// batch: before it, or when only its answer is missing.
type mortal struct {
	redis.UniversalClient
	left   atomic.Int64
	answer bool
}

func (m *mortal) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	left := m.left.Load()
	if slices.ContainsFunc(keys, func(k string) bool { return strings.Contains(k, ":batch:") }) {
		left = m.left.Add(-1)
	}
	if left > 0 || left == 0 && m.answer {
		cmd := m.UniversalClient.EvalSha(ctx, sha, keys, args...)
		if left > 0 || cmd.Err() != nil {
			return cmd
		}
	}
	return redis.NewCmdResult(nil, errDead)
}

func (m *mortal) Pipeline() redis.Pipeliner { return m.UniversalClient.Pipeline() }

// Phones that are busy nine tenths of the time, and one provider: each message runs once,
// in order by its phone, as fast as the provider allows, and is taken by a worker once.
func TestVirtualBatchOnTwoRules(t *testing.T) {
	t.Parallel()
	const phones, rate = 45, 200
	n := sized(600, 1200)
	synctest.Test(t, func(t *testing.T) {
		h := virtualBatchRig(t, phoneAndProvider(200*ms, throttle.Sliding(rate/10, 100*ms)))
		pool := h.pool(20)
		h.feed(map[string]batch.Source{"messages": messages(n, phones)})
		h.begin(batch.Spec{ID: "winter", Type: "sms", Source: "messages", Total: int64(n), Window: 400})
		h.allDone(n, phones)
		h.share(pool, n, rate, 98)
		h.nothingLeft()
	})
}

// The feeder dies, before a call and after one whose answer it never got; another goes
// on.
func TestVirtualBatchWhoseFeederDies(t *testing.T) {
	t.Parallel()
	const n, phones, rate = 300, 45, 200
	for _, answer := range []bool{false, true} {
		for _, calls := range []int64{2, 3, 8}[:sized(2, 3)] {
			t.Run(fmt.Sprintf("after %d calls, the last is done: %v", calls, answer), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					h := virtualBatchRig(t, phoneAndProvider(200*ms, throttle.Sliding(rate/10, 100*ms)))
					pool := h.pool(20)
					sources := map[string]batch.Source{"messages": messages(n, phones)}
					dying := &mortal{UniversalClient: h.connect(), answer: answer}
					dying.left.Store(calls)
					stop := h.feedOn(dying, sources)
					h.begin(batch.Spec{ID: "winter", Type: "sms", Source: "messages", Total: n, Window: 400})
					h.until("the first feeder dies", func() bool { return dying.left.Load() <= 0 })
					stop()
					h.feed(sources)
					h.allDone(n, phones)
					h.share(pool, n, rate, 25) // nobody feeds while the lease runs out
					h.nothingLeft()
				})
			})
		}
	}
}

// Three feeders that die at any call, before it or after it, and are started again, while
// the batch is paused now and then: each message runs once and in order, and the window
// holds.
func TestVirtualBatchWhoseFeedersDieAtRandom(t *testing.T) {
	t.Parallel()
	const phones = 20
	n := sized(250, 500)
	for seed := range seeds() {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, 9)) // #nosec G404
				h := virtualBatchRig(t, phoneAndProvider(300*ms, throttle.Sliding(5, 100*ms)))
				h.pool(5)
				sources := map[string]batch.Source{"messages": messages(n, phones)}
				var dying [3]*mortal
				var stops [3]func()
				h.begin(batch.Spec{ID: "winter", Type: "sms", Source: "messages", Total: int64(n), Window: 15})
				deaths, paused := 0, false
				for began := time.Now(); h.progress("winter").State != batch.Ended; time.Sleep(time.Duration(rng.IntN(400)) * ms) {
					for i := range dying {
						if dying[i] != nil && dying[i].left.Load() > 0 {
							continue
						}
						if dying[i] != nil {
							stops[i]()
							deaths++
						}
						dying[i] = &mortal{UniversalClient: h.connect(), answer: rng.IntN(2) == 0}
						// some must live for the 50 calls or so by which a feeder gives new places to what is open
						dying[i].left.Store(2 + rng.Int64N(100))
						stops[i] = h.feedOn(dying[i], sources)
					}
					if p := h.progress("winter"); p.Open > 15 {
						t.Errorf("%d elements are open, want 15 at most", p.Open)
					}
					if paused != (rng.IntN(6) == 0) {
						paused = !paused
						set := h.batches.Resume
						if paused {
							set = h.batches.Pause
						}
						if err := set(t.Context(), "default", "winter"); err != nil && !errors.Is(err, batch.ErrState) {
							t.Fatal(err)
						}
					}
					if time.Since(began) > 10*time.Minute {
						t.Fatalf("after ten minutes it is %+v", h.progress("winter"))
					}
				}
				t.Logf("%d feeders died", deaths)
				if deaths < n/100 {
					t.Errorf("%d feeders died, want more", deaths)
				}
				h.allDone(n, phones)
				h.nothingLeft()
			})
		})
	}
}

// On a real server, in real time: two feeders, one of which dies.
func TestBatchOnARealServer(t *testing.T) {
	t.Parallel()
	const n, phones = 400, 100
	h := newBatchRig(t, phoneAndProvider(200*ms, throttle.Sliding(20, 100*ms)))
	h.pool(10)
	sources := map[string]batch.Source{"messages": messages(n, phones)}
	dying := &mortal{UniversalClient: h.connect()}
	dying.left.Store(8)
	h.feedOn(dying, sources)
	h.begin(batch.Spec{ID: "winter", Type: "sms", Source: "messages", Total: n, Window: 100})
	h.eventually("the first feeder dies", func() bool { return dying.left.Load() <= 0 })
	h.feed(sources)
	h.allDone(n, phones)
	h.nothingLeft()
}

// allDone waits for the end of a batch and checks that each message ran once.
func (h *batchRig) allDone(n, phones int) {
	h.Helper()
	const id = "winter"
	p := h.ends()
	if p.Done != int64(n) || p.Enqueued != int64(n) || p.Refused+p.Failed+p.Dropped+p.Open != 0 {
		h.Errorf("it ended as %+v", p)
	}
	h.once(id, n, phones)
}

// share checks how often workers took n messages, and how fast they were.
func (h *batchRig) share(p *worker.Pool, n, rate int, percent float64) {
	h.Helper()
	admissions := p.Stats().Admissions
	all := h.seen.all()
	took := all[len(all)-1].at.Sub(all[0].at)
	got := 100 * float64(n-rate/10) / float64(rate) / took.Seconds()
	h.Logf("%d admissions for %d messages in %v, %.1f %% of the rate", admissions, n, took, got)
	// One in twenty is admitted again, and what one window lets in: when a feeder dies the
	// line moves, and a window's worth is woken before the pool notices.
	if most := int64(n)*105/100 + int64(rate/10); admissions > most {
		h.Errorf("%d admissions for %d messages, want at most %d", admissions, n, most)
	}
	if got < percent {
		h.Errorf("%.1f %% of the rate, want %.0f %%", got, percent)
	}
}

// nothingLeft checks that what a batch needed is gone, but for its record.
func (h *batchRig) nothingLeft() {
	h.Helper()
	var left []string
	h.until("nothing of the batch is left", func() bool {
		left = nil
		for _, key := range h.rdb.Keys(h.Context(), "*").Val() {
			if strings.Contains(key, ":batch:") && h.rdb.PTTL(h.Context(), key).Val() < 0 || strings.HasSuffix(key, ":batches") || strings.Contains(key, ":t:") {
				left = append(left, key)
			}
		}
		return len(left) == 0
	})
}
