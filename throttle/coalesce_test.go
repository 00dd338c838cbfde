package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/limitscripts"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

var statCalls = regexp.MustCompile(`cmdstat_fcall:calls=(\d+)`)

// scriptCalls is how many scripts a server has run since it was asked to count.
func scriptCalls(tb testing.TB, rdb *redis.Client) int {
	tb.Helper()
	m := statCalls.FindStringSubmatch(rdb.Info(tb.Context(), "commandstats").Val())
	if m == nil {
		return 0
	}
	n, _ := strconv.Atoi(m[1])
	return n
}

// crowded calls f from so many goroutines at once.
func crowded(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// heldBack lets a client's calls wait until it is told to go on, and then answers them
// in their order: so what comes meanwhile stands together.
type heldBack struct {
	rdb   *redis.Client
	gate  chan struct{} // closed: calls go through
	calls atomic.Int64
}

// holdBack makes one for the server of a client. The server has the library: each call
// of a script is sent once.
func holdBack(t *testing.T, rdb *redis.Client) *heldBack {
	t.Helper()
	h := &heldBack{rdb: another(t, rdb), gate: make(chan struct{})}
	h.rdb.AddHook(h)
	return h
}

// another is a client of its own for the server of a client, which has the library.
func another(t *testing.T, rdb *redis.Client) *redis.Client {
	t.Helper()
	if _, err := newLimiter(t, rdb, "another", throttle.Sliding(1, time.Minute), throttle.Config{}).TryAcquire(t.Context(), "warm", 1); err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(rdb.Options())
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func (h *heldBack) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *heldBack) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if redistest.IsScript(cmd) {
			h.calls.Add(1)
			<-h.gate
		}
		return next(ctx, cmd)
	}
}

func (h *heldBack) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// Acquires that come while others are under way are one script call, of at most 64;
// each is decided as if it had come alone.
func TestConcurrentAcquiresAreCoalesced(t *testing.T) {
	redistest.NeedFunctions(t) // it looks at FCALL
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	held := holdBack(t, rdb)
	const n, phones = 300, 100
	l := newLimiter(t, held.rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
	throttle.Patient(held.rdb)
	wide := newLimiter(t, held.rdb, "tenant", throttle.Sliding(7, time.Hour), throttle.Config{})
	throttle.Informed(l, wide)
	var granted [phones]atomic.Int64
	var wideGranted atomic.Int64
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			d, err := l.TryAcquire(t.Context(), fmt.Sprint("+49170", i%phones), 1)
			if err != nil {
				t.Error(err)
			} else if d.Granted {
				granted[i%phones].Add(1)
			}
		})
		wg.Go(func() {
			d, err := wide.TryAcquire(t.Context(), "acme", 1)
			if err != nil {
				t.Error(err)
			} else if d.Granted {
				wideGranted.Add(1)
			}
		})
	}
	waitFor(t, "two calls under way and all others behind them", func() bool { return held.calls.Load() == 2 && throttle.Gathered(held.rdb) == 2*n-2 })
	close(held.gate)
	wg.Wait()
	for i := range granted {
		if got := granted[i].Load(); got != 1 {
			t.Errorf("phone %d: %d granted, want 1", i, got)
		}
	}
	if got := wideGranted.Load(); got != 7 {
		t.Errorf("%d granted under 7/1h, want 7", got)
	}
	want := int64(2 + (2*n-2+limitscripts.CallsMax-1)/limitscripts.CallsMax)
	if got := held.calls.Load(); got != want {
		t.Errorf("%d script calls for %d acquires, want %d", got, 2*n, want)
	}
}

// A lone call is one script call, and waits for nobody.
func TestLoneAcquireIsSentAtOnce(t *testing.T) {
	redistest.NeedFunctions(t) // it looks at FCALL
	t.Parallel()
	rdb := redistest.Start(t, redistest.Own()).Client(t)
	l := newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
	if _, err := l.TryAcquire(t.Context(), "warm", 1); err != nil {
		t.Fatal(err)
	}
	before := scriptCalls(t, rdb)
	for i := range 10 {
		if _, err := l.TryAcquire(t.Context(), fmt.Sprint(i), 1); err != nil {
			t.Fatal(err)
		}
	}
	if got := scriptCalls(t, rdb) - before; got != 10 {
		t.Errorf("%d script calls for 10 acquires one after another, want 10", got)
	}
}

// Each call of a coalesced script fails alone: a key of another program is the fault of
// one caller.
func TestCoalescedCallsFailAlone(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	held := holdBack(t, rdb)
	l := newLimiter(t, held.rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
	throttle.Patient(held.rdb)
	throttle.Informed(l)
	bad := map[int]bool{3: true, 20: true, 41: true}
	for i := range bad {
		if err := rdb.LPush(t.Context(), l.Ledger(fmt.Sprint(i)), "not ours").Err(); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	const n = 50
	for i := range n {
		wg.Go(func() {
			d, err := l.TryAcquire(t.Context(), fmt.Sprint(i), 1)
			switch {
			case bad[i] && (!errors.Is(err, throttle.ErrUnavailable) || !throttle.ForWorkers.Answered(err)):
				t.Errorf("TryAcquire of a list = %v, %v, want what Redis answered", d, err)
			case !bad[i] && (err != nil || !d.Granted):
				t.Errorf("TryAcquire(%d) = %v, %v, want a grant", i, d, err)
			}
		})
	}
	waitFor(t, "all others behind two calls", func() bool { return throttle.Gathered(held.rdb) == n-2 })
	close(held.gate)
	wg.Wait()
}

// A full Redis refuses each of them, and nothing is half done.
func TestCoalescedCallsOnAFullRedis(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t, redistest.Own()).Client(t)
	held := holdBack(t, rdb)
	l := newLimiter(t, held.rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
	throttle.Patient(held.rdb)
	throttle.Informed(l)
	if err := rdb.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	const n = 40
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if d, err := l.TryAcquire(t.Context(), fmt.Sprint(i), 1); !errors.Is(err, throttle.ErrUnavailable) || !throttle.ForWorkers.Answered(err) {
				t.Errorf("TryAcquire = %v, %v, want that Redis is full", d, err)
			}
		})
	}
	waitFor(t, "all others behind two calls", func() bool { return throttle.Gathered(held.rdb) == n-2 })
	close(held.gate)
	wg.Wait()
	for i := range n { // what is left are tokens that were taken back
		if rdb.Exists(t.Context(), l.Ledger(fmt.Sprint(i))).Val() != 0 {
			t.Errorf("%q was written", l.Ledger(fmt.Sprint(i)))
		}
	}
}

// A caller whose context ends does not wait for the others, and pays nothing:
// neither one whose call was sent, nor one whose call was not.
func TestCoalescedCallerLeaves(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	held := holdBack(t, rdb)
	l := newLimiter(t, held.rdb, "sms", throttle.Sliding(100, time.Minute), throttle.Config{})
	throttle.Patient(held.rdb)
	throttle.Informed(l)
	calm := newLimiter(t, rdb, "sms", throttle.Sliding(100, time.Minute), throttle.Config{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if _, err := l.TryAcquire(t.Context(), key, 1); err != nil {
				t.Error(err)
			}
		})
	}
	waitFor(t, "two calls under way", func() bool { return held.calls.Load() == 2 })
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 10)
	for range cap(left) {
		go func() {
			_, err := l.Policy().Redeem(ctx, throttle.Request{Key: key, Cost: 1, Job: "left", Token: throttle.NewToken()})
			left <- err
		}()
	}
	waitFor(t, "all others behind them", func() bool { return throttle.Gathered(held.rdb) == cap(left) })
	cancel()
	for range cap(left) {
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("Redeem = %v, want %v", err, context.Canceled)
		}
	}
	if n := throttle.Gathered(held.rdb); n != 0 {
		t.Errorf("%d calls still wait to be sent, want none", n)
	}
	close(held.gate)
	wg.Wait()
	if state, err := calm.Peek(t.Context(), key, 0); err != nil || state.Available != 98 {
		t.Errorf("Peek = %+v, %v, want 98 available", state, err)
	}
}

// The answer to a coalesced script is lost: each of its calls is charged once.
func TestLostReplyOfCoalescedCalls(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	direct := server.Client(t)
	for _, retries := range []int{-1, 3} {
		t.Run(fmt.Sprint("retries ", retries), func(t *testing.T) {
			t.Parallel()
			rdb, proxy := redistest.Behind(t, server, func(o *redis.Options) { o.MaxRetries = retries })
			rule := fmt.Sprint("lossy", retries)
			const n, each = 16, 60
			limit := throttle.Sliding(2*n*each, time.Hour)
			l := newLimiter(t, rdb, rule, limit, throttle.Config{})
			outside := newLimiter(t, direct, rule, limit, throttle.Config{})
			var granted atomic.Int64
			crowded(n, func(i int) {
				for k := range each {
					if i == 0 && k%20 == 10 {
						proxy.CutNext(func(request []byte) bool { return len(request) > 1000 }) // only one of several is so long
					}
					if d, err := l.TryAcquire(t.Context(), key, 1); err == nil && d.Granted {
						granted.Add(1)
					}
				}
			})
			if proxy.Cuts() == 0 {
				t.Error("no answer was lost")
			}
			state, err := outside.Peek(t.Context(), key, 0)
			if spent := int64(2*n*each - state.Available); err != nil || spent != granted.Load() {
				t.Errorf("%d permits are spent for %d grants, %v", spent, granted.Load(), err)
			}
			if granted.Load() != n*each {
				t.Errorf("%d of %d were granted: whose answer is lost is asked for again", granted.Load(), n*each)
			}
		})
	}
}

// Who came first is first on the wider keys, too, whatever the narrow one is called.
func TestCoalescedCallsKeepTheOrderOnWiderKeys(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	held := holdBack(t, rdb)
	p := newPolicy(t,
		newLimiter(t, held.rdb, "phone", throttle.Sliding(5, time.Minute), throttle.Config{}),
		newLimiter(t, held.rdb, "provider", throttle.Sliding(3, time.Minute), throttle.Config{}))
	throttle.Patient(held.rdb)
	throttle.Informed(p.Rules()...)
	var wg sync.WaitGroup
	var first, second throttle.Decision
	ask := func(phone string, d *throttle.Decision) {
		wg.Go(func() {
			var err error
			if *d, err = p.Redeem(t.Context(), jobRequest(2, phone, phone)); err != nil {
				t.Error(err)
			}
		})
	}
	var other [2]throttle.Decision
	ask("x", &other[0])
	ask("y", &other[1])
	waitFor(t, "two under way", func() bool { return held.calls.Load() == 2 })
	ask("z", &first)
	waitFor(t, "the first", func() bool { return throttle.Gathered(held.rdb) == 1 })
	ask("a", &second)
	waitFor(t, "the second", func() bool { return throttle.Gathered(held.rdb) == 2 })
	close(held.gate)
	wg.Wait()
	granted := 0
	for _, d := range []throttle.Decision{other[0], other[1], first, second} {
		if d.Granted {
			granted++
		}
	}
	// one of the two under way may come behind them
	if granted != 3 || !first.Granted {
		t.Errorf("of the provider's 3 permits %d were granted; who came first granted %v, who came second %v", granted, first.Granted, second.Granted)
	}
}

// When Redis is silent each caller hears of it within the client's own time-outs,
// however many call: not after all those before it.
func TestCoalescedCallersHearOfASilentRedisInTime(t *testing.T) {
	t.Parallel()
	rdb, proxy := redistest.Behind(t, redistest.Start(t), func(o *redis.Options) {
		o.MaxRetries, o.ReadTimeout, o.PoolTimeout, o.PoolSize = -1, 200*time.Millisecond, 200*time.Millisecond, 20
	})
	l := newLimiter(t, rdb, "sms", throttle.Sliding(1000, time.Minute), throttle.Config{})
	if _, err := l.TryAcquire(t.Context(), key, 1); err != nil {
		t.Fatal(err)
	}
	proxy.Delay(time.Minute)
	slowest := func(ask func(i int) error) time.Duration {
		var most atomic.Int64
		crowded(2000, func(i int) {
			began := time.Now()
			if ask(i) == nil {
				t.Error("a silent Redis answered")
			}
			for took := time.Since(began); ; {
				old := most.Load()
				if int64(took) <= old || most.CompareAndSwap(old, int64(took)) {
					return
				}
			}
		})
		return time.Duration(most.Load())
	}
	rule := limitscripts.RuleCall{LimitKeys: limitscripts.NewLimitKeys("hw", "sms", key), Numbers: limitscripts.Numbers{Kind: limitscripts.Sliding, Permits: 1000, Window: time.Minute}, Cost: 1}
	direct := slowest(func(i int) error {
		_, err := limitscripts.Acquire(t.Context(), rdb, limitscripts.AcquireArgs{Rules: []limitscripts.RuleCall{rule}, Token: uint64(i + 1), MaxWait: -1})
		return err
	})
	merged := slowest(func(int) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := l.TryAcquire(ctx, key, 1)
		return err
	})
	t.Logf("slowest alone %v, merged %v", direct, merged)
	if merged > 2*direct+3*time.Second {
		t.Errorf("the slowest of 2,000 callers hears of it after %v, without merging after %v", merged, direct)
	}
}

// oneByOne lets a client's calls through one for each word that it is given, and all
// once there are no more words.
type oneByOne struct {
	rdb   *redis.Client
	words chan struct{}
	calls atomic.Int64
}

func (o *oneByOne) DialHook(next redis.DialHook) redis.DialHook { return next }

func (o *oneByOne) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if redistest.IsScript(cmd) {
			o.calls.Add(1)
			<-o.words
		}
		return next(ctx, cmd)
	}
}

func (o *oneByOne) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A call whose caller left while it was under way is answered still, and to nobody:
// what it stands in is not used for another call.
func TestCallOfOneWhoLeftIsNobodyElses(t *testing.T) {
	redistest.NeedFunctions(t) // it looks at FCALL
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	slow := &oneByOne{rdb: another(t, rdb), words: make(chan struct{})}
	slow.rdb.AddHook(slow)
	full := newLimiter(t, slow.rdb, "full", throttle.Sliding(1, time.Hour), throttle.Config{})
	throttle.Patient(slow.rdb)
	throttle.Informed(full)
	free := newLimiter(t, rdb, "free", throttle.Sliding(1, time.Hour), throttle.Config{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if _, err := full.TryAcquire(t.Context(), key, 1); err != nil {
				t.Error(err)
			}
		})
	}
	waitFor(t, "two calls under way", func() bool { return slow.calls.Load() == 2 })
	ctx, cancel := context.WithCancel(t.Context())
	const n = 20
	for range n {
		wg.Go(func() {
			d, err := full.Policy().Redeem(ctx, throttle.Request{Key: key, Cost: 1, Job: "left"})
			if !errors.Is(err, context.Canceled) || d.Granted || !d.At.IsZero() {
				t.Errorf("Redeem = %v, %v, want %v", d, err, context.Canceled)
			}
		})
	}
	waitFor(t, "all others behind them", func() bool { return throttle.Gathered(slow.rdb) == n })
	slow.words <- struct{}{}
	waitFor(t, "all others under way", func() bool { return slow.calls.Load() == 3 && throttle.Gathered(slow.rdb) == 0 })
	cancel()
	ask := func(i int) {
		switch d, err := free.TryAcquire(t.Context(), fmt.Sprint(i), 1); {
		case err != nil || !d.Granted:
			t.Errorf("TryAcquire(%d) = %v, %v, want a grant", i, d, err)
		case d.Key != fmt.Sprint(i) || d.Rule != "free":
			t.Errorf("TryAcquire(%d) is answered for another key or by rule %q", i, d.Rule)
		}
	}
	crowded(10*n, ask)
	close(slow.words) // the answers to those who left come now
	crowded(10*n, func(i int) { ask(10*n + i) })
	wg.Wait()
}

// Calls that follow each other in the same memory have nothing of each other: neither
// the rules of a longer policy, nor a job, a gate or an answer.
func TestCallsOfSeveralKindsByTurns(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	phone := newLimiter(t, rdb, "phone", throttle.Sliding(1, time.Hour), throttle.Config{})
	wide := newLimiter(t, rdb, "provider", throttle.GCRA(1_000_000, time.Hour, 1_000_000), throttle.Config{})
	both := newPolicy(t, phone, wide)
	crowded(16, func(g int) {
		for i := range 40 {
			id := fmt.Sprint(g, "-", i)
			r := throttle.Request{Key: id, Cost: 1, More: []throttle.KeyCost{{Key: "all", Cost: 1 + i%3}}}
			if d, err := both.TryAcquire(t.Context(), r); err != nil || !d.Granted || len(d.Left) != 2 || d.Left[0] != 0 || d.Left[1] == 0 {
				t.Errorf("TryAcquire of two rules = %v, left %v, %v, want a grant and what is left", d, d.Left, err)
			}
			if d, err := phone.TryAcquire(t.Context(), id, 1); err != nil || d.Granted || d.Rule != "phone" || d.Left != nil {
				t.Errorf("TryAcquire of the phone = %v, left %v, %v, want a refusal", d, d.Left, err)
			}
			if d, err := wide.TryAcquire(t.Context(), id, 1+i%3); err != nil || !d.Granted {
				t.Errorf("TryAcquire of the provider = %v, %v, want a grant", d, err)
			}
			if d, err := phone.Policy().Redeem(t.Context(), throttle.Request{Key: id, Cost: 1, Job: id}); err != nil || d.Granted || d.Job != id {
				t.Errorf("Redeem = %v, %v, want a booking", d, err)
			}
		}
	})
}
