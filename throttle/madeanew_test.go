package throttle_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// The servers of a Cluster answer so slowly that the grant of the second is too old when the third has answered. It counts from now on,
// after one more call of each, and nothing is given back.
func TestGrantOfSlowServersIsMadeAnew(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3)
	const delay = 160 * ms
	p := newPolicy(t, newLimiter(t, rdb, "phone", throttle.Sliding(1, 10*time.Second), throttle.Config{}),
		newLimiter(t, rdb, "provider", throttle.Sliding(1000, 3*time.Second), throttle.Config{}), // a tenth of which is 300 ms
		newLimiter(t, rdb, "slots", throttle.Concurrent(3, time.Minute), throttle.Config{}))
	ask := func(phone string) throttle.Request {
		return throttle.Request{Key: phone, Cost: 1, Job: phone, More: []throttle.KeyCost{{Key: "acme", Cost: 1}, {Key: "line", Cost: 1}}}
	}
	for range 3 { // what is known of the clocks before
		d, err := p.Redeem(t.Context(), ask("before"))
		if err != nil || !d.Granted {
			t.Fatalf("Redeem = %v, %v, want a grant", d, err)
		}
		if _, err := p.Refund(t.Context(), d.Request); err != nil {
			t.Fatal(err)
		}
	}
	slow := &calls{after: func() { time.Sleep(delay) }}
	rdb.AddHook(slow)
	began := time.Now()
	d, err := p.Redeem(t.Context(), ask("phone"))
	switch {
	case err != nil || !d.Granted:
		t.Fatalf("Redeem = %v, %v, want a grant", d, err)
	case throttle.ForWorkers.Stale(d):
		t.Errorf("the grant is too old to be acted on")
	case slow.n.Load() != 6:
		t.Errorf("%d calls, want two of each server", slow.n.Load())
	case d.Start().Before(began.Add(3 * delay)):
		t.Errorf("the grant is %v old, want it to count from when all had answered", time.Since(d.Start()))
	}
	for i, want := range []int{0, 999, 2} { // it is charged once
		key := []string{"phone", "acme", "line"}[i]
		if n, err := p.Rules()[i].Available(t.Context(), key); err != nil || n != want {
			t.Errorf("%s: %d left, %v, want %d", key, n, err, want)
		}
	}
	if _, err := p.Refund(t.Context(), d.Request); err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{1, 1000, 3} {
		key := []string{"phone", "acme", "line"}[i]
		if n, err := p.Rules()[i].Available(t.Context(), key); err != nil || n != want {
			t.Errorf("%s: %d left after a refund, %v, want %d", key, n, err, want)
		}
	}
}

// The servers of a Cluster answer so slowly that another job has the permit of one rule by now. The other rule makes its grant anew, and all
// of it comes back.
func TestGrantThatIsMadeAnewInPartComesBack(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3)
	limit := throttle.Sliding(1, time.Second)
	near := newLimiter(t, rdb, "phone", limit, throttle.Config{})
	far := redis.NewClusterClient(rdb.Options())
	t.Cleanup(func() { _ = far.Close() })
	p := newPolicy(t, newLimiter(t, far, "phone", limit, throttle.Config{}), newLimiter(t, far, "provider", throttle.GCRA(100, time.Hour, 100), throttle.Config{}))
	ask := throttle.Request{Key: "phone", Cost: 1, Job: "a", More: []throttle.KeyCost{{Key: "acme", Cost: 1}}}
	for range 3 { // what is known of the clocks before
		d, err := p.Redeem(t.Context(), ask)
		if err != nil || !d.Granted {
			t.Fatalf("Redeem = %v, %v, want a grant", d, err)
		}
		if _, err := p.Refund(t.Context(), d.Request); err != nil {
			t.Fatal(err)
		}
	}
	other := make(chan error, 1)
	provider := newLimiter(t, rdb, "provider", throttle.GCRA(100, time.Hour, 100), throttle.Config{})
	var answers atomic.Int64
	far.AddHook(&calls{after: func() {
		switch answers.Add(1) {
		case 1: // of the phone
			other <- near.Acquire(t.Context(), "phone", 1)
		case 2: // of the provider
			if d, err := provider.TryAcquire(t.Context(), "acme", 5); err != nil || !d.Granted {
				t.Errorf("TryAcquire of others = %v, %v, want a grant", d, err)
			}
		}
	}})
	d, err := p.Redeem(t.Context(), ask)
	if err := <-other; err != nil {
		t.Fatal(err)
	}
	if err != nil || !d.Granted || !throttle.ForWorkers.Stale(d) {
		t.Fatalf("Redeem = %v, %v, want a grant that is too old", d, err)
	}
	if _, err := p.Refund(t.Context(), d.Request); err != nil {
		t.Fatal(err)
	}
	if n, err := p.Rules()[1].Available(t.Context(), "acme"); err != nil || n != 95 {
		t.Errorf("%d left of the other rule, %v, want all but 5", n, err)
	}
}

// The answer with a grant takes long to arrive. The grant is made anew, and the job that waits behind it waits that much longer. So
// the two never start closer than the window.
func TestLateGrantIsMadeAnew(t *testing.T) {
	t.Parallel()
	const window, delay = 4 * time.Second, 1500 * time.Millisecond
	s := redistest.Start(t)
	far, proxy := redistest.Behind(t, s, nil)
	limit := throttle.Sliding(1, window)
	slow, near := newLimiter(t, far, "phone", limit, throttle.Config{}).Policy(), newLimiter(t, s.Client(t), "phone", limit, throttle.Config{}).Policy()
	for _, other := range []string{"one", "another"} { // what is known of the clock before
		if _, err := slow.Acquire(t.Context(), throttle.Request{Key: other, Cost: 1}); err != nil {
			t.Fatal(err)
		}
	}
	proxy.DelayReplies(delay)
	calm := time.AfterFunc(delay/2, func() { proxy.DelayReplies(0) }) // the reply that is on its way comes as late all the same
	defer calm.Stop()
	sent := &calls{}
	far.AddHook(sent)
	waits := make(chan throttle.Decision, 1)
	go func() {
		time.Sleep(delay / 4) // the first has its grant, and does not know it
		d, err := near.Redeem(t.Context(), throttle.Request{Key: key, Cost: 1, Job: "b"})
		if err != nil {
			t.Error(err)
		}
		waits <- d
	}()
	d, err := slow.Redeem(t.Context(), throttle.Request{Key: key, Cost: 1, Job: "a"})
	if err != nil || !d.Granted || throttle.ForWorkers.Stale(d) || sent.n.Load() != 2 {
		t.Fatalf("Redeem = %v, %v, after %d calls, want a grant that is not too old after 2", d, err, sent.n.Load())
	}
	b := <-waits
	if b.Granted || !b.At.Before(d.At.Add(window)) {
		t.Errorf("b is told %v, granted %v, want an instant before %v: the grant was older then", b.At, b.Granted, d.At.Add(window))
	}
	again, err := near.Redeem(t.Context(), throttle.Request{Key: key, Cost: 1, Job: "b"})
	if err != nil || again.Granted || !again.At.Equal(d.At.Add(window)) {
		t.Errorf("b is told %v, %v, want %v", again.At, err, d.At.Add(window))
	}
}

// A caller of TryAcquire does not wait. So its grant is not made anew for an instant that is still to come, where another job
// has got the permit meanwhile.
func TestTryIsNotMadeAnewAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, m := redistest.Mini(t)
		rdb := miniClient(t, m)
		limit := throttle.Sliding(1, 100*ms)
		far, near := newLimiter(t, rdb, "phone", limit, throttle.Config{}), newLimiter(t, miniClient(t, m), "phone", limit, throttle.Config{})
		for _, l := range []*throttle.Limiter{far, near, far} { // what is known of the clock before
			if _, err := l.TryAcquire(t.Context(), "other", 1); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		var answered atomic.Bool
		rdb.AddHook(&calls{after: func() {
			if !answered.Swap(true) {
				time.Sleep(160 * ms)
			}
		}})
		go func() {
			time.Sleep(100 * ms)
			if d, err := near.TryAcquire(t.Context(), key, 1); err != nil || !d.Granted {
				t.Errorf("TryAcquire of the other = %v, %v, want a grant", d, err)
			}
		}()
		if d, err := far.TryAcquire(t.Context(), key, 1); err != nil || d.Granted {
			t.Errorf("TryAcquire = %v, %v, want a refusal: the other has the permit", d, err)
		}
	})
}

// A grant comes too late, and another job has the permit by now. So the grant is not made anew. Its job is still the next in line.
func TestGrantThatIsNotMadeAnewKeepsItsPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, m := redistest.Mini(t)
		rdb := miniClient(t, m)
		limit := throttle.Sliding(1, time.Second)
		far, near := newLimiter(t, rdb, "phone", limit, throttle.Config{}).Policy(), newLimiter(t, miniClient(t, m), "phone", limit, throttle.Config{}).Policy()
		ask := func(p *throttle.Policy, key, job string) throttle.Decision {
			d, err := p.Redeem(t.Context(), throttle.Request{Key: key, Cost: 1, Job: job})
			if err != nil {
				t.Error(err)
			}
			return d
		}
		for _, p := range []*throttle.Policy{far, near, far} { // what is known of the clock before
			ask(p, "other", "o")
			time.Sleep(time.Second)
		}
		var answered atomic.Bool
		rdb.AddHook(&calls{after: func() {
			if !answered.Swap(true) {
				time.Sleep(1300 * ms)
			}
		}})
		began := time.Now()
		go func() {
			time.Sleep(500 * ms)
			for _, job := range []string{"b", "c", "d"} {
				ask(near, key, job)
			}
			time.Sleep(500 * ms)
			if d := ask(near, key, "b"); !d.Granted {
				t.Errorf("b = %v, want a grant", d)
			}
		}()
		d := ask(far, key, "a")
		if !d.Granted || !throttle.ForWorkers.Stale(d) {
			t.Errorf("a = %v, want a grant that is too old", d)
		}
		if _, err := throttle.ForWorkers.Return(t.Context(), far, d.Request); err != nil {
			t.Error(err)
		}
		if again := ask(far, key, "a"); again.Granted || again.At.Sub(began) != 2*time.Second {
			t.Errorf("a = %v, %v after it began, want the place behind b, at 2 s", again, again.At.Sub(began))
		}
	})
}
