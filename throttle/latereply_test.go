package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// A grant whose answer was long on its way is not acted on: the next grant would follow too
// close. The call goes again, and is granted later.
func TestLateReplyIsNotActedOn(t *testing.T) {
	t.Parallel()
	const window, delay = 2 * time.Second, 1500 * time.Millisecond
	s := redistest.Start(t)
	far, proxy := redistest.Behind(t, s, nil)
	slow, near := newLimiter(t, far, "phone", throttle.Sliding(1, window), throttle.Config{}).Policy(), newLimiter(t, s.Client(t), "phone", throttle.Sliding(1, window), throttle.Config{}).Policy()
	for i := range 2 { // what is known of the clock before
		if _, err := slow.Acquire(t.Context(), throttle.Request{Key: fmt.Sprint("other", i), Cost: 1}); err != nil {
			t.Fatal(err)
		}
	}
	proxy.DelayReplies(delay)
	calm := time.AfterFunc(delay, func() { proxy.DelayReplies(0) })
	defer calm.Stop()
	d, err := slow.Acquire(t.Context(), throttle.Request{Key: "+15550100", Cost: 1})
	first := time.Now()
	if err != nil || !d.Granted {
		t.Fatalf("Acquire = %v, %v", d, err)
	}
	if age := first.Sub(d.Start()); age > window/10 {
		t.Errorf("a grant is acted on that is %v old, want at most %v", age, window/10)
	}
	if _, err := near.Acquire(t.Context(), throttle.Request{Key: "+15550100", Cost: 1}); err != nil {
		t.Fatal(err)
	}
	if gap := time.Since(first); gap < window-window/10 {
		t.Errorf("the next grant follows after %v, want %v less a tenth", gap, window)
	}
}

// A reservation that waits asks early, because nobody came for the place before it. The answer, a grant,
// is 1.5 s on its way: it is not acted on.
func TestLateReplyToAReservationIsNotActedOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const window, delay = 2 * time.Second, 1500 * time.Millisecond
		_, m := redistest.Mini(t)
		var late atomic.Bool
		rdb := miniClient(t, m)
		rdb.AddHook(&calls{after: func() {
			if late.Swap(false) {
				time.Sleep(delay)
			}
		}})
		far := newLimiter(t, rdb, "phone", throttle.Sliding(1, window), throttle.Config{})
		near := newLimiter(t, miniClient(t, m), "phone", throttle.Sliding(1, window), throttle.Config{})
		if err := near.Acquire(t.Context(), key, 1); err != nil {
			t.Fatal(err)
		}
		if _, err := near.Reserve(t.Context(), key, 1); err != nil { // for its place nobody comes
			t.Fatal(err)
		}
		r, err := far.Reserve(t.Context(), key, 1)
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(window+window/2-100*time.Millisecond, func() { late.Store(true) })
		if err := r.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		first := time.Now()
		if late.Load() {
			t.Fatal("no answer was late")
		}
		if err := near.Acquire(t.Context(), key, 1); err != nil {
			t.Fatal(err)
		}
		if gap := time.Since(first); gap < window-window/10 {
			t.Errorf("the next grant follows after %v, want %v less a tenth", gap, window)
		}
	})
}

// The answer to a Take is lost, and Redis is silent for a while. The next Take finds the old grant, which is not acted on.
func TestTakeDoesNotActOnAnOldGrant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const window, silence = time.Minute, 40 * time.Second
		_, m := redistest.Mini(t)
		rdb := miniClient(t, m)
		answers := &lostAnswers{}
		rdb.AddHook(answers)
		far := newLimiter(t, rdb, "phone", throttle.Sliding(1, window), throttle.Config{})
		near := newLimiter(t, miniClient(t, m), "phone", throttle.Sliding(1, window), throttle.Config{})
		if err := near.Acquire(t.Context(), key, 1); err != nil {
			t.Fatal(err)
		}
		r, err := far.Reserve(t.Context(), key, 1)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(r.Delay())
		answers.lost.Store(true)
		if d, err := r.Take(t.Context()); !errors.Is(err, throttle.ErrUnavailable) {
			t.Fatalf("Take without an answer = %v, %v, want %v", d, err, throttle.ErrUnavailable)
		}
		answers.lost.Store(false)
		time.Sleep(silence)
		d, err := r.Take(t.Context())
		if err != nil || !d.Granted {
			t.Fatalf("Take = %v, %v, want a grant", d, err)
		}
		first := time.Now()
		if age := first.Sub(d.Start()); age > time.Second {
			t.Errorf("a grant is acted on that is %v old, want at most 1 s", age)
		}
		if err := near.Acquire(t.Context(), key, 1); err != nil {
			t.Fatal(err)
		}
		if gap := time.Since(first); gap < window-time.Second {
			t.Errorf("the next grant follows after %v, want %v less a second", gap, window)
		}
	})
}

// lostAnswers loses the answers of a client's scripts.
type lostAnswers struct{ lost atomic.Bool }

func (*lostAnswers) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*lostAnswers) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (l *lostAnswers) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil && l.lost.Load() && redistest.IsScript(cmd) {
			err = io.EOF
			cmd.SetErr(err)
		}
		return err
	}
}

// lateTries lets the first answers to a limiter come late, but for each third one: behind a call, and one that makes its grant anew, the
// grant is given back in time.
func lateTries(t *testing.T, cfg throttle.Config, limit throttle.Limit, late int64, delay time.Duration) (far, near *throttle.Limiter) {
	t.Helper()
	_, m := redistest.Mini(t)
	rdb := miniClient(t, m)
	var scripts atomic.Int64
	far = newLimiter(t, rdb, "phone", limit, cfg)
	for i := range 2 { // what is known of the clock before
		if d, err := far.TryAcquire(t.Context(), fmt.Sprint("other", i), 1); err != nil || !d.Granted {
			t.Fatalf("TryAcquire = %v, %v, want a grant", d, err)
		}
	}
	rdb.AddHook(&calls{after: func() {
		if n := scripts.Add(1); n%3 > 0 && n <= late {
			time.Sleep(delay)
		}
	}})
	return far, newLimiter(t, miniClient(t, m), "phone", limit, throttle.Config{})
}

// A grant of TryAcquire whose answer was long on its way is not acted on either. The next answer is in time.
func TestLateReplyToATryIsNotActedOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const window, delay = 2 * time.Second, 1500 * time.Millisecond
		far, near := lateTries(t, throttle.Config{}, throttle.Sliding(1, window), 1, delay)
		d, err := far.TryAcquire(t.Context(), key, 1)
		if err != nil || !d.Granted {
			t.Fatalf("TryAcquire = %v, %v, want a grant", d, err)
		}
		if age := time.Since(d.Start()); age > window/10 {
			t.Errorf("a grant is acted on that is %v old, want at most %v", age, window/10)
		}
		first := time.Now()
		if err := near.Acquire(t.Context(), key, 1); err != nil {
			t.Fatal(err)
		}
		if gap := time.Since(first); gap < window-window/10 {
			t.Errorf("the next grant follows after %v, want %v less a tenth", gap, window)
		}
	})
}

// Where answer after answer comes too late, a caller that does not wait is told so, or the fallback decides. No permit stays charged.
func TestTryWhoseAnswersAllComeLate(t *testing.T) {
	t.Parallel()
	for mode, want := range map[throttle.FailureMode]error{throttle.FailClosed: throttle.ErrUnavailable, throttle.FailOpen: nil, throttle.FailLocal: nil} {
		synctest.Test(t, func(t *testing.T) {
			far, near := lateTries(t, throttle.Config{OnUnavailable: mode}, throttle.Sliding(1, time.Hour), 100, 1500*time.Millisecond)
			d, err := far.Policy().TryAcquire(t.Context(), throttle.Request{Key: key, Cost: 1})
			if !errors.Is(err, want) || d.Granted != (want == nil) || d.Fallback != mode {
				t.Errorf("%v: TryAcquire = %v, %v, want %v", mode, d, err, want)
			}
			if n, err := near.Available(t.Context(), key); err != nil || n != 1 {
				t.Errorf("%v: %d left, %v, want 1", mode, n, err)
			}
		})
	}
}

// Behind a network that is slow all the time TryAcquire gets grants all the same, also by its first call.
func TestTryOnASlowNetwork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, m := redistest.Mini(t)
		rdb := miniClient(t, m)
		rdb.AddHook(&calls{after: func() { time.Sleep(200 * ms) }})
		l := newLimiter(t, rdb, "phone", throttle.Sliding(10, 500*ms), throttle.Config{}) // a tenth of which is 50 ms
		for range 5 {
			if d, err := l.TryAcquire(t.Context(), key, 1); err != nil || !d.Granted {
				t.Errorf("TryAcquire = %v, %v, want a grant", d, err)
			}
		}
	})
}

// Behind a network that is slow all the time there are grants all the same.
func TestSlowNetworkGetsGrants(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	far, proxy := redistest.Behind(t, s, nil)
	l := newLimiter(t, far, "phone", throttle.Sliding(1000, 500*time.Millisecond), throttle.Config{}).Policy() // a tenth of which is 50 ms
	proxy.Delay(40 * time.Millisecond)
	for i := range 5 {
		began := time.Now()
		if _, err := l.Acquire(t.Context(), throttle.Request{Key: "k", Cost: 1}); err != nil {
			t.Fatal(err)
		}
		t.Logf("call %d took %v", i, time.Since(began))
	}
}

// Where the rules of a policy are on several servers, the grant of one ages while another
// server stands still. It is given back, and the call goes again.
func TestGrantAgesWhileAnotherServerStandsStill(t *testing.T) {
	t.Parallel()
	const window = 2 * time.Second
	rdb, nodes := redistest.StartNodes(t, 3)
	p := clusterPolicy(t, rdb, throttle.Sliding(1, window), throttle.Sliding(1000, time.Second))
	narrow, wide := p.Rules()[0], p.Rules()[1]
	on := func(ledger string) *redistest.Server { return nodes[nodeOf(t, rdb, nodes, ledger)] }
	phone := 0
	for on(narrow.Ledger(fmt.Sprint("phone", phone))) == on(wide.Ledger("acme")) {
		phone++
	}
	for i := range 2 { // what is known of the clocks before
		for n := range 10 {
			if _, err := p.Acquire(t.Context(), clusterRequest(100+10*i+n)); err != nil {
				t.Fatal(err)
			}
		}
	}
	provider := on(wide.Ledger("acme"))
	provider.Pause()
	goesOn := time.AfterFunc(1200*time.Millisecond, provider.Resume)
	defer goesOn.Stop()
	if _, err := p.Acquire(t.Context(), clusterRequest(phone)); err != nil {
		t.Fatal(err)
	}
	first := time.Now()
	if _, err := p.Acquire(t.Context(), clusterRequest(phone)); err != nil {
		t.Fatal(err)
	}
	if gap := time.Since(first); gap < window-window/10 {
		t.Errorf("the next grant follows after %v, want %v less a tenth", gap, window)
	}
}

// nodeOf is the index of the node that has a key.
func nodeOf(t *testing.T, rdb *redis.ClusterClient, nodes []*redistest.Server, key string) int {
	t.Helper()
	master, err := rdb.MasterForKey(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return slices.IndexFunc(nodes, func(s *redistest.Server) bool { return s.Addr() == master.Options().Addr })
}
