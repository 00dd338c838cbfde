package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// release ends the leases of a grant, and checks who is told to come now, in order.
// Others may be told when they come if no lease is given back.
func (s *scene) release(p *throttle.Policy, d throttle.Decision, next ...string) {
	s.Helper()
	turns, err := p.Release(s.Context(), d)
	if err != nil {
		s.Fatalf("Release: %v", err)
	}
	var jobs []string
	for _, turn := range turns {
		if turn.Offered {
			jobs = append(jobs, turn.Job)
		}
		if turn.Offered != turn.At.Equal(s.now) || turn.Offered != (turn.Wait == 0) {
			s.Errorf("Release tells %+v, want it to come now or later", turn)
		}
	}
	if !slices.Equal(jobs, next) {
		s.Errorf("at %v Release tells %q to come, want %q", s.now.Sub(start), jobs, next)
	}
}

// renew checks what each of the grants is answered.
func (s *scene) renew(p *throttle.Policy, grants []throttle.Decision, want ...error) {
	s.Helper()
	got := p.Renew(s.Context(), grants)
	if !slices.EqualFunc(got, want, errors.Is) {
		s.Errorf("at %v Renew = %v, want %v", s.now.Sub(start), got, want)
	}
}

// Many callers of three processes at one moment: so many get a lease as there
// are, and as many again when these are released by another process.
func TestLeasesAreNotOverbooked(t *testing.T) {
	t.Parallel()
	srv := redistest.StartEither(t)
	const slots = 5
	var processes []*throttle.Policy
	for range 3 {
		processes = append(processes, newLimiter(t, srv.Client(t), "slots", throttle.Concurrent(slots, time.Minute), throttle.Config{}).Policy())
	}
	fences := make(map[int64]bool)
	for round := range 5 {
		var mu sync.Mutex
		var wg sync.WaitGroup
		var granted []throttle.Decision
		for i := range 60 {
			wg.Go(func() {
				d, err := processes[i%3].TryAcquire(t.Context(), throttle.Request{Key: key, Cost: 1})
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				if d.Granted {
					granted = append(granted, d)
					fences[d.Fence] = true
				}
			})
		}
		wg.Wait()
		if len(granted) != slots || len(fences) != (round+1)*slots {
			t.Fatalf("round %d: %d of %d slots granted, %d fences so far", round, len(granted), slots, len(fences))
		}
		for i, d := range granted {
			if _, err := processes[(i+round)%3].Release(t.Context(), d); err != nil {
				t.Error(err)
			}
		}
	}
}

// Who blocks is served in order of arrival when a lease is released, by whatever
// process, and never more than n run at once.
func TestLeasesWhileOthersBlock(t *testing.T) {
	t.Parallel()
	bubble(t, throttle.Concurrent(2, 30*time.Second), func(t *testing.T, limiter func() *throttle.Limiter, _ *redis.Client) {
		processes := []*throttle.Policy{limiter().Policy(), limiter().Policy(), limiter().Policy()}
		var wg sync.WaitGroup
		var running atomic.Int32
		var mu sync.Mutex
		var order []int
		for i := range 12 {
			wg.Go(func() {
				p := processes[i%3]
				d, err := p.Acquire(t.Context(), throttle.Request{Key: key, Cost: 1})
				if n := running.Add(1); err != nil || n > 2 {
					t.Errorf("Acquire %d = %v, %d are running", i, err, n)
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				time.Sleep(5 * time.Second) // it works
				running.Add(-1)
				if _, err := p.Release(t.Context(), d); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait() // it is in the line
		}
		began := time.Now()
		wg.Wait()
		for at, i := range order {
			if i < at-1 || i > at+1 { // two begin at one moment
				t.Errorf("order = %v, want that of arrival", order)
			}
		}
		if took := time.Since(began); took > 12/2*6*time.Second {
			t.Errorf("all took %v, want 5 s each and a second to hear of a release", took)
		}
	})
}

// The numbers of the doc comment of [throttle.Concurrent].
func TestReleaseTellsTheNext(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("slots", throttle.Concurrent(2, 30*time.Second))
	p := l.Policy()
	a, b := s.job(l, "a", 1), s.job(l, "b", 1)
	s.want(a, true, 0)
	s.want(b, true, 0)
	if got := throttle.ForWorkers.LeaseFor(p, a); got != 30*time.Second {
		t.Errorf("a lease of %v, want 30s", got)
	}
	s.at(10 * time.Second)
	s.renew(p, []throttle.Decision{a, b}, nil, nil)
	s.at(15 * time.Second)
	s.want(s.job(l, "c", 1), false, 40*time.Second)
	s.want(s.job(l, "d", 1), false, 40*time.Second)
	s.want(s.job(l, "e", 1), false, 70*time.Second)
	s.want(s.try(l, 1), false, 70*time.Second)
	s.at(21 * time.Second)
	s.release(p, a, "c")
	s.want(s.try(l, 1), false, 40*time.Second+30*time.Second) // nobody passes c
	s.want(s.job(l, "d", 1), false, 40*time.Second)
	c := s.job(l, "c", 1)
	s.want(c, true, 21*time.Second)
	s.release(p, a)
	s.release(p, b, "d")
	s.release(p, c, "d", "e")
	s.want(s.job(l, "e", 1), true, 21*time.Second)
	s.want(s.job(l, "d", 1), true, 21*time.Second)
	s.nobodyWaits()
}

// A lease that is offered is kept for a second; then the next one has it.
func TestReleaseToOneWhoDoesNotCome(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("slots", throttle.Concurrent(1, 30*time.Second))
	a := s.job(l, "a", 1)
	s.want(s.job(l, "dead", 1), false, 30*time.Second)
	s.want(s.job(l, "c", 1), false, time.Minute)
	s.at(time.Second)
	s.release(l.Policy(), a, "dead")
	s.at(2 * time.Second)
	if s.job(l, "c", 1).Granted {
		t.Error("c has the lease that is kept for another")
	}
	s.at(2*time.Second + ms)
	s.want(s.job(l, "c", 1), true, 2*time.Second+ms)
}

// Nobody has to release: a lease that was not renewed has ended, whoever looks.
func TestLeaseEnds(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("slots", throttle.Concurrent(2, 30*time.Second))
	p := l.Policy()
	a, b := s.try(l, 1), s.try(l, 1)
	s.want(s.job(l, "c", 1), false, 30*time.Second)
	s.at(20 * time.Second)
	s.renew(p, []throttle.Decision{b}, nil)
	s.at(30*time.Second - 60*ms) // more than may be waited for inline
	s.want(s.job(l, "c", 1), false, 30*time.Second)
	s.at(30 * time.Second)
	s.want(s.job(l, "c", 1), true, 30*time.Second)
	s.renew(p, []throttle.Decision{a, b}, throttle.ErrLeaseLost, nil)
	if state, err := l.Peek(t.Context(), key, 0); err != nil || state.Available != 0 || state.Next.Sub(start) != time.Minute {
		t.Errorf("Peek = %+v, %v, want none until a minute", state, err)
	}
	s.release(p, a) // of one that has ended: the place of c is not touched
	s.want(s.try(l, 1), false, time.Minute)
	s.at(time.Minute)
	s.renew(p, []throttle.Decision{b}, throttle.ErrLeaseLost)
	if free, err := l.Available(t.Context(), key); err != nil || free != 2 {
		t.Errorf("Available = %d, %v, want 2", free, err)
	}
	d := s.try(l, 1)
	s.release(p, d)
	s.renew(p, []throttle.Decision{d}, throttle.ErrLeaseLost)
	s.renew(p, nil)
}

// A grant may lie ahead, where a lease is about to end: its own begins then, and the
// holder of the other, who wakes up at last, can't renew what went to somebody else.
func TestLeaseAheadOfItsInstant(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("slots", throttle.Concurrent(1, time.Second))
	a := s.job(l, "a", 1)
	s.at(960 * ms)
	s.want(s.job(l, "b", 1), true, time.Second)
	s.renew(l.Policy(), []throttle.Decision{a}, throttle.ErrLeaseLost)
	s.want(s.job(l, "c", 1), false, 2*time.Second)
	s.at(time.Second)
	s.want(s.job(l, "c", 1), false, 2*time.Second)
	s.at(2 * time.Second)
	s.want(s.job(l, "c", 1), true, 2*time.Second)
}

// The fence grows from grant to grant of a key, also when nothing is known any
// more, and the same attempt gets the same one.
func TestFenceGrows(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("slots", throttle.Concurrent(3, time.Second))
	last := int64(0)
	for i := range 4 {
		s.at(time.Duration(i) * time.Minute)
		if i == 3 {
			s.raw.Del(t.Context(), redistest.Keys(t, s.raw, "hw:*")...) // as if they had expired
		}
		for range 3 {
			r := throttle.Request{Key: key, Cost: 1, Job: "a", Token: throttle.NewToken()}
			d, err := l.Policy().Redeem(t.Context(), r)
			if err != nil || !d.Granted || d.Fence <= last {
				t.Errorf("Redeem = %v with fence %d, %v, want one above %d", d, d.Fence, err, last)
			}
			if again, err := l.Policy().Redeem(t.Context(), r); err != nil || !again.Granted || again.Fence != d.Fence {
				t.Errorf("Redeem again = %v with fence %d, %v, want %d", again, again.Fence, err, d.Fence)
			}
			last = d.Fence
		}
		s.want(s.try(l, 1), false, time.Duration(i)*time.Minute+time.Second)
	}
}

// Of rules on rates and on what runs at once, a job that waits for a lease spends no
// rate, and Release leaves the rates spent.
func TestPolicyWithLeases(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := newPolicy(t, s.limiter("phone", throttle.Sliding(1, time.Minute)), s.limiter("provider", throttle.Sliding(3, time.Hour)),
		s.limiter("slots", throttle.Concurrent(1, 30*time.Second)))
	ask := func(phone, job string) throttle.Decision {
		r := jobRequest(2, phone, job)
		r.More = append(r.More, throttle.KeyCost{Key: "slots of the provider", Cost: 1})
		return s.redeem(p, r)
	}
	a := ask("A", "a")
	s.want(a, true, 0)
	if got := throttle.ForWorkers.LeaseFor(p, a); a.Fence == 0 || got != 30*time.Second {
		t.Errorf("fence %d, a lease of %v, want one of 30s", a.Fence, got)
	}
	s.by(ask("B", "b"), "slots", 30*time.Second)
	s.by(ask("A", "a2"), "phone", time.Minute)
	s.available(p, a.Request, 0, 2, 0)
	s.at(10 * time.Second)
	s.release(p, a, "b")
	s.available(p, a.Request, 0, 2, 0) // the slot is kept for b
	b := ask("B", "b")
	s.want(b, true, 10*time.Second)
	s.available(p, a.Request, 0, 1, 0)
	if _, err := p.Refund(t.Context(), b.Request); err != nil {
		t.Fatal(err)
	}
	s.available(p, b.Request, 1, 2, 1)
	s.renew(p, []throttle.Decision{b}, throttle.ErrLeaseLost)
	s.release(p, b)
	s.available(p, b.Request, 1, 2, 1)
}

// A grant that can't start goes back with its lease, and comes first for the next.
func TestReturnOfALease(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("slots", throttle.Concurrent(1, 30*time.Second))
	a := s.job(l, "a", 1)
	s.want(s.job(l, "b", 1), false, 30*time.Second)
	if _, err := throttle.ForWorkers.Return(t.Context(), l.Policy(), a.Request); err != nil {
		t.Fatal(err)
	}
	if s.job(l, "b", 1).Granted {
		t.Error("b passes a, whose grant was returned")
	}
	s.want(s.job(l, "a", 1), true, 0)
}

// Fewer or more at once hold from the next grant on; leases that run are not ended.
// A grant of before is released under the new limit.
func TestSetLimitOfLeases(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l, operator := s.limiter("slots", throttle.Concurrent(2, 30*time.Second)), s.limiter("slots", throttle.Concurrent(2, 30*time.Second))
	a, b := s.try(l, 1), s.try(l, 1)
	s.want(s.try(l, 1), false, 30*time.Second)
	if err := setLimit(t.Context(), operator, throttle.Concurrent(3, time.Minute)); err != nil {
		t.Fatal(err)
	}
	c := s.try(operator, 1)
	s.want(c, true, 0)
	s.want(s.job(operator, "d", 1), false, 30*time.Second)
	s.release(l.Policy(), a, "d")
	wantInForce(t, l, throttle.Concurrent(3, time.Minute))
	s.want(s.job(l, "d", 1), true, 0)
	if err := setLimit(t.Context(), operator, throttle.Concurrent(1, time.Minute)); err != nil {
		t.Fatal(err)
	}
	s.release(operator.Policy(), b)
	s.want(s.try(operator, 1), false, time.Minute)
	s.release(operator.Policy(), c)
	s.want(s.try(operator, 1), false, time.Minute)
	s.at(time.Minute)
	s.want(s.try(operator, 1), true, time.Minute)
	s.want(s.try(operator, 1), false, 2*time.Minute)
}

// When all has ended, no key is left behind, though nobody released.
func TestLeasesLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	l := newLimiter(t, rdb, "slots", throttle.Concurrent(2, throttle.LeaseMin), throttle.Config{})
	for i := range 2 { // not by TryAcquire, which gives a grant back whose answer is slow, and then Redis remembers the token
		r := throttle.Request{Key: key, Cost: 1, Job: fmt.Sprint(i)}
		if d, err := l.Policy().Redeem(t.Context(), r); err != nil || !d.Granted {
			t.Fatalf("Redeem = %v, %v, want a grant", d, err)
		}
	}
	if d, err := l.TryAcquire(t.Context(), key, 2); !errors.Is(err, throttle.ErrExceedsLimit) {
		t.Errorf("TryAcquire of 2 = %v, %v, want %v: a lease is one", d, err, throttle.ErrExceedsLimit)
	}
	waitFor(t, "all keys to expire", func() bool { return len(redistest.Keys(t, rdb, "hw:*")) == 0 })
}

// Nor when others waited meanwhile, of whom some gave up.
func TestLinesForLeasesLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	bubble(t, throttle.Concurrent(2, time.Second), func(t *testing.T, limiter func() *throttle.Limiter, rdb *redis.Client) {
		p := limiter().Policy()
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if i%3 == 2 {
					time.AfterFunc(500*ms, cancel)
				}
				if _, err := p.Acquire(ctx, throttle.Request{Key: key, Cost: 1}); (err != nil) != (i%3 == 2) {
					t.Errorf("Acquire %d = %v", i, err)
				}
			})
			synctest.Wait()
		}
		if _, err := p.Book(t.Context(), throttle.Request{Key: key, Cost: 1, Job: "never comes"}); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if keys := redistest.Keys(t, rdb, "hw:*"); len(keys) == 0 {
			t.Error("no keys right after a grant, want its lease")
		}
		time.Sleep(2 * time.Hour)
		if keys := redistest.Keys(t, rdb, "hw:*"); len(keys) != 0 {
			t.Errorf("%q are left when all has ended", keys)
		}
	})
}

// The answer that tells of a lease comes when the lease has ended and is somebody
// else's: the holder hears so at once, and not when it first renews.
func TestHoldOfALeaseThatEndedOnItsWay(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	const lease = time.Second
	limit := throttle.Concurrent(1, lease)
	slow := redis.NewClient(srv.ClientOptions())
	t.Cleanup(func() { _ = slow.Close() })
	var armed atomic.Bool
	other := newLimiter(t, srv.Client(t), "slots", limit, throttle.Config{}).Policy()
	late := newLimiter(t, slow, "slots", limit, throttle.Config{}).Policy()
	warm := throttle.Request{Key: "warm", Cost: 1}
	if _, err := late.TryAcquire(t.Context(), warm); err != nil {
		t.Fatal(err)
	}
	slow.AddHook(&calls{after: func() {
		if armed.CompareAndSwap(true, false) {
			if d, err := other.Acquire(context.Background(), throttle.Request{Key: key, Cost: 1}); err != nil || !d.Granted {
				t.Errorf("Acquire = %v, %v, want a grant", d, err)
			}
		}
	}})
	armed.Store(true)
	d, err := late.Redeem(t.Context(), throttle.Request{Key: key, Cost: 1, Job: "late"}) // it acts on a grant of any age
	if err != nil || !d.Granted {
		t.Fatalf("Redeem = %v, %v, want a grant", d, err)
	}
	held, release := late.Hold(t.Context(), d)
	defer func() { _, _ = release(context.Background()) }()
	select {
	case <-held.Done():
		if !errors.Is(context.Cause(held), throttle.ErrLeaseLost) {
			t.Errorf("the context ends with %v, want %v", context.Cause(held), throttle.ErrLeaseLost)
		}
	case <-time.After(lease / 5):
		t.Error("two hold the only lease, and none of them knows")
	}
}

// The answer that tells of a lease is lost, and the client asks once more when
// others have leases by then: it gets a fence, above theirs.
func TestFenceOfACopy(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := newPolicy(t, s.limiter("phone", throttle.Sliding(5, time.Minute)), s.limiter("slots", throttle.Concurrent(3, time.Minute)))
	request := func(phone string) throttle.Request {
		return throttle.Request{Key: phone, Cost: 1, More: []throttle.KeyCost{{Key: "acme", Cost: 1}}, Job: phone, Token: throttle.NewToken()}
	}
	first := request("a")
	lost := s.redeem(p, first)
	last := lost.Fence
	for i, r := range []throttle.Request{request("b"), first, first, request("c")} {
		d := s.redeem(p, r)
		if !d.Granted || d.Fence <= last {
			t.Errorf("call %d: %v with fence %d, want a grant with one above %d", i, d, d.Fence, last)
		}
		last = d.Fence
	}
	if free, err := p.Rules()[1].Available(t.Context(), "acme"); err != nil || free != 0 {
		t.Errorf("%d slots are free, %v, want none: 3 hold one each", free, err)
	}
}
