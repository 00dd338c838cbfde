package throttle_test

import (
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// The servers of a Cluster answer so slowly that the grant of the second is too old when the third has answered. It counts from now on,
// after one more call of each, and nothing is given back.
func TestGrantOfSlowServersIsMadeAnew(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3)
	p := newPolicy(t, newLimiter(t, rdb, "phone", throttle.Sliding(1, 4*time.Second), throttle.Config{}),
		newLimiter(t, rdb, "provider", throttle.Sliding(1000, time.Second), throttle.Config{}), // a tenth of which is 100 ms
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
	slow := &calls{after: func() { time.Sleep(70 * ms) }}
	rdb.AddHook(slow)
	began := time.Now()
	d, err := p.Redeem(t.Context(), ask("phone"))
	switch {
	case err != nil || !d.Granted:
		t.Fatalf("Redeem = %v, %v, want a grant", d, err)
	case throttle.ForWorkers.Stale(d):
		t.Errorf("the grant is too old to be acted on")
	case slow.n.Load() != 6 && slow.n.Load() != 9:
		t.Errorf("%d calls, want one of each server, and one or two more", slow.n.Load())
	case d.At.Sub(d.Now) < -70*ms || time.Until(began.Add(3*70*ms)) > 0:
		t.Errorf("the grant is of %v, at %v", d.At, d.Now)
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
	if n, err := p.Rules()[0].Available(t.Context(), "phone"); err != nil || n != 1 {
		t.Errorf("after a refund %d left, %v, want 1", n, err)
	}
}

// A grant whose answer was long on its way counts from now on, and who waits behind it comes as much later. So two of them are never
// closer than the window, and no permit goes to a job that came after.
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
	calm := time.AfterFunc(delay, func() { proxy.DelayReplies(0) })
	defer calm.Stop()
	sent := &calls{}
	far.AddHook(sent)
	waits := make(chan throttle.Decision, 1)
	go func() {
		time.Sleep(delay / 2) // the first has its grant, and does not know it
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
