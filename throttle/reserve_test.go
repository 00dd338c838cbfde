package throttle_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

func (s *scene) reserve(l *throttle.Limiter, cost int) *throttle.Reservation {
	s.Helper()
	v, err := l.Reserve(s.Context(), key, cost)
	if err != nil {
		s.Fatalf("Reserve(%d): %v", cost, err)
	}
	return v
}

// take asks, and checks what came.
func (s *scene) take(v *throttle.Reservation, granted bool, at time.Duration) {
	s.Helper()
	d, err := v.Take(s.Context())
	if err != nil || d.Granted != granted || v.Granted() != granted || !d.At.Equal(v.At()) || v.At().Sub(start) != at {
		s.Errorf("Take = %v, %v at %v, want granted = %v at %v", d, err, v.At().Sub(start), granted, at)
	}
}

func (s *scene) waiting(l *throttle.Limiter, want int) {
	s.Helper()
	if got, err := l.Peek(s.Context(), key, 10); err != nil || got.Waiting != want {
		s.Errorf("Peek = %+v, %v, want %d waiting", got, err, want)
	}
}

// A place is not an instant: it moves up when one before it is given up, at any
// position, and no hole stays.
func TestReserveHoldsAPlace(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Minute))
	var v []*throttle.Reservation
	for i := range 4 {
		v = append(v, s.reserve(l, 1))
		if at := time.Duration(i) * time.Minute; v[i].Granted() != (i == 0) || v[i].At().Sub(start) != at || v[i].Delay() > at || v[i].Delay() < at-30*time.Second {
			t.Errorf("%d: granted %v at %v in %v, want at %v", i, v[i].Granted(), v[i].At().Sub(start), v[i].Delay(), at)
		}
	}
	s.want(s.try(l, 1), false, 4*time.Minute)
	for range 2 { // the middle one, once
		if err := v[2].Cancel(t.Context()); err != nil {
			t.Errorf("Cancel = %v, want nil", err)
		}
		s.waiting(l, 2)
	}
	s.take(v[3], false, 2*time.Minute)
	if err := v[0].Cancel(t.Context()); err != nil { // an unused grant
		t.Errorf("Cancel = %v, want nil", err)
	}
	s.take(v[1], true, 0)
	s.take(v[1], true, 0)
	s.take(v[3], false, time.Minute)
	s.at(time.Minute - 10*ms) // not ahead of its instant: the holder goes at once
	s.take(v[3], false, time.Minute)
	s.at(time.Minute)
	s.take(v[3], true, time.Minute)
	s.at(2*time.Minute - 10*ms)
	late := s.reserve(l, 1)
	if late.Granted() || late.At().Sub(start) != 2*time.Minute {
		t.Errorf("Reserve granted %v at %v, want a place ahead of its instant", late.Granted(), late.At().Sub(start))
	}
	for _, gone := range []*throttle.Reservation{v[0], v[2]} {
		if _, err := gone.Take(t.Context()); !errors.Is(err, throttle.ErrWithdrawn) || gone.Granted() {
			t.Errorf("Take after Cancel = %v, want %v", err, throttle.ErrWithdrawn)
		}
		if err := gone.Wait(t.Context()); !errors.Is(err, throttle.ErrWithdrawn) {
			t.Errorf("Wait after Cancel = %v, want %v", err, throttle.ErrWithdrawn)
		}
	}
	noKey(t, v[1])
}

func TestReserveWithAMaxWaitBooksOrNothing(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Minute))
	within := func(d time.Duration) (*throttle.Reservation, error) {
		return l.Policy().Reserve(t.Context(), throttle.Request{Key: key, Cost: 1, MaxWait: cmp.Or(d, -1)})
	}
	if v, err := within(0); err != nil || !v.Granted() {
		t.Errorf("Reserve without a wait = %v, %v, want the permit that is there", v, err)
	}
	for _, d := range []time.Duration{-time.Second, 0, time.Minute - 1*time.Microsecond} {
		v, err := within(d)
		if late, ok := errors.AsType[*throttle.TooLateError](err); v != nil || !ok || late.Wait != time.Minute {
			t.Errorf("Reserve within %v = %v, %v, want a TooLateError of a minute", d, v, err)
		}
		s.waiting(l, 0)
	}
	v, err := within(time.Minute)
	if err != nil || v.Granted() || v.At().Sub(start) != time.Minute {
		t.Fatalf("Reserve within 1m = %v, %v, want a place in a minute", v, err)
	}
	s.at(time.Second)
	s.take(v, false, time.Minute) // the bound was for the decision to reserve
	if _, err := l.Reserve(t.Context(), key, 2); !errors.Is(err, throttle.ErrExceedsLimit) {
		t.Errorf("Reserve(2) = %v, want %v", err, throttle.ErrExceedsLimit)
	}
}

// Inside a worker it is as outside: nothing is deferred.
func TestReserveInsideAWorker(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Minute))
	s.try(l, 1)
	h := &host{}
	v, err := l.Reserve(throttle.ForWorkers.WithHost(t.Context(), h), key, 1)
	if err != nil || v.Granted() || len(h.asked) != 0 {
		t.Errorf("Reserve = %v, %v, and asked the host %d times, want a place", v, err, len(h.asked))
	}
}

// Who waits on a reservation is served in its turn, at its instant, and is woken
// when its turn comes early.
func TestReservationsWait(t *testing.T) {
	t.Parallel()
	bubble(t, throttle.Sliding(1, 500*ms), func(t *testing.T, limiter func() *throttle.Limiter, _ *redis.Client) {
		l, begin, came := limiter(), time.Now(), make(chan string, 10)
		var v []*throttle.Reservation
		for range 4 {
			r, err := l.Reserve(t.Context(), key, 1)
			if err != nil {
				t.Fatal(err)
			}
			v = append(v, r)
		}
		for i, r := range v {
			go func() {
				err := r.Wait(t.Context())
				came <- fmt.Sprint(i, " ", time.Since(begin).Round(5*ms), " ", r.Granted(), " ", r.Delay(), " ", err)
			}()
		}
		synctest.Wait()
		if err := v[1].Cancel(t.Context()); err != nil {
			t.Fatal(err)
		}
		var got []string
		for range v {
			got = append(got, <-came)
		}
		want := []string{
			"0 0s true 0s <nil>",
			`1 0s false `,
			"2 500ms true 0s <nil>",
			"3 1s true 0s <nil>",
		}
		for i, w := range want {
			if len(got[i]) < len(w) || got[i][:len(w)] != w {
				t.Errorf("came %q, want %q", got[i], w)
			}
		}
	})
}

// A Wait that ends with its context leaves the place alone.
func TestReservationOutlivesAWait(t *testing.T) {
	t.Parallel()
	bubble(t, throttle.Sliding(1, time.Minute), func(t *testing.T, limiter func() *throttle.Limiter, _ *redis.Client) {
		l := limiter()
		if err := l.Acquire(t.Context(), key, 1); err != nil {
			t.Fatal(err)
		}
		v, err := l.Reserve(t.Context(), key, 1)
		if err != nil {
			t.Fatal(err)
		}
		// The last one ends while the grant is there and its instant is not.
		for _, d := range []time.Duration{10 * time.Second, 50*time.Second - 5*ms} {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			if err := v.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) || v.Granted() {
				t.Errorf("Wait = %v, granted %v, want %v", err, v.Granted(), context.DeadlineExceeded)
			}
			cancel()
			if got, err := l.Peek(t.Context(), key, 10); err != nil || got.Waiting != 1 {
				t.Errorf("Peek = %+v, %v, want the place kept", got, err)
			}
		}
		begin := time.Now()
		if err := v.Wait(t.Context()); err != nil || time.Since(begin) > 20*ms || !v.Granted() {
			t.Errorf("Wait = %v after %v, want the grant", err, time.Since(begin))
		}
		time.Sleep(10 * time.Second) // a grant that was told stays one, however old
		if err := v.Wait(t.Context()); err != nil || !v.Granted() {
			t.Errorf("Wait again = %v, want nil", err)
		}
	})
}

// A Reserve whose answer is lost leaves nothing; a Take is repeated and charged once.
func TestReservationAndLostReplies(t *testing.T) {
	t.Parallel()
	s := newLossy(t, throttle.Sliding(1, 500*ms), -1) // the next call comes before it ends
	s.cutNext()
	if v, err := s.l.Reserve(t.Context(), key, 1); !errors.Is(err, throttle.ErrUnavailable) {
		t.Errorf("Reserve = %v, %v, want %v", v, err, throttle.ErrUnavailable)
	}
	s.look(t, 1, 0)
	first, err := s.l.Reserve(t.Context(), key, 1)
	if err != nil || !first.Granted() {
		t.Fatalf("Reserve = %v, %v, want a grant", first, err)
	}
	v, err := s.l.Reserve(t.Context(), key, 1)
	if err != nil || v.Granted() {
		t.Fatalf("Reserve = %v, %v, want a place", v, err)
	}
	s.cutNext()
	if _, err := v.Take(t.Context()); !errors.Is(err, throttle.ErrUnavailable) || v.Granted() {
		t.Errorf("Take = %v, want %v", err, throttle.ErrUnavailable)
	}
	if err := v.Wait(t.Context()); err != nil {
		t.Errorf("Wait = %v, want nil", err)
	}
	if err := v.Cancel(t.Context()); err != nil {
		t.Errorf("Cancel = %v, want nil", err)
	}
}

// A grant that nobody used and that could not be given back at once is given
// back by the next call, whether the call before it arrived or not: it is never
// lost, and nobody acts on it.
func TestReservationReturnsWhenRedisIsBack(t *testing.T) {
	t.Parallel()
	next := map[string]func(*throttle.Reservation) error{
		"Cancel": func(v *throttle.Reservation) error { return v.Cancel(context.Background()) },
		"Wait":   func(v *throttle.Reservation) error { return v.Wait(context.Background()) },
		"Take":   func(v *throttle.Reservation) error { _, err := v.Take(context.Background()); return err },
	}
	for name, call := range next {
		for _, arrived := range []bool{false, true} {
			t.Run(fmt.Sprint(name, arrived), func(t *testing.T) {
				t.Parallel()
				returnFails(t, arrived, call, name == "Cancel")
			})
		}
	}
}

func returnFails(t *testing.T, arrived bool, call func(*throttle.Reservation) error, free bool) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		_, m := redistest.Mini(t)
		rdb := miniClient(t, m)
		l := newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
		if err := l.Acquire(t.Context(), key, 1); err != nil {
			t.Fatal(err)
		}
		v, err := l.Reserve(t.Context(), key, 1)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute - 10*ms)
		c := &cable{}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		granted := &calls{after: func() { cancel(); c.pulled.Store(!arrived); c.deaf.Store(arrived) }}
		rdb.AddHook(c)
		rdb.AddHook(granted)
		if err := v.Wait(ctx); !errors.Is(err, context.Canceled) || v.Granted() {
			t.Errorf("Wait = %v, granted %v, want %v", err, v.Granted(), context.Canceled)
		}
		if d, err := v.Take(t.Context()); !errors.Is(err, throttle.ErrUnavailable) || d.Granted || v.Granted() {
			t.Errorf("Take = %v, %v, want %v", d, err, throttle.ErrUnavailable)
		}
		granted.after = nil
		c.pulled.Store(false)
		c.deaf.Store(false)
		time.Sleep(10 * ms)
		if err := call(v); err != nil || v.Granted() == free {
			t.Errorf("%v, granted %v, want %v", err, v.Granted(), !free)
		}
		if n, err := l.Available(t.Context(), key); err != nil || n == 1 != free {
			t.Errorf("Available = %d, %v, want 1: %v", n, err, free)
		}
	})
}
