package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/throttle"
)

// witness writes down what an observer is told.
type witness struct {
	*testing.T
	mu   sync.Mutex
	told []string
}

func (w *witness) observer() event.Observer {
	return event.All(func(_ context.Context, e event.Event) {
		noKey(w.T, e)
		w.mu.Lock()
		defer w.mu.Unlock()
		text := strings.TrimPrefix(fmt.Sprintf("%T", e), "event.")
		switch e := e.(type) {
		case event.Granted:
			text = fmt.Sprint(text, " ", e.Rules, " waited: ", !e.Promised.IsZero())
		case event.Refused:
			text = fmt.Sprint(text, " ", e.Rule, ": ", e.Reason)
		case event.Deferred:
			text = fmt.Sprint(text, " ", e.Rule, ": ", e.Reason, " ", e.Wait, " ", e.Task)
		case event.Adjusted:
			text = fmt.Sprint(text, " ", e.Rule, " ", e.From, " ", e.To)
		case event.LimitChanged:
			text = fmt.Sprint(text, " ", e.Rule, " ", e.Limit, " ", e.Stored, " closed: ", !e.Closed.IsZero())
		case event.KeyClosed:
			text = fmt.Sprint(text, " ", e.Rule, " closed: ", !e.Until.IsZero())
		case event.LeaseLost:
			text = fmt.Sprint(text, " ", e.Rule)
		}
		w.told = append(w.told, text)
	})
}

// want compares what was told since the last call.
func (w *witness) want(want ...string) {
	w.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if diff := cmp.Diff(want, w.told); diff != "" {
		w.Errorf("told (-want +got):\n%s", diff)
	}
	w.told = nil
}

func TestCountsAndObserver(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	w := &witness{T: t}
	l := newLimiter(t, s.rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{Observer: w.observer()})
	_ = s.try(l, 1)
	_ = s.try(l, 1)
	w.want("Granted [sms] waited: false", "Refused sms: no permits")
	r := throttle.Request{Key: key, Cost: 1, Job: luascripts.JobID("low", "a")}
	for range 2 { // one place
		_, _ = l.Policy().Redeem(t.Context(), r)
	}
	w.want("Deferred sms: booked 1m0s {low  a}")
	_, _ = l.Policy().Book(t.Context(), throttle.Request{Key: key, Cost: 1, Job: "b"})
	w.want("Deferred sms: booked 2m0s {  }")
	r.MaxWait = time.Second
	_, _ = l.Policy().Redeem(t.Context(), r)
	_, _ = l.TryAcquire(t.Context(), key, 2)
	_, _ = l.TryAcquire(t.Context(), "", 1) // the caller's own fault
	s.raw.Set(t.Context(), "hw:{newer}:sms", "\xffx", 0)
	_, _ = l.TryAcquire(t.Context(), "newer", 1)
	w.want("Refused sms: too late", "Refused sms: exceeds limit", "Refused : invalid", "Refused sms: unavailable")
	s.at(time.Minute)
	_, _ = l.Policy().Redeem(t.Context(), throttle.Request{Key: key, Cost: 1, Job: "b"})
	w.want("Granted [sms] waited: true")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, _ = l.TryAcquire(ended, key, 1) // nobody waits for the answer
	w.want()
	want := throttle.Counts{Granted: 2, Refused: 1, Booked: 2, TooLate: 1, Exceeded: 1, Failed: 1}
	if got := l.Policy().Counts(); got != want {
		t.Errorf("Counts = %+v, want %+v", got, want)
	}
}

// A change of a limit is told by each limiter that goes by it, once, whoever made it.
func TestObserverOfChanges(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	w := &witness{T: t}
	here := newLimiter(t, s.rdb, "sms", throttle.Sliding(5, time.Minute), throttle.Config{Observer: w.observer()})
	there := newLimiter(t, s.rdb, "sms", throttle.Sliding(5, time.Minute), throttle.Config{})
	here.LimitStatus(t.Context())
	w.want() // the first look finds what is so

	if _, err := there.SetLimit(t.Context(), throttle.Sliding(3, time.Minute), throttle.SetLimitOptions{}); err != nil {
		t.Fatal(err)
	}
	here.LimitStatus(t.Context())
	here.LimitStatus(t.Context())
	w.want("LimitChanged sms sliding 3/1m true closed: false")
	if err := here.UnsetLimit(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.want("LimitChanged sms sliding 5/1m false closed: false")
	if _, err := here.CloseRule(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	w.want("LimitChanged sms sliding 5/1m false closed: true")
	if err := here.OpenRule(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.want("LimitChanged sms sliding 5/1m false closed: false")

	if _, err := here.CloseKey(t.Context(), key, time.Hour); err != nil {
		t.Fatal(err)
	}
	if _, err := here.OpenKey(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	w.want("KeyClosed sms closed: true", "KeyClosed sms closed: false")

	d := s.try(here, 3)
	charge := here.Policy().Charge(d)
	for range 2 { // the second corrects nothing
		if _, err := charge.Adjust(t.Context(), map[string]int{"sms": 1}); err != nil {
			t.Fatal(err)
		}
	}
	w.want("Granted [sms] waited: false", "Adjusted sms 3 1")
}

// A lease that ends while it is held is told once.
func TestObserverOfALostLease(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	w := &witness{T: t}
	l := newLimiter(t, s.rdb, "slots", throttle.Concurrent(1, 300*ms), throttle.Config{Observer: w.observer()})
	d := s.try(l, 1)
	held, release := l.Policy().Hold(t.Context(), d)
	if _, err := l.Policy().Release(t.Context(), d); err != nil { // as if it had ended by itself
		t.Fatal(err)
	}
	<-held.Done()
	_, _ = release(t.Context())
	w.want("Granted [slots] waited: false", "LeaseLost slots")
}

func TestCountsWhenRedisIsUnavailable(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	defer rdb.Close()
	for away, want := range map[throttle.FailureMode]throttle.Counts{
		throttle.FailClosed: {Failed: 2},
		throttle.FailOpen:   {Granted: 2, Fallback: 2},
		throttle.FailLocal:  {Granted: 1, Refused: 1, Fallback: 2},
	} {
		l := newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{OnUnavailable: away})
		for range 2 {
			_, err := l.TryAcquire(t.Context(), key, 1)
			if errors.Is(err, throttle.ErrUnavailable) != (away == throttle.FailClosed) {
				t.Errorf("%v: TryAcquire = %v", away, err)
			}
		}
		if got := l.Policy().Counts(); got != want {
			t.Errorf("%v: Counts = %+v, want %+v", away, got, want)
		}
	}
}
